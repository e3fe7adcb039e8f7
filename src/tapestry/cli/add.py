"""`tapestry add` and `tapestry remove`: clusters of the local world."""

import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from tapestry.cli.help_text import help_epilog
from tapestry.cli.up import DATA_OPTION
from tapestry.inspect.tables import plural_text
from tapestry.kube.errors import KubeError
from tapestry.local.add_cluster import add as add_cluster
from tapestry.local.add_cluster import remove as remove_cluster
from tapestry.local.cluster import MAX_NODES
from tapestry.local.world import VIRTUAL, World, WorldError, has_binding

PROGRESS_MIN_NODES, PROGRESS_STEP = 100, 50
"""Smallest number of nodes for which progress is shown, and the number of nodes between updates."""
T = TypeVar("T")


@click.command(epilog=help_epilog("tapestry add west", "tapestry add west --nodes 20"))
@click.argument("name")
@click.option(
    "--nodes",
    type=click.IntRange(min=0, max=MAX_NODES),
    default=5,
    show_default=True,
    help="Number of simulated nodes. An existing cluster gets the missing ones.",
)
@DATA_OPTION
def add(name: str, nodes: int, data: Path) -> None:
    """Add a cluster to the running world and print the command that joins it.

    The cluster stops together with the world.  Ctrl-C deletes a cluster that has not started completely.
    """
    world = World(data.absolute())
    has_joined, created = run_or_fail(add_to_world(world, name, nodes))
    kubeconfig = os.path.relpath(world.kubeconfig(name))
    found = f"{name} answers, with {plural_text(created, 'new node')}"
    if has_joined:
        click.echo(f"{found}; it has already joined")
        return
    click.echo(f"{found}; it has not joined yet:\n\n  tapestry join {name} --cluster-kubeconfig {kubeconfig}")


@click.command(epilog=help_epilog("tapestry remove west"))
@click.argument("name")
@DATA_OPTION
def remove(name: str, data: Path) -> None:
    """Stop a cluster that `tapestry add` started, and delete its folder.  Unjoin the cluster first."""
    run_or_fail(remove_cluster(World(data.absolute()), name))
    click.echo(f"{name} removed")


def run_or_fail(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` and report its failure as a one-line error."""
    try:
        return uvloop.run(work)
    except (WorldError, KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def add_to_world(world: World, name: str, nodes: int) -> tuple[bool, int]:
    """Create the cluster; return whether it has joined and the number of new nodes."""
    created = await add_cluster(world, name, nodes, progress_printer(nodes))
    async with world.client(VIRTUAL) as virtual:
        return await has_binding(virtual, name), created


def progress_printer(nodes: int) -> Callable[[int], None]:
    """Return a callback that shows the number of created nodes on a terminal."""

    def show(created: int) -> None:
        if sys.stderr.isatty() and nodes >= PROGRESS_MIN_NODES and (created % PROGRESS_STEP == 0 or created == nodes):
            click.echo(f"\r{created:,} of {nodes:,} nodes", nl=created == nodes, err=True)

    return show
