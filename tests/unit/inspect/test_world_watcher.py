"""A world that is followed: what changes is shown, not too often, and rarely where nothing does."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.inspect.world_state import WorldState
from tapestry.inspect.world_watcher import COUNTDOWN_INTERVAL, IDLE_INTERVAL, MIN_REFRESH_INTERVAL, WorldWatcher
from tapestry.kube.objects import object_named, with_type_meta
from tapestry.kube.resources import NODES, PODS
from tapestry.kube.times import timestamp


@dataclass
class Audience:
    """Sees what is shown, and knows when."""

    client: Client
    now: Callable[[], datetime]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    scenes: list[WorldState] = field(default_factory=list)

    def pauses(self) -> list[float]:
        times = [each.now for each in self.scenes]
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


def followed(story: Callable[[Audience], Coroutine[Any, Any, None]]) -> Audience:
    """Who has seen a story, in virtual time."""

    async def scenario() -> Audience:
        clock = running_clock()
        audience = Audience(Client(InProcessApi([CLUSTER_BINDINGS, NODES, PODS], clock.now)), clock.now)
        live = WorldWatcher(audience.client, audience.scenes.append, clock.now, audience.news)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(live.run())
            await asyncio.sleep(5)
            await story(audience)
            following.cancel()
        return audience

    return run(scenario())


def test_many_changes_refresh_twice_a_second() -> None:
    async def story(audience: Audience) -> None:
        del audience.scenes[:]
        await audience.add_pods(300)
        await asyncio.sleep(1)

    seen = followed(story)
    assert seen.scenes[-1].phases == {"Pending": 300}
    assert min(seen.pauses()) >= MIN_REFRESH_INTERVAL
    assert 5 <= len(seen.scenes) <= 9


def test_idle_world_refreshes_rarely() -> None:
    async def story(audience: Audience) -> None:
        await asyncio.sleep(60)

    assert len(followed(story).scenes) <= 2 + 65 / IDLE_INTERVAL


def test_countdown_refreshes_every_second() -> None:
    async def story(audience: Audience) -> None:
        await audience.add_binding(audience.now() + timedelta(seconds=90))
        await asyncio.sleep(1)
        del audience.scenes[:]
        await asyncio.sleep(20)

    assert max(followed(story).pauses()) <= MIN_REFRESH_INTERVAL + COUNTDOWN_INTERVAL


def test_refresh_event_refreshes_at_once() -> None:
    async def story(audience: Audience) -> None:
        del audience.scenes[:]
        audience.news.set()
        await asyncio.sleep(MIN_REFRESH_INTERVAL)

    assert len(followed(story).scenes) == 1
