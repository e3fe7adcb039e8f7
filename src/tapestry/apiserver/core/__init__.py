"""Shared vocabulary of the API server: requests, responses, errors, resources and the store."""
