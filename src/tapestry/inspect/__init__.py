"""Answers about what is, for people: read from both clusters, and never written."""
