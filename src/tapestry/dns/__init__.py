"""DNS: messages, the names of a Kubernetes cluster, forwarding, and a resolver with a port for each cluster."""
