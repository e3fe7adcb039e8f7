"""Kubernetes data model: pure functions on plain dicts, without I/O and without a clock."""
