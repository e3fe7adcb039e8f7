"""Aggregated APIs: groups that other API servers serve, registered by APIServices."""
