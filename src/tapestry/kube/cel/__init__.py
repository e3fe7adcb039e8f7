"""CEL as Kubernetes speaks it: expressions that are checked before they run, and end."""
