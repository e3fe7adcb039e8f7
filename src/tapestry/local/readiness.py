"""Wait until the virtual nodes of a world are ready.

A ready condition may be left over from an earlier run, so the node's Lease must also have been renewed since.
"""

import asyncio
from contextlib import suppress
from datetime import datetime

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES
from tapestry.kube.times import parse_time
from tapestry.local.cluster_processes import StallDetector

STALL_TIMEOUT, TOTAL_TIMEOUT = 60.0, 900.0
"""Seconds without a new ready node until the wait fails, and for all nodes."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.1, 1.0
"""Shortest and longest time between two checks, in seconds."""


async def wait_for_nodes(virtual: Client, count: int, since: datetime) -> int:
    """Wait until `count` virtual nodes are ready, or no more become ready; return their number."""
    nodes = Informer(virtual, NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
    leases = Informer(virtual, LEASES, namespace=NODE_LEASE_NAMESPACE)
    progress, changed = StallDetector(STALL_TIMEOUT, TOTAL_TIMEOUT), asyncio.Event()
    leases.on_change(lambda _old, _new: changed.set())
    nodes.on_change(lambda _old, _new: changed.set())
    async with asyncio.TaskGroup() as group:
        watches = [group.create_task(each.run()) for each in (nodes, leases)]
        while (ready := count_ready_nodes(nodes, leases, since)) < count and not progress.has_stalled(ready):
            await asyncio.sleep(MIN_POLL_INTERVAL)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), MAX_POLL_INTERVAL)
            changed.clear()
        for each in watches:
            each.cancel()
    return ready


def count_ready_nodes(nodes: Informer, leases: Informer, since: datetime) -> int:
    return sum(
        is_condition_true(node, "Ready")
        and is_renewed(leases.store.get(f"{NODE_LEASE_NAMESPACE}/{name_of(node)}"), since)
        for node in nodes.store.list()
    )


def is_renewed(lease: Object | None, since: datetime) -> bool:
    renewed = value_at(lease, "spec", "renewTime")
    return bool(renewed) and parse_time(renewed) >= since
