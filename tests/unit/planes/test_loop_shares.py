"""A plane has a quarter of the event loop, and more while others need little."""

import pytest

from tapestry.planes.loop_shares import GUARANTEED_SHARE, RESERVE, LoopShares
from tapestry.process.work_meter import WorkMeter

MS = 1_000_000


class Planes:
    """Planes that use constant shares of the time."""

    def __init__(self) -> None:
        self.shares, self.now = LoopShares(), 0
        self.meters: dict[str, WorkMeter] = {}

    def run(self, seconds: float, **shares: float) -> dict[str, float]:
        """Return the used part of the share of each plane at the end."""
        parts = {}
        for _ in range(int(seconds * 1000)):
            self.now += MS
            for name, share in shares.items():
                meter = self.meters.setdefault(name, WorkMeter())
                meter.loop_ns += int(share * MS)
                self.shares.total.loop_ns += int(share * MS)
                parts[name] = self.shares.used_part(meter, self.now)
        return parts


def test_plane_that_is_alone_may_use_all_time() -> None:
    assert Planes().run(10, a=1.0)["a"] == pytest.approx(1.0, rel=0.01)


def test_idle_planes_do_not_restrict_busy_one() -> None:
    assert Planes().run(10, busy=0.8, **{f"idle-{number}": 0.0002 for number in range(100)})["busy"] <= 1.01


def test_plane_leaves_multiple_of_small_use_free() -> None:
    used = Planes().run(10, busy=0.6, small=0.04)
    assert used["busy"] == pytest.approx(0.6 / (1 - RESERVE * 0.04), rel=0.01)
    assert used["small"] < 0.5


def test_plane_may_use_a_quarter_in_any_case() -> None:
    used = Planes().run(10, busy=0.6, **{f"small-{number}": 0.04 for number in range(10)})
    assert used.pop("busy") == pytest.approx(0.6 / GUARANTEED_SHARE, rel=0.01)
    assert max(used.values()) < 0.5


def test_busy_planes_do_not_restrict_each_other() -> None:
    assert max(Planes().run(10, a=0.5, b=0.5).values()) == pytest.approx(0.5, rel=0.01)


def test_short_burst_is_within_the_share() -> None:
    planes = Planes()
    planes.run(10, small=0.1)
    assert planes.run(0.2, small=0.1, burst=0.8)["burst"] < 1
    assert planes.run(0.5, small=0.1, burst=0.8)["burst"] > 1


def test_use_is_forgotten() -> None:
    planes = Planes()
    planes.run(10, small=0.1, busy=0.8)
    assert planes.run(0.5, small=0.1, busy=0.0)["busy"] > 1
    assert planes.run(2, small=0.1, busy=0.0)["busy"] < 0.5


def test_ended_busy_plane_counts_no_more() -> None:
    planes = Planes()
    planes.run(10, a=0.5, b=0.5)
    assert planes.run(5, b=0.9)["b"] == pytest.approx(0.9, rel=0.05)
