"""`tapestry add`: one more cluster in the world that is up here."""

import os
from pathlib import Path

import click
import uvloop

from tapestry.cli.manual import manual
from tapestry.cli.up import DATA
from tapestry.kube.errors import KubeError
from tapestry.local.newcomers import add as add_cluster
from tapestry.local.world import VIRTUAL, World, WorldFailed, binds


@click.command(epilog=manual("tapestry add west", "tapestry add west --nodes 20"))
@click.argument("name")
@click.option("--nodes", type=click.IntRange(min=0), default=5, show_default=True, help="Simulated ones.")
@DATA
def add(name: str, nodes: int, data: Path) -> None:
    """Start one more cluster in the world that is up, for you to join.  It ends with the others."""
    world = World(data.absolute())
    try:
        has_joined = uvloop.run(added(world, name, nodes))
    except (WorldFailed, KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error
    kubeconfig = os.path.relpath(world.kubeconfig(name))
    if has_joined:
        click.echo(f"{name} answers; it has joined already")
        return
    click.echo(f"{name} answers; it has not joined yet:\n\n  tapestry join {name} --cluster-kubeconfig {kubeconfig}")


async def added(world: World, name: str, nodes: int) -> bool:
    """Have the cluster; whether it has joined, under its name."""
    await add_cluster(world, name, nodes)
    async with world.client(VIRTUAL) as virtual:
        return await binds(virtual, name)
