"""`tapestry up`, `down`, `add`, `remove` and `demo`: the local world and its clusters."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop

from tapestry.cli.cluster_access import WORLD_FOLDER
from tapestry.cli.help_text import command
from tapestry.cli.live_view import terminal_view
from tapestry.inspect.screen import STOP_HINT
from tapestry.inspect.tables import plural_text
from tapestry.kube.errors import KubeError
from tapestry.local.cluster import MAX_NODES
from tapestry.local.demo import Demo
from tapestry.local.kubernetes import AssetsMissing, find_kubectl
from tapestry.local.world import TAPESTRY_PROGRAM, VIRTUAL, World, WorldError, add_cluster, has_binding, remove_cluster
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


def example_commands(kubeconfig: Path, kubectl: str, service_config: Path | None) -> list[str]:
    config = shlex.quote(str(service_config))
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
        *([f"tapestry vc create blue --config {config}"] if service_config else []),
        *([f"tapestry vc connect blue --config {config} -- {kubectl} run web --image nginx"] if service_config else []),
    ]


@command("tapestry up", "tapestry up --clusters 3 --nodes 100", zero="stopped, with all its processes")
@click.option("--clusters", type=click.IntRange(min=1), help="Number of physical clusters. [default: as before, or 2]")
@click.option(
    "--nodes", type=click.IntRange(min=0, max=MAX_NODES), help="Simulated nodes per cluster. [default: as before, or 5]"
)
@click.option(
    "--real-kubernetes",
    is_flag=True,
    help="Run every cluster with kube-apiserver, etcd and Kubernetes' own components.",
)
@click.option(
    "--run-pods",
    is_flag=True,
    help="Add a node to the first cluster that runs the commands of pods as processes, as your user.",
)
@DATA_OPTION
def up(clusters: int | None, nodes: int | None, real_kubernetes: bool, run_pods: bool, data: Path) -> None:
    """Run a virtual cluster and the physical clusters that it leases from, until Ctrl-C.

    An existing world keeps its data; clusters and nodes can be added. The lifecycle service of virtual clusters runs,
    too; their pods run on the nodes that the compute cluster leases.
    """
    logs.configure("error")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            world = World(data.absolute(), clusters, nodes, real_kubernetes, run_pods, has_service=True)
            runner.run(serve(replace(world, report=click.echo, report_event=click.echo)))
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
            service_config = world.service.client_config if world.runs_service else None
            lines = example_commands(world.kubeconfig(), find_kubectl() or "tapestry k", service_config)
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


@command("tapestry down", "tapestry down --purge")
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


PROGRESS_MIN_NODES, PROGRESS_STEP = 100, 50
"""Smallest number of nodes for which progress is shown, and the number of nodes between updates."""
T = TypeVar("T")


@command("tapestry add west", "tapestry add west --nodes 20")
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


@command("tapestry remove west")
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


@command("tapestry demo", "tapestry demo --pace 1")
@click.option(
    "--pace",
    type=click.FloatRange(min=0, max=30),
    default=5.0,
    show_default=True,
    help="Seconds to pause after each sentence.",
)
def demo(pace: float) -> None:
    """Show in a temporary world how clusters join, lease capacity and reclaim it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tapestry-demo-") as folder:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(Demo(Path(folder), click.echo, pace).run_steps())
        except (WorldError, KubeError, JoinError, TimeoutError, OSError) as error:
            raise click.ClickException(str(error) or "the demo timed out") from error
    seconds = time.monotonic() - started
    click.echo(f"\nThe demo took {seconds:.0f} s and left nothing behind.  Run `tapestry up` to try it yourself.")
