"""The Tapestry API: custom resource kinds, label keys, object names and permissions."""
