"""`tapestry up`: a small world on this machine."""

import os
from pathlib import Path

import click

from tapestry.cli.registry import the_registry
from tapestry.local.kubernetes import AssetsMissing, ControlPlaneFailed
from tapestry.local.up import up as run_up


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".tapestry"),
    show_default=True,
    help="The folder for everything that lasts: objects, certificates, logs.",
)
def up(data: Path) -> None:
    """Run what exists of Tapestry on this machine until Ctrl-C, and say what to try."""
    try:
        run_up(the_registry(), data, os.environ, click.echo)
    except (AssetsMissing, ControlPlaneFailed) as error:
        raise click.ClickException(str(error)) from error
