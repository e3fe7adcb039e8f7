"""Access to clusters for short-lived commands: options, completion of names, output and errors."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import KubeconfigError, NoKubeconfig, default_access, load_access
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, QueryError
from tapestry.kube.errors import ApiError, KubeError, TransportError
from tapestry.kube.objects import name_of
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.local.world_folder import VIRTUAL as WORLD_ABOVE
from tapestry.local.world_folder import WorldFolder
from tapestry.manager.join_steps import JoinError
from tapestry.manager.validation import BindingError
from tapestry.syncer.windows import WindowError, zone_named

FORMATS = ("table", "wide", "json", "yaml")
COMPLETION_TIMEOUT = 1.0
"""Longest time in seconds that completion makes the user wait."""

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def name_completer(resource: Resource, labels: str = "") -> Completer:
    """Return a completer for object names; it respects -n and the cluster options given so far."""

    async def names(context: click.Context) -> list[str]:
        async with completion_client(context) as (client, namespace):
            return await object_names(client, resource, namespace, labels)

    return completer_for(names)


def completer_for(names: Callable[[click.Context], Coroutine[Any, Any, list[str]]]) -> Completer:
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            found = asyncio.run(names(context))
        except Exception:  # noqa: BLE001  completion must not print errors into the command line
            return []
        return [name for name in found if name.startswith(incomplete)]

    return complete


VIRTUAL_CLUSTER_OPTIONS = (
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False),
        help="Kubeconfig of the virtual cluster. [default: KUBECONFIG, the local world, ~/.kube/config, or in-cluster]",
    ),
    click.option("--context", help="Context of the kubeconfig. [default: its current context]"),
)
NAMESPACE_OPTION = click.option(
    "--namespace",
    "-n",
    shell_complete=name_completer(NAMESPACES),
    help="Namespace of the objects. [default: that of the context]",
)
ALL_NAMESPACES_OPTION = click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="Use all namespaces.")
BINDING_OPTION = click.option(
    "--binding", shell_complete=name_completer(CLUSTER_BINDINGS), help="Show only this ClusterBinding."
)


def check_time_zone(_: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """Reject an unknown time zone before any policy is evaluated."""
    if name:
        try:
            zone_named(name, option.opts[0])
        except WindowError as error:
            raise click.UsageError(str(error)) from error
    return name


TIME_ZONE_OPTION = click.option(
    "--time-zone", callback=check_time_zone, help="Time zone of windows without one. [default: that of the syncer]"
)
WORLD_FOLDER = Path(".tapestry")
NOT_RUNNING_HINT = "`tapestry up` starts it, --kubeconfig or KUBECONFIG names another cluster"
FILE_PATH = click.Path(path_type=Path, dir_okay=False)


def with_virtual_cluster(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(VIRTUAL_CLUSTER_OPTIONS):
        command = option(command)
    return command


def virtual_access(kubeconfig: str | None, context: str | None) -> Access:
    file = Path(kubeconfig) if kubeconfig else local_world_kubeconfig()
    try:
        return default_access(file, context, environ=os.environ, home=Path.home())
    except NoKubeconfig as error:
        raise NoKubeconfig(f"{error}, or go to the folder of a world that `tapestry up` runs") from error


def local_world_kubeconfig() -> Path | None:
    """Return the kubeconfig of the world in this folder, unless KUBECONFIG is set.

    If that world is not running, raise an error instead of falling back to another cluster.
    """
    world = None if os.environ.get("KUBECONFIG") else local_world()
    if world is None:
        return None
    if world.running_pid() is None:
        raise KubeconfigError(f"the world in {world.path} is not running; {NOT_RUNNING_HINT}")
    return world.path / WORLD_ABOVE / "kubeconfig"


def local_world() -> WorldFolder | None:
    """Return the world in this folder, running or not, if there is one."""
    return WorldFolder(WORLD_FOLDER.absolute()) if (WORLD_FOLDER / "pid").exists() else None


def physical_access(kubeconfig: Path, context: str | None) -> Access:
    return load_access([kubeconfig], context, environ=os.environ)


def open_client(access: Access) -> Client:
    """Return a client; use it as a context manager to close it."""
    return Client(HttpTransport(access))


def with_output(*formats: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the option `-o` with these formats."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of the output.",
    )


def print_result(values: Any, output: str, text: Callable[[bool], str]) -> None:
    """Print `values`; `text` renders the table, and its argument selects the wide one."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(values), indent=2).decode())
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(values), sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(text(output == "wide"))


QueryOutput = tuple[Any, Callable[[bool], str]]
"""Values, and a function that renders them as text; its argument selects the wide format."""


def query_command(
    *formats: str, with_time_zone: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, QueryOutput]]], Any]:
    """Turn a coroutine that takes `Queries` and the command's arguments into a command that prints the result.

    The command gets the options for the virtual cluster and the output format.
    """

    def decorator(query: Callable[..., Coroutine[Any, Any, QueryOutput]]) -> Any:
        @wraps(query)
        def command(
            output: str, kubeconfig: str | None, context: str | None, time_zone: str | None = None, **own: Any
        ) -> None:
            async def run_query() -> None:
                access = virtual_access(kubeconfig, context)
                async with open_client(access) as client:
                    queries = Queries(client, HttpTransport, datetime.now(UTC), time_zone, access.namespace)
                    values, text = await query(queries, **own)
                print_result(values, output, text)

            run_async(run_query())

        with_cluster = with_virtual_cluster(command)
        return with_output(*formats)(TIME_ZONE_OPTION(with_cluster) if with_time_zone else with_cluster)

    return decorator


def run_async(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except BrokenPipeError:  # the reader closed the pipe; click exits quietly
        raise
    except TransportError as error:
        raise click.ClickException(
            f"{' '.join(str(error).split())}; `tapestry doctor` checks the connection"
        ) from error
    except (KubeError, JoinError, BindingError, QueryError, ClusterUnreadable, ValueError, OSError) as error:
        raise click.ClickException(error_message(error)) from error


def error_message(error: Exception) -> str:
    """Return a one-line error text, with the server's own message if there is one."""
    if not isinstance(error, ApiError) or not error.message:
        return " ".join(str(error).split())
    message = " ".join(error.message.split())
    return message if error.reason in ("", "Unknown") else f"{message} ({error.reason})"


@asynccontextmanager
async def completion_client(context: click.Context) -> AsyncIterator[tuple[Client, str]]:
    """Open the selected cluster for at most `COMPLETION_TIMEOUT`; yield its client and the namespace."""
    given = context.params
    access = virtual_access(given.get("kubeconfig"), given.get("context"))
    async with asyncio.timeout(COMPLETION_TIMEOUT), open_client(access) as client:
        yield client, given.get("namespace") or access.namespace


async def object_names(client: Client, resource: Resource, namespace: str, labels: str = "") -> list[str]:
    place = namespace if resource.namespaced else None
    pages = client.pages(resource, place, labels=labels, only_metadata=True)
    return [name_of(each) async for page in pages for each in page.items]
