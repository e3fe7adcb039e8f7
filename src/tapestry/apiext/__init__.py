"""Plain REST over any kind of a Kubernetes API: flat JSON for web pages that should not have to speak Kubernetes."""
