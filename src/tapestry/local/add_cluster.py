"""Clusters added to and removed from a running world."""

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
"""Names of the clusters that `tapestry up` creates."""


async def add(world: World, name: str, nodes: int, created: Callable[[int], None] = lambda _: None) -> int:
    """Make the process of the world start the cluster `name`, and wait until it answers.

    Return the number of created nodes; an existing cluster gets the missing ones.  If cancelled, delete a cluster that
    did not exist before.
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
    """Stop the cluster `name` and delete its folder.  Raise WorldError if it has joined, or was not added."""
    check_name(name)
    if BUILT_IN_NAME.fullmatch(name):
        raise WorldError(f"{name} was not added: it is part of the world; `tapestry down --purge` deletes the world")
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
            raise WorldError(f"{name} does not stop; its log is {folder / 'log'}")
        await asyncio.sleep(POLL_INTERVAL)


def check_name(name: str) -> None:
    if error := dns_label_error(name):
        raise WorldError(f"invalid cluster name: {error}")
    if name == VIRTUAL:
        raise WorldError(f"{name!r} is the name of the virtual cluster; choose another name")


def running_pid(world: World) -> int:
    """Return the PID of the process that runs the world.  Raise WorldError if there is none."""
    running = world.running_pid()
    if running is None:
        raise WorldError(f"no world is running in {world.folder}; `tapestry up` starts one")
    return running
