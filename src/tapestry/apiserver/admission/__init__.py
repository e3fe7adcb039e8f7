"""Admission of writes: built-in plugins, limits and quotas, policies and webhooks."""
