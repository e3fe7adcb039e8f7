"""Access of commands to the lifecycle service: its address and credentials, output, and progress of operations."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tapestry.cli.cluster_access import (
    COMPLETION_TIMEOUT,
    Completer,
    completer_for,
    local_world,
    print_result,
    run_async,
    with_output,
)
from tapestry.client.access import Access, CredentialEnvironment, access_from_entries
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig_entries import Cluster, Entry, User
from tapestry.inspect.tables import fitted_table, table
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import parse_duration
from tapestry.process.config import ConfigError, Section, load_config

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

CONFIG_FILE = Path(".config/tapestry/service.yaml")
"""Default configuration file, in the home folder."""

OTHER_USERS = 0o077
"""Bits of a file mode for all users but the owner."""

Work = Callable[..., Coroutine[Any, Any, None]]


class ServiceConfig(Section, frozen=True):
    """Address of the lifecycle service and credentials for it. File names are relative to the current folder."""

    server: str = ""
    key: str = ""
    """Access key."""
    certificate_authority: str = ""
    client_certificate: str = ""
    client_key: str = ""
    namespace: str = "default"
    """Namespace of virtual clusters, if a command names none."""


SERVICE_OPTIONS = (
    click.option(
        "--server", help="URL of the lifecycle service. [default: TAPESTRY_SERVER, or that in the configuration file]"
    ),
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="YAML file with server, key, certificateAuthority, clientCertificate, clientKey and namespace, which only "
        "its owner may read. Variables such as TAPESTRY_KEY override it. "
        f"[default: that of the world in this folder, or ~/{CONFIG_FILE}]",
    ),
)
VCLUSTER_NAMESPACE = click.option(
    "--namespace", "-n", help="Namespace of the virtual cluster. [default: that of the configuration, or default]"
)
WAIT_OPTION = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Show the steps of the operation until it has ended."
)
TIMEOUT_OPTION = click.option("--timeout", default="5m", show_default=True, help="Time to wait, for example 30s or 5m.")
RESULT_OUTPUT = with_output("table", "wide", "json", "yaml")


def service_config(config: Path | None, server: str | None) -> ServiceConfig:
    """Return the configuration from the options, the environment and the file. Raises ConfigError."""
    default = Path.home() / CONFIG_FILE
    file = config or local_world_config(server) or (default if default.exists() else None)
    if file is not None and file.exists() and file.stat().st_mode & OTHER_USERS:
        raise ConfigError(f"{file}: other users may read it; run `chmod 600 {file}`, because it may have a key")
    found = load_config(ServiceConfig, file=file, environ=os.environ, flags={"server": server})
    if not found.server:
        raise ConfigError(
            f"no lifecycle service: give --server, or set TAPESTRY_SERVER, or write ~/{CONFIG_FILE}, "
            "or go to the folder of a world that `tapestry up` runs"
        )
    return found


def local_world_config(server: str | None) -> Path | None:
    """Return the configuration for the service of the world in this folder, unless another address is given.

    Raises ConfigError if that world is not running, instead of falling back to another service.
    """
    world = None if server or os.environ.get("TAPESTRY_SERVER") else local_world()
    if world is None or not world.service_config.exists():
        return None
    if world.running_pid() is None:
        raise ConfigError(f"the world in {world.path} is not running; `tapestry up` starts it, --server names another")
    return world.service_config


def service_access(config: ServiceConfig) -> Access:
    """Return the access to the service. Raises KubeconfigError."""
    cluster = Cluster(server=config.server, certificate_authority=config.certificate_authority)
    user = User(client_certificate=config.client_certificate, client_key=config.client_key, token=config.key)
    origin, folder = "lifecycle service", Path.cwd()
    return access_from_entries(
        Entry(cluster, origin, folder), Entry(user, origin, folder), "default", CredentialEnvironment()
    )


def open_service(config: ServiceConfig) -> "ServiceClient":
    """Return a client of the service; use it as a context manager. Raises ConfigError if packages are missing."""
    try:
        from tapestry.vclusters.client import ServiceClient
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this command needs {error.name}; install it with: pip install 'kube-tapestry[service]'"
        ) from error
    return ServiceClient(HttpTransport(service_access(config)))


def with_service(work: Work) -> Callable[..., None]:
    """Turn a coroutine that takes a ServiceClient into a command.

    The coroutine gets the VCluster in the file of `--file`, if the command has that option, and a namespace: that of
    the option, of the file, or of the configuration.
    """

    @wraps(work)
    def run_command(server: str | None, config: Path | None, **own: Any) -> None:
        run_async(run_with_service(work, config, server, own))

    command: Callable[..., None] = run_command
    for option in reversed(SERVICE_OPTIONS):
        command = option(command)
    return command


async def run_with_service(work: Work, config: Path | None, server: str | None, own: dict[str, Any]) -> None:
    """Run the work of a command. Raises ClickException with a one-line message."""
    settings = service_config(config, server)
    if "file" in own:
        own["file"] = manifest(own["file"]) if own["file"] else {}
    if "namespace" in own:
        in_file = value_at(own.get("file"), "metadata", "namespace")
        own["namespace"] = own["namespace"] or in_file or settings.namespace
    client = open_service(settings)
    from tapestry.vclusters.errors import ServiceError

    try:
        async with client:
            await work(client, **own)
    except ServiceError as error:
        raise click.ClickException(error_line(error)) from error
    except TransportError as error:
        raise click.ClickException(" ".join(str(error).split())) from error


def manifest(file: str) -> Object:
    """Return the VCluster in a file, or in standard input for `-`. Raises ClickException."""
    import yaml

    try:
        with click.open_file(file, "rb") as stream:
            found = yaml.safe_load(stream)
    except (yaml.YAMLError, ValueError) as error:
        raise click.ClickException(f"{file} is not one YAML document") from error
    if not isinstance(found, dict) or found.get("kind") != "VCluster":
        raise click.ClickException(f"{file} must have one object of the kind VCluster")
    return found


def error_line(error: Any) -> str:
    """Return the message of a ServiceError with its reason."""
    message = " ".join(error.message.split())
    return f"{message} ({error.reason})" if error.reason else message


def service_completer(method: str, field: str, **fields: Any) -> Completer:
    """Return a completer for a field of the items of a list. It respects the options given so far."""

    async def values(context: click.Context) -> list[str]:
        given = context.params
        settings = service_config(given.get("config"), given.get("server"))
        chosen = dict(fields)
        if method == "ListVClusters":
            chosen["namespace"] = given.get("namespace") or settings.namespace
        async with asyncio.timeout(COMPLETION_TIMEOUT), open_service(settings) as client:
            return [each[field] async for each in client.items(method, **chosen)]

    return completer_for(values)


def assignments(_: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not name or not sign:
            raise click.UsageError(f"{option.opts[0]}: {text!r} is not NAME=VALUE")
        found[name] = value
    return found


# -- output


def print_items(items: list[Object], output: str, columns: Mapping[str, Any], none: str) -> None:
    """Print a list. `columns` has the path of a field by its title; titles in lower case are for the wide table."""
    header = [each for each in columns if each.isupper()]
    rest = [each for each in columns if not each.isupper()]

    def text(wide: bool) -> str:
        if not items:
            return none
        titles = [*header, *(rest if wide else ())]
        rows = [[cell(each, columns[title]) for title in titles] for each in items]
        titles = [title.upper() for title in titles]
        return table(titles, rows) if wide else fitted_table(titles, rows, (), titles[-1])

    print_result(items, output, text)


def print_object(item: Object, output: str, columns: Mapping[str, Any]) -> None:
    """Print one object: as a table with one row, or with all its fields."""
    if output in ("json", "yaml"):
        print_result(item, output, lambda _: "")
    else:
        print_items([item], output, columns, "")


def cell(item: Object, column: Any) -> object:
    return column(item) if callable(column) else value_at(item, *column.split("."), default="")


# -- operations


def step_reporter() -> Callable[[Object], None]:
    """Return a function that prints each change of the steps of an operation to stderr."""
    reported: dict[str, tuple[str, str]] = {}

    def report(operation: Object) -> None:
        for step in operation.get("steps", ()):
            state = step.get("state", ""), step.get("error", "")
            if step["name"] not in reported and state[0] == "Pending":
                continue
            if reported.get(step["name"]) == state:
                continue
            reported[step["name"]] = state
            attempt = f", attempt {step['attempt']}" if step.get("attempt", 1) > 1 else ""
            error = f": {' '.join(state[1].split())}" if state[1] else ""
            click.echo(
                f"  {operation.get('progressPercent', 0):3}% {step['name']}: {state[0]}{attempt}{error}", err=True
            )

    return report


async def finish_operation(client: "ServiceClient", response: Object, *, wait: bool, timeout: str) -> Object:
    """Show the steps of the operation of a response until it has ended, and return it. Raises ServiceError if it fails.

    An answer without an operation has changed nothing. Without waiting, the operation is empty, too.
    """
    operation = response.get("operationId", "")
    if not operation:
        return {}
    if not wait:
        click.echo(f"operation {operation} runs; `tapestry op wait {operation}` waits for it", err=True)
        return {}
    seconds = parse_duration(timeout, "--timeout").total_seconds()
    try:
        return await client.wait_for_operation(operation, seconds, step_reporter())
    except TimeoutError:
        raise click.ClickException(
            f"operation {operation} still runs after {timeout}; `tapestry op wait {operation}` waits for it"
        ) from None


def phase_of(vcluster: Object) -> str:
    """Return the phase as the management API writes it: Running for PHASE_RUNNING."""
    return str(value_at(vcluster, "status", "phase", default="")).removeprefix("PHASE_").capitalize()
