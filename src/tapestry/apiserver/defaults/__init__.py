"""Defaults: what Kubernetes fills in where a writer says nothing, for the kinds whose controllers depend on it.

Each function takes an object and returns it with its defaults, sharing with it what it can.
"""
