"""Access control of the service: roles in projects, access keys and rate limits."""
