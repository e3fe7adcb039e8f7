"""API documents that the server publishes: discovery and OpenAPI."""
