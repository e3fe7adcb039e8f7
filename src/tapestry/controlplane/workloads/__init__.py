"""Workloads: controllers that keep pods for others, as kube-controller-manager does."""
