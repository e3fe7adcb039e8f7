"""Read-only queries on both clusters for users; only `repair` deletes garbage."""
