"""The audit log of the service: a chain of hashes for each instance."""
