"""Access of commands to the management API of planes."""

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from tapestry.apis.planes import PLANES
from tapestry.cli.cluster_access import (
    COMPLETION_TIMEOUT,
    Completer,
    completer_for,
    local_world,
    object_names,
    open_client,
)
from tapestry.client.client import Client
from tapestry.client.kubeconfig import KubeconfigError, default_access
from tapestry.client.transport import Request
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.kube.resources import Resource

DATA_FOLDER = Path("tapestry-planes")
KUBECONFIG_FILE = "kubeconfig"
MANAGEMENT_OPTIONS = (
    click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=DATA_FOLDER,
        show_default=True,
        help="Data folder of `tapestry planes run`, which has a kubeconfig of the management API.",
    ),
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False),
        help="Kubeconfig of the management API. [default: that in the data folder]",
    ),
    click.option("--context", help="Context of the kubeconfig. [default: its current context]"),
)

Connect = Callable[[], Client]
"""Open a client of the management API."""


def with_management_api(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the management API to a command, which gets `connect` instead of them."""

    @wraps(function)
    def run_command(data: Path, kubeconfig: str | None, context: str | None, **arguments: Any) -> None:
        function(connect=partial(management_client, data, kubeconfig, context), **arguments)

    command = run_command
    for option in reversed(MANAGEMENT_OPTIONS):
        command = option(command)
    return command


def management_client(data: Path, kubeconfig: str | None, context: str | None) -> Client:
    """Return a client of the management API. Raises KubeconfigError if none runs in the data folder."""
    if data == DATA_FOLDER and not data.exists() and (world := local_world()) is not None:
        data = world.planes_folder
    file = Path(kubeconfig) if kubeconfig else data / KUBECONFIG_FILE
    if not file.exists():
        raise KubeconfigError(
            f"{file} does not exist; start the planes with `tapestry planes run --data {data}`, or give --kubeconfig"
        )
    return open_client(default_access(file, context, environ=os.environ, home=Path.home()))


def completer_of(resource: Resource) -> Completer:
    """Return a completer for names of objects of the management API."""

    async def names(context: click.Context) -> list[str]:
        given = context.params
        client = management_client(given.get("data") or DATA_FOLDER, given.get("kubeconfig"), given.get("context"))
        async with asyncio.timeout(COMPLETION_TIMEOUT), client:
            return await object_names(client, resource, "")

    return completer_for(names)


complete_plane = completer_of(PLANES)
NAME = click.argument("name", shell_complete=complete_plane)


async def call_plane(
    client: Client, method: str, name: str, interface: str, arguments: Mapping[str, Any] = EMPTY_MAPPING
) -> Any:
    """Call an HTTP interface of a plane and return its result. Raises ClickException with the reason."""
    await client.get(PLANES, name)
    body = msgspec.json.encode(arguments) if method == "POST" else b""
    response = await client.transport.send(Request(method, f"/apiext/v1/planes/{name}/{interface}", {}, body))
    result = msgspec.json.decode(response.body) if response.body else None
    if response.status >= 400:
        raise click.ClickException((result or {}).get("message", "the request was rejected"))
    return result
