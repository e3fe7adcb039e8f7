"""Tapestry: lease idle Kubernetes capacity and weave it into one compute cluster."""

__version__ = "0.1.0"
