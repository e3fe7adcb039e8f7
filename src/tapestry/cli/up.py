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
    help="The folder for everything that lasts: objects, certificates, logs.",
)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTRODUCTION = "A compute cluster woven from {} is at work.  In another terminal:"


def example_commands(kubeconfig: Path, kubectl: str) -> list[str]:
    # `make up` runs the program in .venv, which a shell does not find by itself
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
    epilog=help_epilog(
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
@DATA_OPTION
def up(clusters: int | None, nodes: int | None, real_kubernetes: bool, data: Path) -> None:
    """Run a virtual cluster and the physical clusters that it leases from, until Ctrl-C.

    A world that is there already keeps what it has; more clusters and nodes can be had.
    """
    logs.configure("error")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            world = World(data.absolute(), clusters, nodes, real_kubernetes, report=click.echo, report_event=click.echo)
            runner.run(serve(world))
    except (WorldError, AssetsMissing, KubeError, JoinError, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


async def serve(world: World) -> None:
    """Run the world until somebody says that it is enough."""
    view = terminal_view()
    if view is not None:
        world = replace(world, report=view.print_line, report_start=view.show_step, report_event=view.add_note)
    with suppress(asyncio.CancelledError):
        cancel_on_signals(STOP_SIGNALS)
        async with world.run() as kept:
            lines = example_commands(world.kubeconfig(), find_kubectl() or "tapestry k")
            if view is not None:
                async with world.client(VIRTUAL) as virtual:
                    await view.run(virtual, lines)
            introduction = INTRODUCTION.format(plural_text(kept.clusters, "physical cluster"))
            click.echo("\n".join(["", introduction, "", *(f"  {each}" for each in lines)]))
            click.echo(f"\n{STOP_HINT}\n")
            await asyncio.Event().wait()


def cancel_on_signals(numbers: Iterable[signal.Signals]) -> None:
    """Have the task that runs cancelled by the first of these signals; the others find that seen to."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None

    def stop() -> None:
        if not this.cancelling():
            this.cancel()

    for number in numbers:
        loop.add_signal_handler(number, stop)


@click.command(epilog=help_epilog("tapestry down", "tapestry down --purge"))
@DATA_OPTION
@click.option("--purge", is_flag=True, help="Delete the folder, with everything in it.")
def down(data: Path, purge: bool) -> None:
    """Stop the world that `tapestry up` runs there, and with --purge forget it."""
    world = World(data.absolute())
    click.echo("stopped" if world.stop_running() else "nothing was running")
    try:
        if purge and world.world_folder.delete():
            click.echo(f"deleted {data}")
    except WorldError as error:
        raise click.ClickException(str(error)) from error
