"""Watch of a world for the live view, with rate-limited refreshes."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.inspect.world_state import WorldState, world_state_of
from tapestry.kube.resources import NODES, PODS

MIN_REFRESH_INTERVAL = 0.5
"""Shortest time between two refreshes, in seconds."""
REFRESH_COST_FACTOR = 20
"""Ratio of the pause to the CPU time of the last refresh, for worlds with thousands of pods."""
IDLE_INTERVAL, COUNTDOWN_INTERVAL = 15.0, 1.0
"""Longest time between two refreshes, in seconds, because displayed times change."""
COUNTDOWN_WINDOW = timedelta(minutes=2)


@dataclass(frozen=True)
class WorldWatcher:
    """Watches the virtual cluster of a world and calls `show` on changes."""

    client: Client
    show: Callable[[WorldState], None]
    now: Callable[[], datetime]
    refresh: asyncio.Event
    """Event that requests a refresh."""

    async def run(self) -> None:
        """Watch and refresh until cancelled."""
        bindings, pods = Informer(self.client, CLUSTER_BINDINGS), Informer(self.client, PODS)
        nodes = Informer(self.client, NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
        async with asyncio.TaskGroup() as group:
            for each in (bindings, nodes, pods):
                each.on_change(lambda _old, _new: self.refresh.set())
                group.create_task(each.run())
            for each in (bindings, nodes, pods):
                await each.synced.wait()
            while True:
                self.refresh.clear()
                began = time.process_time()
                state = world_state_of(bindings.store.list(), nodes.store.list(), pods.store.list(), self.now())
                self.show(state)
                await asyncio.sleep(max(MIN_REFRESH_INTERVAL, (time.process_time() - began) * REFRESH_COST_FACTOR))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.refresh.wait(), refresh_interval(state))


def refresh_interval(state: WorldState) -> float:
    """Return the longest time until the next refresh; short while a countdown is displayed."""
    changes = (*(each.next_change for each in state.bindings), *(each.lease_ends for each in state.nodes))
    is_soon = any(moment is not None and moment - state.now < COUNTDOWN_WINDOW for moment in changes)
    return COUNTDOWN_INTERVAL if is_soon else IDLE_INTERVAL
