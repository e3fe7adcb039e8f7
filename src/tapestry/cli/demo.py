"""`tapestry demo`: the story of Tapestry, played by itself."""

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
    help="Seconds to read a sentence.",
)
def demo(pace: float) -> None:
    """Play a story in a world of its own, which is gone afterwards: clusters join, lend, and take back."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tapestry-demo-") as folder:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(Demo(Path(folder), click.echo, pace).run_steps())
        except (WorldError, KubeError, JoinError, TimeoutError, OSError) as error:
            raise click.ClickException(str(error) or "the story did not go on in time") from error
    seconds = time.monotonic() - started
    click.echo(f"\nThat took {seconds:.0f} s, and nothing of it is left.  `tapestry up` is yours to try.")
