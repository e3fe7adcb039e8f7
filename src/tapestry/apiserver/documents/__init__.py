"""What the server publishes about its API: discovery and OpenAPI."""
