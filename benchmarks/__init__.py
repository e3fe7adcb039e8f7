"""Benchmarks of speed and memory: run `python -m benchmarks` in the root of the repository.

Each module answers one question. docs/benchmarks.md explains the rows.
"""
