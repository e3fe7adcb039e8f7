"""Planes: API servers with their controllers that share a process."""
