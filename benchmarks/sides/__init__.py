"""Sides of the comparisons. Each runs in its own process, so that imports are not shared."""
