"""Refreshes of the live view: prompt, rate-limited, and rare without changes."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.inspect.world_state import (
    COUNTDOWN_INTERVAL,
    IDLE_INTERVAL,
    MIN_REFRESH_INTERVAL,
    WorldState,
    WorldWatcher,
)
from tapestry.kube.objects import object_named, with_type_meta
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import timestamp


@dataclass
class Viewer:
    """Record the shown states and their times."""

    client: Client
    now: Callable[[], datetime]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    states: list[WorldState] = field(default_factory=list)

    def pauses(self) -> list[float]:
        times = [each.now for each in self.states]
        return [(later - earlier).total_seconds() for earlier, later in pairwise(times)]

    async def add_pods(self, count: int) -> None:
        for number in range(count):
            spec = {"containers": [{"name": "c", "image": "i"}]}
            await self.client.create(PODS, {**object_named(f"web-{number}", "default"), "spec": spec})
            await asyncio.sleep(0.01)

    async def add_binding(self, next_change: datetime) -> None:
        secret = {"name": "east", "namespace": "tapestry-system"}
        spec = {"clusterID": "e1", "secretRef": secret, "mountNamespace": "leased"}
        made = await self.client.create(
            CLUSTER_BINDINGS, with_type_meta(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})
        )
        status = {"status": {"nextChange": timestamp(next_change)}}
        await self.client.patch(CLUSTER_BINDINGS, made, status, subresource="status")


def watch_world(steps: Callable[[Viewer], Coroutine[Any, Any, None]]) -> Viewer:
    """Run the steps in virtual time; return the viewer."""

    async def scenario() -> Viewer:
        clock = running_clock()
        viewer = Viewer(Client(InProcessApi([CLUSTER_BINDINGS, NODES, PODS], clock.now)), clock.now)
        live = WorldWatcher(viewer.client, viewer.states.append, clock.now, viewer.news)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(live.run())
            await asyncio.sleep(5)
            await steps(viewer)
            following.cancel()
        return viewer

    return run(scenario())


def test_many_changes_refresh_twice_a_second() -> None:
    async def steps(viewer: Viewer) -> None:
        del viewer.states[:]
        await viewer.add_pods(300)
        await asyncio.sleep(1)

    seen = watch_world(steps)
    assert seen.states[-1].phases == {"Pending": 300}
    assert min(seen.pauses()) >= MIN_REFRESH_INTERVAL
    assert 5 <= len(seen.states) <= 9


def test_idle_world_refreshes_rarely() -> None:
    async def steps(viewer: Viewer) -> None:
        await asyncio.sleep(60)

    assert len(watch_world(steps).states) <= 2 + 65 / IDLE_INTERVAL


def test_countdown_refreshes_every_second() -> None:
    async def steps(viewer: Viewer) -> None:
        await viewer.add_binding(viewer.now() + timedelta(seconds=90))
        await asyncio.sleep(1)
        del viewer.states[:]
        await asyncio.sleep(20)

    assert max(watch_world(steps).pauses()) <= MIN_REFRESH_INTERVAL + COUNTDOWN_INTERVAL


def test_refresh_event_refreshes_at_once() -> None:
    async def steps(viewer: Viewer) -> None:
        del viewer.states[:]
        viewer.news.set()
        await asyncio.sleep(MIN_REFRESH_INTERVAL)

    assert len(watch_world(steps).states) == 1
