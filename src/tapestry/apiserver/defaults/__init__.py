"""Default values of built-in kinds, as in Kubernetes.

Each function takes an object and returns it with its defaults. Unchanged parts are shared with the argument.
"""
