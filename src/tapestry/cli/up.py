"""`tapestry up` and `tapestry down`: a world on this machine, and its end."""

import asyncio
import shlex
import shutil
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import uvloop

from tapestry.cli.clusters import HERE
from tapestry.cli.manual import manual
from tapestry.cli.view import view_of_terminal
from tapestry.inspect.screen import ENDING
from tapestry.inspect.tables import counted
from tapestry.kube.errors import KubeError
from tapestry.local.cluster import MAX_NODES
from tapestry.local.kubernetes import AssetsMissing, find_kubectl
from tapestry.local.world import TAPESTRY, VIRTUAL, World, WorldFailed
from tapestry.manager.steps import JoinError
from tapestry.process import logs

DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=HERE,
    show_default=True,
    help="The folder for everything that lasts: objects, certificates, logs.",
)
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTRODUCTION = "A compute cluster woven from {} is at work.  In another terminal:"


def lines_to_copy(kubeconfig: Path, kubectl: str) -> list[str]:
    # `make up` runs the program in .venv, which a shell does not find by itself
    own = [] if shutil.which(TAPESTRY.name) else [f'export PATH={shlex.quote(str(TAPESTRY.parent))}:"$PATH"']
    return [
        *own,
        f"export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        f"{kubectl} get nodes",
        f"{kubectl} create deployment web --image nginx --replicas 20",
        f"{kubectl} get pods -o wide",
        "tapestry status",
        "tapestry tree",
    ]


@click.command(
    epilog=manual(
        "tapestry up", "tapestry up --clusters 3 --nodes 100", zero="it was told to stop, and nothing runs any more"
    )
)
@click.option("--clusters", type=click.IntRange(min=1), help="Physical clusters. [default: as before, or 2]")
@click.option(
    "--nodes", type=click.IntRange(min=0, max=MAX_NODES), help="Simulated nodes of each. [default: as before, or 5]"
)
@click.option(
    "--real-kubernetes", is_flag=True, help="Run every cluster on kube-apiserver, etcd and what goes with them."
)
@DATA
def up(clusters: int | None, nodes: int | None, real_kubernetes: bool, data: Path) -> None:
    """Run a virtual cluster and the physical clusters that it leases from, until Ctrl-C.

    A world that is there already keeps what it has; more clusters and nodes can be had.
    """
    logs.configure("error")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            world = World(data.absolute(), clusters, nodes, real_kubernetes, say=click.echo, happened=click.echo)
            runner.run(serve(world))
    except (WorldFailed, AssetsMissing, KubeError, JoinError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


async def serve(world: World) -> None:
    """Run the world until somebody says that it is enough."""
    view = view_of_terminal()
    if view is not None:
        world = replace(world, say=view.say, begin=view.begin, happened=view.happened)
    with suppress(asyncio.CancelledError):
        cancelled_by(STOPPING)
        async with world.at_work() as kept:
            lines = lines_to_copy(world.kubeconfig(), find_kubectl() or "tapestry k")
            if view is not None:
                async with world.client(VIRTUAL) as virtual:
                    await view.run(virtual, lines)
            introduction = INTRODUCTION.format(counted(kept.clusters, "physical cluster"))
            click.echo("\n".join(["", introduction, "", *(f"  {each}" for each in lines)]))
            click.echo(f"\n{ENDING}\n")
            await asyncio.Event().wait()


def cancelled_by(numbers: Iterable[signal.Signals]) -> None:
    """Have the task that runs cancelled by the first of these signals; the others find that seen to."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def stop() -> None:
        if not this.cancelling():
            this.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


@click.command(epilog=manual("tapestry down", "tapestry down --purge"))
@DATA
@click.option("--purge", is_flag=True, help="Delete the folder, with everything in it.")
def down(data: Path, purge: bool) -> None:
    """Stop the world that `tapestry up` runs there, and with --purge forget it."""
    world = World(data.absolute())
    click.echo("stopped" if world.stop_running() else "nothing was running")
    try:
        if purge and world.home.delete():
            click.echo(f"deleted {data}")
    except WorldFailed as error:
        raise click.ClickException(str(error)) from error
