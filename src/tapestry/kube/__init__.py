"""The vocabulary of Kubernetes objects: pure functions on plain dicts, no I/O, no clock."""
