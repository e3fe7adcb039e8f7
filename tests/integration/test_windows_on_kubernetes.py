"""One edge of time windows on the real clock; `make bench-windows` measures fifty."""

from collections.abc import Callable

import pytest

from .bound_clusters import BoundClusters
from .edges import PODS_EACH, POLICIES, measured
from .planes import WHOLE_MINUTES, only_on_kubernetes


@only_on_kubernetes(WHOLE_MINUTES)
@pytest.mark.timeout(240)
async def test_windows_switch_within_one_second_and_deadlines_within_two(
    clusters: BoundClusters, record_property: Callable[[str, object], None]
) -> None:
    found = await measured(clusters, minutes=1)
    worst, error = max(found.lateness), max(found.deadline_error)
    record_property("figure", f"windows: edge to taint {worst:.3f} s at worst, deadlines kept to {error:.3f} s")
    assert len(found.lateness) == POLICIES
    assert min(found.lateness) >= 0
    assert worst <= 1
    assert len(found.deadline_error) == POLICIES // 2 * PODS_EACH
    assert found.deleted_early == 0
    assert error <= 2
