"""Scheduler that assigns pods to nodes, following the rules of kube-scheduler."""
