"""Validation of built-in kinds with the rules and messages of kube-apiserver."""
