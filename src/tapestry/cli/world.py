"""`tapestry up` and `tapestry down`: start and stop the local world."""

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

from tapestry.cli.cluster_access import WORLD_FOLDER
from tapestry.cli.help_text import help_epilog
from tapestry.cli.live_view import terminal_view
from tapestry.inspect.screen import STOP_HINT
from tapestry.inspect.tables import plural_text
from tapestry.kube.errors import KubeError
from tapestry.local.cluster import MAX_NODES
from tapestry.local.kubernetes import AssetsMissing, find_kubectl
from tapestry.local.world import TAPESTRY_PROGRAM, VIRTUAL, World, WorldError
from tapestry.manager.join_steps import JoinError
from tapestry.process import logs

DATA_OPTION = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=WORLD_FOLDER,
    show_default=True,
    help="Data folder of the world: objects, certificates and logs.",
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTRODUCTION = "A compute cluster woven from {} is running.  In another terminal:"


def example_commands(kubeconfig: Path, kubectl: str) -> list[str]:
    # `make up` runs the program in .venv, which is not in the PATH
    own = (
        []
        if shutil.which(TAPESTRY_PROGRAM.name)
        else [f'export PATH={shlex.quote(str(TAPESTRY_PROGRAM.parent))}:"$PATH"']
    )
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
    epilog=help_epilog("tapestry up", "tapestry up --clusters 3 --nodes 100", zero="stopped, with all its processes")
)
@click.option("--clusters", type=click.IntRange(min=1), help="Number of physical clusters. [default: as before, or 2]")
@click.option(
    "--nodes", type=click.IntRange(min=0, max=MAX_NODES), help="Simulated nodes per cluster. [default: as before, or 5]"
)
@click.option(
    "--real-kubernetes",
    is_flag=True,
    help="Run every cluster with kube-apiserver, etcd and Kubernetes' own components.",
)
@DATA_OPTION
def up(clusters: int | None, nodes: int | None, real_kubernetes: bool, data: Path) -> None:
    """Run a virtual cluster and the physical clusters that it leases from, until Ctrl-C.

    An existing world keeps its data; clusters and nodes can be added.
    """
    logs.configure("error")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            world = World(data.absolute(), clusters, nodes, real_kubernetes, report=click.echo, report_event=click.echo)
            runner.run(serve(world))
    except (WorldError, AssetsMissing, KubeError, JoinError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


async def serve(world: World) -> None:
    """Run the world until cancelled or signalled."""
    view = terminal_view()
    if view is not None:
        world = replace(world, report=view.print_line, report_start=view.show_step, report_event=view.add_note)
    with suppress(asyncio.CancelledError):
        cancel_on_signals(STOP_SIGNALS)
        async with world.run() as plan:
            lines = example_commands(world.kubeconfig(), find_kubectl() or "tapestry k")
            if view is not None:
                async with world.client(VIRTUAL) as virtual:
                    await view.run(virtual, lines)
            introduction = INTRODUCTION.format(plural_text(plan.clusters, "physical cluster"))
            click.echo("\n".join(["", introduction, "", *(f"  {each}" for each in lines)]))
            click.echo(f"\n{STOP_HINT}\n")
            await asyncio.Event().wait()


def cancel_on_signals(numbers: Iterable[signal.Signals]) -> None:
    """Cancel the current task on the first of these signals; ignore the others."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def stop() -> None:
        if not this.cancelling():
            this.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


@click.command(epilog=help_epilog("tapestry down", "tapestry down --purge"))
@DATA_OPTION
@click.option("--purge", is_flag=True, help="Delete the data folder of the world.")
def down(data: Path, purge: bool) -> None:
    """Stop the world that `tapestry up` runs, and with --purge delete its data."""
    world = World(data.absolute())
    click.echo("stopped" if world.stop_running() else "nothing was running")
    try:
        if purge and world.world_folder.delete():
            click.echo(f"deleted {data}")
    except WorldError as error:
        raise click.ClickException(str(error)) from error
