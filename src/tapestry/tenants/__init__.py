"""Tenants: planes whose pods run in a host cluster."""
