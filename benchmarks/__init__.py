"""How fast and how small it is: `python -m benchmarks`, from the root of the repository.

One module asks one question; docs/benchmarks.md says what the rows mean.
"""
