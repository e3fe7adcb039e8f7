"""A cluster that comes into a world which is up, to be joined by a person: it starts and ends with the others."""

import os

from tapestry.kube.names import dns_label_complaint
from tapestry.local.cluster import ClusterPlan, have_nodes
from tapestry.local.world import VIRTUAL, WELCOME, World, WorldFailed


async def add(world: World, name: str, nodes: int) -> None:
    """Have whoever runs the world start the cluster `name` with so many simulated nodes, until it answers.

    One that is there already gets the nodes that it lacks.
    """
    if complaint := dns_label_complaint(name):
        raise WorldFailed(f"the name of a cluster: {complaint}")
    if name == VIRTUAL:
        raise WorldFailed(f"{name!r} is the cluster that others join; choose another name")
    running = world.running_pid()
    if running is None:
        raise WorldFailed(f"there is no world at work in {world.folder}; `tapestry up` starts one")
    (world.folder / name).mkdir(exist_ok=True, mode=0o700)
    os.kill(running, WELCOME)
    await world.wait_for_answer(name)
    async with world.client(name) as client:
        await have_nodes(client, ClusterPlan(world.folder / name, nodes))
