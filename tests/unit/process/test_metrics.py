import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter

from tapestry.process import metrics


def lag(sample: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"tapestry_event_loop_lag_seconds_{sample}", labels) or 0.0


def test_page_has_all_metrics_and_content_type() -> None:
    registry = CollectorRegistry()
    Counter("things_total", "Things.", ["kind"], namespace=metrics.NAMESPACE, registry=registry).labels("a").inc(3)
    body, content_type = metrics.render(registry)
    assert body.splitlines()[-1] == b'tapestry_things_total{kind="a"} 3.0'
    assert b"_created" not in body
    assert content_type.startswith("text/plain; version=")


def test_build_info_is_replaced_by_last_call() -> None:
    metrics.set_build_info("syncer", "0.1.0")
    metrics.set_build_info("manager", "0.2.0")
    body, _ = metrics.render()
    assert b'tapestry_build_info{component="manager",version="0.2.0"} 1.0' in body
    assert b"syncer" not in body


def test_buckets_cover_a_millisecond_to_five_minutes() -> None:
    assert (metrics.LATENCY_BUCKETS[0], metrics.LATENCY_BUCKETS[-1]) == (0.001, 300)
    steps = zip(metrics.LATENCY_BUCKETS, metrics.LATENCY_BUCKETS[1:], strict=False)
    assert all(1 < above / below <= 3 for below, above in steps)


@contextmanager
def movable_clock(loop: Any) -> Iterator[Any]:
    """The loop's time, advanced by hand: `clock[0] += 1` is a second in which the loop did nothing."""
    clock = [1000.0]
    loop.time = lambda: clock[0]
    try:
        yield clock
    finally:
        del loop.time


@pytest.mark.parametrize(("late", "wanted"), [(0.0, "0.001"), (0.03, "0.05"), (2.0, "2.5")])
async def test_loop_lag_is_the_delay_of_the_timer(late: float, wanted: str) -> None:
    loop = asyncio.get_running_loop()
    count, total, under = lag("count"), lag("sum"), lag("bucket", le=wanted)
    with movable_clock(loop) as clock:
        watch = loop.create_task(metrics.watch_loop_lag(interval=0.5))
        await asyncio.sleep(0)  # it is waiting now
        clock[0] += 0.5 + late
        for _ in range(5):  # iterations for the timer, its future and the task
            await asyncio.sleep(0)
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
    assert lag("count") == count + 1
    assert lag("sum") - total == pytest.approx(late)
    assert lag("bucket", le=wanted) == under + 1
