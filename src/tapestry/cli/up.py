"""`tapestry up` and `tapestry down`: a world on this machine, and its end."""

import asyncio
import shutil
import signal
from pathlib import Path

import click
import uvloop

from tapestry.cli.clusters import HERE
from tapestry.local.kubernetes import find_kubectl
from tapestry.local.world import World, WorldFailed

DATA = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=HERE,
    show_default=True,
    help="The folder for everything that lasts: objects, certificates, logs.",
)
STOPPING = (signal.SIGTERM, signal.SIGINT)
LINES = """
A compute cluster woven from {clusters} physical ones is at work.  In another terminal:

  export KUBECONFIG={kubeconfig}
  {kubectl} get nodes
  {kubectl} create deployment web --image nginx --replicas 20
  {kubectl} get pods -o wide
  tapestry status
  tapestry tree

Ctrl-C stops everything; the next `tapestry up` finds it as it was.
"""


@click.command()
@click.option("--clusters", type=click.IntRange(min=1), default=2, show_default=True, help="Physical clusters.")
@click.option("--nodes", type=click.IntRange(min=0), default=5, show_default=True, help="Simulated nodes of each.")
@DATA
def up(clusters: int, nodes: int, data: Path) -> None:
    """Run a virtual cluster and the physical clusters that it leases from, until Ctrl-C."""
    world = World(data.absolute(), clusters, nodes, click.echo)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(world))
    except (WorldFailed, OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


async def serve(world: World) -> None:
    """Run the world until somebody says that it is enough."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    for number in STOPPING:
        loop.add_signal_handler(number, this.cancel)
    try:
        await world.start()
        kubectl = find_kubectl() or "tapestry k"
        click.echo(LINES.format(clusters=world.clusters, kubeconfig=world.kubeconfig(), kubectl=kubectl))
        ended = await asyncio.to_thread(world.wait)
        raise WorldFailed(f"{ended} ended by itself; its log is in {world.folder}")
    except asyncio.CancelledError:
        for number in STOPPING:
            loop.add_signal_handler(number, lambda: None)  # it is being seen to
    finally:
        with world.step("stopping"):
            await asyncio.to_thread(world.stop)


@click.command()
@DATA
@click.option("--purge", is_flag=True, help="Delete the folder, with everything in it.")
def down(data: Path, purge: bool) -> None:
    """Stop the world that `tapestry up` runs there, and with --purge forget it."""
    stopped = World(data.absolute()).stop_running()
    click.echo("stopped" if stopped else "nothing was running")
    if purge and data.exists():
        shutil.rmtree(data)
        click.echo(f"deleted {data}")
