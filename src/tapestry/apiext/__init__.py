"""Plain REST API over any kind of a Kubernetes API, with flat JSON for web pages."""
