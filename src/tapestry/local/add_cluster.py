"""Clusters that are added to a running world, and removed from it: each starts and ends with the others."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable

from tapestry.kube.names import dns_label_error
from tapestry.local.cluster import ClusterPlan, ensure_nodes
from tapestry.local.cluster_processes import POLL_INTERVAL, StallDetector
from tapestry.local.world import REMOVED_FILE, RESCAN_SIGNAL, START_TIMEOUT, VIRTUAL, World, WorldError, has_binding

BUILT_IN_NAME = re.compile(r"cluster-\d+")
"""Names of the clusters that `tapestry up` makes by itself."""


async def add(world: World, name: str, nodes: int, created: Callable[[int], None] = lambda _: None) -> int:
    """Have whoever runs the world start the cluster `name` with so many simulated nodes, until it answers.

    Returns how many nodes were created: a cluster that is there already gets those that it lacks.  If this is
    cancelled, a cluster that was not there before is removed again.
    """
    check_name(name)
    running = running_pid(world)
    folder = world.folder / name
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True, mode=0o700)
    try:
        os.kill(running, RESCAN_SIGNAL)
        await world.wait_for_cluster(name)
        async with world.client(name) as client:
            return await ensure_nodes(client, ClusterPlan(folder, nodes), created)
    except asyncio.CancelledError:
        if is_new:
            await remove(world, name)
        raise


async def remove(world: World, name: str) -> None:
    """Stop the cluster `name` and delete its folder.  Raises WorldFailed if it has joined, or was not added."""
    check_name(name)
    if BUILT_IN_NAME.fullmatch(name):
        raise WorldError(f"{name} was not added: it belongs to the world, which `tapestry down --purge` deletes")
    folder = world.folder / name
    if not folder.is_dir():
        raise WorldError(f"there is no cluster {name} in {world.folder}")
    if world.running_pid() is None:
        shutil.rmtree(folder)
        return
    async with world.client(VIRTUAL) as virtual:
        if await has_binding(virtual, name):
            command = f"tapestry unjoin {name} --cluster-kubeconfig {world.kubeconfig(name)}"
            raise WorldError(f"{name} has joined; first run: {command}")
    (folder / REMOVED_FILE).touch()
    os.kill(running_pid(world), RESCAN_SIGNAL)
    progress = StallDetector(START_TIMEOUT, START_TIMEOUT)
    while folder.exists():
        if progress.has_stalled(name):
            raise WorldError(f"{name} does not end; its log is {folder / 'log'}")
        await asyncio.sleep(POLL_INTERVAL)


def check_name(name: str) -> None:
    if complaint := dns_label_error(name):
        raise WorldError(f"the name of a cluster: {complaint}")
    if name == VIRTUAL:
        raise WorldError(f"{name!r} is the cluster that others join; choose another name")


def running_pid(world: World) -> int:
    """The process that runs the world.  Raises WorldFailed if none does."""
    running = world.running_pid()
    if running is None:
        raise WorldError(f"there is no world at work in {world.folder}; `tapestry up` starts one")
    return running
