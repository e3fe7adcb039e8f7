"""What Kubernetes accepts as objects of its built-in kinds."""
