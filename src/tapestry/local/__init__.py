"""Local worlds: clusters, control planes and kubelets on this machine."""
