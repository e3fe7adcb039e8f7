"""What kube-controller-manager does, small: for an API server that has none."""
