"""`tapestry demo`: automatic tour of joining, leasing and reclaiming."""

import asyncio
import tempfile
import time
from pathlib import Path

import click
import uvloop

from tapestry.cli.help_text import help_epilog
from tapestry.kube.errors import KubeError
from tapestry.local.demo import Demo
from tapestry.local.world import WorldError
from tapestry.manager.join_steps import JoinError


@click.command(epilog=help_epilog("tapestry demo", "tapestry demo --pace 1"))
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
