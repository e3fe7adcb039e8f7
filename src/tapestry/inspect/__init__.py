"""Answers about what is, for people: read from both clusters.  Nothing is written, but `repair` removes garbage."""
