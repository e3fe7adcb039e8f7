"""`tapestry syncer`: the process that works for one ClusterBinding."""

import os
from pathlib import Path
from typing import Any

import click

from tapestry.cli.processes import run_process, with_flags
from tapestry.syncer.app import run_syncer
from tapestry.syncer.config import SyncerConfig


@click.command()
@click.option("--binding", help="The ClusterBinding to work for.")
@click.option("--time-zone", help="Of windows that name none. [default: UTC]")
@with_flags
def syncer(binding: str | None, time_zone: str | None, **flags: Any) -> None:
    """Lease the nodes of one physical cluster, until told to stop or unbound."""
    own = {"binding": binding, "timeZone": time_zone}
    run_process(SyncerConfig, flags, own, lambda config: run_syncer(config, os.environ, Path.home()))
