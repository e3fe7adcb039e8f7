"""HTTP serving for the API server: connections, limits, request handling, metrics and health checks."""
