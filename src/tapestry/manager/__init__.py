"""The manager: checks the cluster behind each ClusterBinding and deploys a syncer for it."""
