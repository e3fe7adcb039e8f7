"""Controllers that manage pods for Deployments, StatefulSets, Jobs and other workloads."""
