"""Token buckets: rates, parts of instances, and a bounded number of buckets."""

from hypothesis import given
from hypothesis import strategies as st

from tapestry.vclusters.access.rate_limits import EXPENSIVE, READ, WRITE, Rate, RateLimiter, class_of
from tapestry.vclusters.access.roles import MIN_ROLES

RATE = Rate(per_second=2, burst=4)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_burst_then_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    assert [limiter.take(RATE, "alice").remaining for _ in range(4)] == [3, 2, 1, 0]
    rejected = limiter.take(RATE, "alice")
    assert (rejected.is_allowed, rejected.limit, rejected.reset_seconds, rejected.retry_seconds) == (False, 4, 2, 1)
    assert limiter.take(RATE, "bob").is_allowed
    clock.now = 0.5
    assert limiter.take(RATE, "alice").is_allowed
    assert not limiter.take(RATE, "alice").is_allowed


def test_instances_share_a_rate() -> None:
    limiter = RateLimiter(Clock(), instances=lambda: 2)
    assert [limiter.take(RATE, "alice").is_allowed for _ in range(3)] == [True, True, False]


def test_each_instance_allows_at_least_one() -> None:
    assert RateLimiter(Clock(), instances=lambda: 100).take(RATE, "alice").is_allowed


def test_number_of_buckets_is_bounded() -> None:
    limiter = RateLimiter(Clock(), max_buckets=10)
    for number in range(1000):
        limiter.take(RATE, str(number))
    assert len(limiter._buckets) == 10


@given(st.lists(st.floats(0, 10), max_size=200))
def test_never_more_than_burst_and_rate(steps: list[float]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    allowed = 0
    for step in steps:
        clock.now += step
        allowed += limiter.take(RATE, "alice").is_allowed
    assert allowed <= RATE.burst + RATE.per_second * clock.now + 1e-6


def test_clock_that_goes_back_adds_nothing() -> None:
    clock = Clock()
    clock.now = 100
    limiter = RateLimiter(clock)
    for _ in range(4):
        limiter.take(RATE, "alice")
    clock.now = 0
    assert not limiter.take(RATE, "alice").is_allowed


def test_every_method_has_a_class() -> None:
    classes = {method: class_of(method) for method in MIN_ROLES}
    assert classes["CreateVCluster"] == EXPENSIVE
    assert classes["SuspendVCluster"] == WRITE
    assert {classes[method] for method in ("GetVCluster", "ListOperations", "WatchVCluster")} == {READ}
