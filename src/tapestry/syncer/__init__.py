"""Syncer of one physical cluster: leases its nodes and runs pods of the virtual cluster there."""
