"""API server that is compatible with Kubernetes and runs in one process with durable storage."""
