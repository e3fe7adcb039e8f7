"""What every tier of the tests shares."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tapestry.local.kubernetes import AssetsMissing, find_assets

# A deadline for one example would be an assertion on a latency under a second, on a machine that others use too.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason to skip, however many tests it took out."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)


@pytest.fixture(scope="session")
def kube_assets() -> Path:
    """The folder with the programs of a real Kubernetes.  Without one a test is skipped, but fails in CI."""
    try:
        return find_assets(os.environ)
    except AssetsMissing as error:
        missing = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
