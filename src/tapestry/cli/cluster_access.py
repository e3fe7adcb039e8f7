"""Opening clusters for a command that asks or changes something and ends; what goes wrong is one line.

Here are also the options that say which cluster, namespace and binding are meant: they are the same everywhere.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.cli.name_completion import name_completer
from tapestry.cli.output import print_result, with_output
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import KubeconfigError, NoKubeconfig, default_access, load_access
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, QueryError
from tapestry.kube.errors import ApiError, KubeError, TransportError
from tapestry.kube.resources import NAMESPACES
from tapestry.local.world_folder import VIRTUAL as WORLD_ABOVE
from tapestry.local.world_folder import WorldFolder
from tapestry.manager.binding_errors import BindingError
from tapestry.manager.join_steps import JoinError
from tapestry.syncer.windows import WindowError, zone_named

VIRTUAL_CLUSTER_OPTIONS = (
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False),
        help="The virtual cluster; else KUBECONFIG, the world in this folder, ~/.kube/config or the pod's own account.",
    ),
    click.option("--context", help="A context of the kubeconfig."),
)
NAMESPACE_OPTION = click.option(
    "--namespace", "-n", shell_complete=name_completer(NAMESPACES), help="The namespace. [default: that of the context]"
)
ALL_NAMESPACES_OPTION = click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="In all namespaces.")
BINDING_OPTION = click.option(
    "--binding", shell_complete=name_completer(CLUSTER_BINDINGS), help="Only of this ClusterBinding."
)


def check_time_zone(_: click.Context, option: click.Parameter, name: str | None) -> str | None:
    """A policy is not to be blamed for a zone that was mistyped here."""
    if name:
        try:
            zone_named(name, option.opts[0])
        except WindowError as error:
            raise click.UsageError(str(error)) from error
    return name


TIME_ZONE_OPTION = click.option(
    "--time-zone", callback=check_time_zone, help="Of windows that name none. [default: that of the syncer]"
)
WORLD_FOLDER = Path(".tapestry")
"""Where `tapestry up` keeps its world."""
NOT_RUNNING_HINT = "`tapestry up` starts it, --kubeconfig or KUBECONFIG names another cluster"
FILE_PATH = click.Path(path_type=Path, dir_okay=False)


def with_virtual_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which virtual cluster is meant."""
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
    """The virtual cluster of the world in this folder, unless KUBECONFIG names another.

    Where that does not run, no other cluster is taken for it: what is meant for a world here might be done to yours.
    """
    if os.environ.get("KUBECONFIG") or not (WORLD_FOLDER / "pid").exists():
        return None
    world = WorldFolder(WORLD_FOLDER.absolute())
    if world.running_pid() is None:
        raise KubeconfigError(f"the world in {world.path} is not running; {NOT_RUNNING_HINT}")
    return world.path / WORLD_ABOVE / "kubeconfig"


def physical_access(kubeconfig: Path, context: str | None) -> Access:
    return load_access([kubeconfig], context, environ=os.environ)


def open_client(access: Access) -> Client:
    """To be used as a context, with which it is closed."""
    return Client(HttpTransport(access))


QueryOutput = tuple[Any, Callable[[bool], str]]
"""Values, and the text that shows them: a wide one where it is told so."""


def query_command(
    *formats: str, with_time_zone: bool = False
) -> Callable[[Callable[..., Coroutine[Any, Any, QueryOutput]]], Any]:
    """A command of a coroutine that is given `Questions` and the command's own arguments, and answers.

    It gets the options that say which virtual cluster is meant and how to print the answer, which is then printed.
    """

    def command_of(ask: Callable[..., Coroutine[Any, Any, QueryOutput]]) -> Any:
        @wraps(ask)
        def command(
            output: str, kubeconfig: str | None, context: str | None, time_zone: str | None = None, **own: Any
        ) -> None:
            async def show() -> None:
                access = virtual_access(kubeconfig, context)
                async with open_client(access) as client:
                    questions = Queries(client, HttpTransport, datetime.now(UTC), time_zone, access.namespace)
                    values, text = await ask(questions, **own)
                print_result(values, output, text)

            run_async(show())

        found = with_virtual_cluster(command)
        return with_output(*formats)(TIME_ZONE_OPTION(found) if with_time_zone else found)

    return command_of


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end."""
    try:
        asyncio.run(work)
    except BrokenPipeError:  # whoever reads has enough, which click takes well
        raise
    except TransportError as error:
        raise click.ClickException(f"{' '.join(str(error).split())}; `tapestry doctor` looks further") from error
    except (KubeError, JoinError, BindingError, QueryError, ClusterUnreadable, ValueError, OSError) as error:
        raise click.ClickException(error_message(error)) from error


def error_message(error: Exception) -> str:
    """An error in one line, in the server's own words where it has any: nobody asked about paths and codes."""
    if not isinstance(error, ApiError) or not error.message:
        return " ".join(str(error).split())
    message = " ".join(error.message.split())
    return message if error.reason in ("", "Unknown") else f"{message} ({error.reason})"
