"""`tapestry add` and `tapestry remove`: clusters of the world that is up here."""

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
"""From how many nodes on progress is shown, and after how many each time."""
T = TypeVar("T")


@click.command(epilog=help_epilog("tapestry add west", "tapestry add west --nodes 20"))
@click.argument("name")
@click.option(
    "--nodes",
    type=click.IntRange(min=0, max=MAX_NODES),
    default=5,
    show_default=True,
    help="Number of simulated nodes; a cluster that is there already gets those that it lacks.",
)
@DATA_OPTION
def add(name: str, nodes: int, data: Path) -> None:
    """Start one more cluster in the world that is up, for you to join.  It ends with the others.

    Ctrl-C removes a cluster again that has not been started completely.
    """
    world = World(data.absolute())
    has_joined, created = run_or_fail(add_to_world(world, name, nodes))
    kubeconfig = os.path.relpath(world.kubeconfig(name))
    found = f"{name} answers, with {plural_text(created, 'new node')}"
    if has_joined:
        click.echo(f"{found}; it has joined already")
        return
    click.echo(f"{found}; it has not joined yet:\n\n  tapestry join {name} --cluster-kubeconfig {kubeconfig}")


@click.command(epilog=help_epilog("tapestry remove west"))
@click.argument("name")
@DATA_OPTION
def remove(name: str, data: Path) -> None:
    """Stop a cluster that `tapestry add` started, and delete its folder.  It must not be joined any more."""
    run_or_fail(remove_cluster(World(data.absolute()), name))
    click.echo(f"{name} is removed")


def run_or_fail(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, whose failures are told in one line."""
    try:
        return uvloop.run(work)
    except (WorldError, KubeError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def add_to_world(world: World, name: str, nodes: int) -> tuple[bool, int]:
    """Have the cluster; whether it has joined under its name, and how many nodes are new."""
    created = await add_cluster(world, name, nodes, progress_printer(nodes))
    async with world.client(VIRTUAL) as virtual:
        return await has_binding(virtual, name), created


def progress_printer(nodes: int) -> Callable[[int], None]:
    """Show on a terminal how many of many nodes were created."""

    def show(created: int) -> None:
        if sys.stderr.isatty() and nodes >= PROGRESS_MIN_NODES and (created % PROGRESS_STEP == 0 or created == nodes):
            click.echo(f"\r{created:,} of {nodes:,} nodes", nl=created == nodes, err=True)

    return show
