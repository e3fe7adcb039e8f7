"""What `kubectl get` prints of the objects of each kind, made by the server: people and scripts read it."""
