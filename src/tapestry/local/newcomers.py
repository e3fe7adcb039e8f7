"""Clusters that are added to a running world, and removed from it: each starts and ends with the others."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable

from tapestry.kube.names import dns_label_complaint
from tapestry.local.cluster import ClusterPlan, have_nodes
from tapestry.local.members import LOOK, Progress
from tapestry.local.world import ANSWERING, REMOVED, VIRTUAL, WELCOME, World, WorldFailed, binds

OWN = re.compile(r"cluster-\d+")
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
        os.kill(running, WELCOME)
        await world.wait_for_answer(name)
        async with world.client(name) as client:
            return await have_nodes(client, ClusterPlan(folder, nodes), created)
    except asyncio.CancelledError:
        if is_new:
            await remove(world, name)
        raise


async def remove(world: World, name: str) -> None:
    """Stop the cluster `name` and delete its folder.  Raises WorldFailed if it has joined, or was not added."""
    check_name(name)
    if OWN.fullmatch(name):
        raise WorldFailed(f"{name} was not added: it belongs to the world, which `tapestry down --purge` deletes")
    folder = world.folder / name
    if not folder.is_dir():
        raise WorldFailed(f"there is no cluster {name} in {world.folder}")
    if world.running_pid() is None:
        shutil.rmtree(folder)
        return
    async with world.client(VIRTUAL) as virtual:
        if await binds(virtual, name):
            command = f"tapestry unjoin {name} --cluster-kubeconfig {world.kubeconfig(name)}"
            raise WorldFailed(f"{name} has joined; first run: {command}")
    (folder / REMOVED).touch()
    os.kill(running_pid(world), WELCOME)
    progress = Progress(ANSWERING, ANSWERING)
    while folder.exists():
        if progress.stalls(name):
            raise WorldFailed(f"{name} does not end; its log is {folder / 'log'}")
        await asyncio.sleep(LOOK)


def check_name(name: str) -> None:
    if complaint := dns_label_complaint(name):
        raise WorldFailed(f"the name of a cluster: {complaint}")
    if name == VIRTUAL:
        raise WorldFailed(f"{name!r} is the cluster that others join; choose another name")


def running_pid(world: World) -> int:
    """The process that runs the world.  Raises WorldFailed if none does."""
    running = world.running_pid()
    if running is None:
        raise WorldFailed(f"there is no world at work in {world.folder}; `tapestry up` starts one")
    return running
