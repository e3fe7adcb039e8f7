"""A Kubernetes API where there is no Kubernetes: durable on one disk, served by one process."""
