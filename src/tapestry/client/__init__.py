"""The Kubernetes API client, the only code that talks to API servers."""
