"""Controllers of kube-controller-manager and a scheduler, for an API server that has none."""
