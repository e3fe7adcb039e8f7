"""Opening clusters for a command that asks or changes something and ends; what goes wrong is one line."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import default_access, load
from tapestry.inspect.facts import Unknown
from tapestry.inspect.questions import Questions
from tapestry.kube.errors import KubeError
from tapestry.manager.faults import Fault
from tapestry.manager.steps import JoinError

VIRTUAL = (
    click.option("--kubeconfig", help="The virtual cluster; else KUBECONFIG, ~/.kube/config or the pod's own account."),
    click.option("--context", help="A context of the kubeconfig."),
)
FILE = click.Path(path_type=Path, dir_okay=False)


def with_virtual_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which virtual cluster is meant."""
    for option in reversed(VIRTUAL):
        command = option(command)
    return command


def virtual_access(kubeconfig: str | None, context: str | None) -> Access:
    file = Path(kubeconfig) if kubeconfig else None
    return default_access(file, context, environ=os.environ, home=Path.home())


def physical_access(kubeconfig: Path, context: str | None) -> Access:
    return load([kubeconfig], context, environ=os.environ)


@asynccontextmanager
async def opened(access: Access) -> AsyncIterator[Client]:
    client = Client(HttpTransport(access))
    try:
        yield client
    finally:
        await client.close()


def with_zone(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--time-zone", default="UTC", show_default=True, help="Of windows that name none, as the syncer has it."
    )(command)


@asynccontextmanager
async def asking(
    kubeconfig: str | None, context: str | None, now: datetime, zone: str = "UTC"
) -> AsyncIterator[Questions]:
    """Questions about the world at the moment `now`."""
    async with opened(virtual_access(kubeconfig, context)) as client:
        yield Questions(client, HttpTransport, zone, now)


def finished(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end."""
    try:
        asyncio.run(work)
    except (KubeError, JoinError, Fault, Unknown, ValueError, OSError) as error:
        raise click.ClickException(" ".join(str(error).split())) from error
