"""A world as it changes: whatever is seen of it is shown at once, but at most twice a second, and rarely at rest."""

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
from tapestry.inspect.scene import Scene, scene
from tapestry.kube.resources import NODES, PODS

BETWEEN_LOOKS = 0.5
"""Seconds, at least."""
LEISURE = 20
"""How much longer than to look at thousands of pods it takes until they are looked at again."""
AT_REST, COUNTING_DOWN = 15.0, 1.0
"""Seconds, at most: times that are shown go by."""
SOON = timedelta(minutes=2)


@dataclass(frozen=True)
class Live:
    """Follows the virtual cluster of a world, and shows it."""

    client: Client
    show: Callable[[Scene], None]
    now: Callable[[], datetime]
    news: asyncio.Event
    """Set by whoever has something else to be shown."""

    async def run(self) -> None:
        """Until cancelled."""
        bindings, pods = Informer(self.client, CLUSTER_BINDINGS), Informer(self.client, PODS)
        nodes = Informer(self.client, NODES, labels=f"{keys.NODE_TYPE}={keys.VIRTUAL}")
        async with asyncio.TaskGroup() as group:
            for each in (bindings, nodes, pods):
                each.on_change(lambda _old, _new: self.news.set())
                group.create_task(each.run())
            for each in (bindings, nodes, pods):
                await each.synced.wait()
            while True:
                self.news.clear()
                began = time.process_time()
                seen = scene(bindings.store.list(), nodes.store.list(), pods.store.list(), self.now())
                self.show(seen)
                await asyncio.sleep(max(BETWEEN_LOOKS, (time.process_time() - began) * LEISURE))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.news.wait(), pause(seen))


def pause(seen: Scene) -> float:
    """How long a scene may stand though nothing changes: not so long that a countdown would be wrong."""
    changes = (*(each.next_change for each in seen.bindings), *(each.lease_ends for each in seen.nodes))
    is_soon = any(moment is not None and moment - seen.now < SOON for moment in changes)
    return COUNTING_DOWN if is_soon else AT_REST
