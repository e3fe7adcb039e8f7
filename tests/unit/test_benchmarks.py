"""Benchmarks import helpers of tests, and run only on demand: renamed helpers would go unnoticed."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("module", sorted(each.stem for each in FOLDER.glob("*.py") if each.stem != "__main__"))
def test_benchmark_can_be_imported(module: str) -> None:
    assert importlib.import_module(f"benchmarks.{module}").__doc__
