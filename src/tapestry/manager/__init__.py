"""ClusterBinding -> a running syncer: checks who is behind a binding, and keeps one syncer at work for it."""
