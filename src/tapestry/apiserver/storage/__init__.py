"""Durable backends of the store: SQLite, etcd, or memory only."""
