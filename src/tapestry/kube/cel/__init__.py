"""Common Expression Language as in Kubernetes: type-checked expressions with a bounded cost."""
