"""`tapestry planes`: many Kubernetes APIs in one process."""

import gc
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from msgspec import structs

from tapestry.apiext.interfaces import Routes
from tapestry.apiext.requests import ROOT
from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.core.requests import BuildAdmission
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.cli import plane_credentials
from tapestry.cli.cluster_access import print_result, run_async, with_output
from tapestry.cli.help_text import STOPPED, command
from tapestry.cli.management_api import NAME, Connect, complete_plane, with_management_api
from tapestry.cli.mounted_apiext import apiext_handler
from tapestry.cli.plane_credentials import seconds
from tapestry.cli.process_runner import (
    CONFIG,
    SWITCH,
    Flags,
    fault_message,
    settings_from_flags,
    single_exception,
    split_commas,
    with_options,
)
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.inspect.tables import fitted_table, table
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.times import parse_duration
from tapestry.planes.app import PlaneProcess, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.process import logs
from tapestry.process.config import load_config
from tapestry.process.system import return_large_blocks_to_system, stop_event
from tapestry.tenants.app import run_tenants
from tapestry.tenants.plane_deletion import obstacle_to_deletion
from tapestry.vclusters.config import ServiceConfig

EXPECTED_ERRORS = (ValueError, OSError, StorageError)

WAIT_OPTION = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the plane is in the requested state."
)
TIMEOUT_OPTION = click.option(
    "--timeout", default="60s", show_default=True, help="Time to wait, for example 30s or 5m."
)
LIMITS = {
    "max_objects": "objects",
    "max_bytes": "bytes",
    "max_watches": "watches",
    "max_requests": "requestsInFlight",
}
"""Fields of `spec.limits` by the arguments of `tapestry planes create`."""
COLUMNS = ("NAME", "PHASE", "ID", "OBJECTS", "HOLDER", "ADDRESS", "PORT", "MESSAGE")


@click.group()
def planes() -> None:
    """Run, create, suspend, copy and delete planes: Kubernetes APIs that share a process."""


RUN_FLAGS: Flags = {
    "--data": ("data", "Folder of the planes and of the management API. [default: tapestry-planes]"),
    "--name": ("name", "Name of this process among those that share the management API. [default: the host name]"),
    "--bind-address": ("address", "Address to serve HTTPS on. [default: 127.0.0.1:6444]"),
    "--port-range": ("portRange", "Ports for single planes, as FIRST-LAST. Each plane gets one. [default: none]"),
    "--dns-port-range": (
        "dnsPortRange",
        "Ports of DNS resolvers for pods in host clusters, as FIRST-LAST. Each tenant gets one. [default: none]",
    ),
    "--domain": ("domain", "Domain of the planes: a plane is ID.planes.DOMAIN. [default: tapestry.local]"),
    "--server-name": ("serverNames", "Host name or address for the serving certificates. Repeatable."),
    "--backend": ("backend", "Storage of the management API: file or etcd. [default: file]"),
    "--etcd-servers": ("etcd.servers", "Comma-separated URLs of the etcd members."),
    "--etcd-cafile": ("etcd.cafile", "CA file that verifies the etcd members."),
    "--etcd-certfile": ("etcd.certfile", "Client certificate file for etcd."),
    "--etcd-keyfile": ("etcd.keyfile", "Private key file of the client certificate for etcd."),
    "--group-key": ("groupKey", "Key file that seals keys of planes in etcd. [default: one in the data folder]"),
    "--egress-allowed-cidrs": (
        "egressAllowedCidrs",
        "Comma-separated ranges of kubelets and pods, and other ranges that planes may reach in spite of the rules.",
    ),
    "--egress-denied-cidrs": ("egressDeniedCidrs", "Comma-separated ranges that planes must not reach."),
    "--log-level": ("logLevel", "Log level: debug, info, warning or error."),
}
SERVICE_FLAGS: Flags = {
    "--rest-address": ("restAddress", "Address of the service of virtual clusters for REST, as 127.0.0.1:8088."),
    "--grpc-address": ("grpcAddress", "Address of the service of virtual clusters for gRPC, as 127.0.0.1:50051."),
    "--grpc-mtls-address": ("grpcMtlsAddress", "Address of the service for gRPC with client certificates."),
    "--shared-folder": (
        "sharedFolder",
        "Folder for snapshots and audit records, which all processes of a group share. [default: the data folder]",
    ),
    "--client-config": (
        "clientConfig",
        "File that the first start writes for `tapestry vc`, instead of printing the key of the administrator.",
    ),
    "--isolation-mode": ("isolationMode", "Isolation of new virtual clusters that request none: full or lite."),
}
SERVICE_SWITCHES: Flags = {
    "--compat-plaintext": (
        "compatPlaintext",
        "Serve clients of the published contract on this machine without TLS and credentials, with all rights.",
    ),
}
RUN_SWITCHES: Flags = {"--named-only": ("namedOnly", "Hold only planes whose records name this process.")}

LIST_SETTINGS = ("etcd.servers", "egressAllowedCidrs", "egressDeniedCidrs")
"""Settings whose flags are comma-separated lists."""


@command(
    "tapestry planes run --data ./planes",
    "tapestry planes run --bind-address 0.0.0.0:6444 --server-name planes.example.org",
    zero=STOPPED,
    parent=planes,
    name="run",
)
@CONFIG
@with_options(RUN_FLAGS, {"serverNames": {"multiple": True}})
@with_options(RUN_SWITCHES, {"namedOnly": {**SWITCH, "metavar": "[BOOL]"}})
@with_options(SERVICE_FLAGS)
@with_options(SERVICE_SWITCHES, {"compatPlaintext": {**SWITCH, "metavar": "[BOOL]"}})
def run_process(config: Path | None, **flags: Any) -> None:
    """Hold planes until SIGTERM or Ctrl-C: the management API and all planes are on one port.

    A kubeconfig of the management API is written to the data folder.
    """
    given = settings_from_flags(RUN_FLAGS | RUN_SWITCHES, flags)
    given |= {path: split_commas(given[path]) for path in LIST_SETTINGS}
    try:
        settings = load_config(PlanesConfig, file=config, environ=os.environ, flags=given)
        settings = structs.replace(settings, name=settings.name or socket.gethostname().lower())
        service_flags = settings_from_flags(SERVICE_FLAGS | SERVICE_SWITCHES, flags)
        service = load_config(ServiceConfig, file=None, environ={}, flags=service_flags)
        logs.configure(settings.log_level, settings.log_format)
        gc.set_threshold(*GC_THRESHOLDS)
        return_large_blocks_to_system()
        uvloop.run(serve_planes(settings, service))
    except (*EXPECTED_ERRORS, ExceptionGroup) as error:
        fault = single_exception(error)
        if not isinstance(fault, EXPECTED_ERRORS):
            raise
        raise click.ClickException(fault_message(fault)) from error


async def serve_planes(settings: PlanesConfig, service: ServiceConfig) -> None:
    stopping = stop_event()
    command = (sys.executable, "-m", "tapestry.cli.own_process", msgspec.json.encode(service).decode())
    async with run_processes(settings, service, command) as process:
        click.echo(f"planes are served at {process.address}; kubeconfig of the management API:")
        click.echo(f"  {settings.kubeconfig_file}")
        click.echo("Ctrl-C stops them; their data stays")
        await stopping.wait()


@contextmanager
def service_imports() -> Iterator[None]:
    """Raise ValueError if the packages of the service are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        why = f"the service needs {error.name}; install it with: pip install 'kube-tapestry[service]'"
        raise ValueError(why) from error


def admission_of(settings: PlanesConfig, service: ServiceConfig) -> BuildAdmission | None:
    """Return the admission of the management API. Raises ValueError if its packages are not installed."""
    if not service.is_enabled:
        return None
    with service_imports():
        from tapestry.vclusters.app import provided
        from tapestry.vclusters.policy import service_admission
    features = provided(settings, is_compatible=service.compat_plaintext)
    return service_admission(replace(features, isolation_mode=service.isolation_mode))


@asynccontextmanager
async def run_processes(
    settings: PlanesConfig, service: ServiceConfig, own_process_command: Sequence[str] = ()
) -> AsyncIterator[PlaneProcess]:
    """Run planes with tenants, and the service of virtual clusters if it has an address."""
    run = partial(run_planes, extension=run_tenants, own_process_command=own_process_command)
    if not service.is_enabled:
        async with run(settings, mounted_routes) as process:
            yield process
        return
    with service_imports():
        from tapestry.vclusters.app import run_vclusters
        from tapestry.vclusters.serving import serve_gateway
    async with (
        run(settings, mounted_routes, admission=admission_of(settings, service)) as process,
        run_vclusters(process, service),
        serve_gateway(process, service, click.echo),
    ):
        yield process


def mounted_routes(routes: Routes) -> dict[str, MountedHandler]:
    return {ROOT.strip("/"): apiext_handler(routes)}


@command(
    "tapestry planes create pr-42",
    "tapestry planes create pr-42 --sleep-after 10m --copy-of main",
    "tapestry planes create pr-42 --backend etcd --process node-b --max-objects 5000 --max-bytes 32Mi",
    parent=planes,
    name="create",
)
@click.argument("name")
@click.option(
    "--backend",
    type=click.Choice(["file", "etcd", "memory"]),
    default="file",
    show_default=True,
    help="Storage of the plane's objects.",
)
@click.option("--sleep-after", default="", help="Close the plane after this time without clients, for example 10m.")
@click.option("--copy-of", default="", help="Plane whose objects the new plane starts with.")
@click.option("--controllers", default="*", show_default=True, help="Comma-separated controllers of the plane.")
@click.option("--process", default="", help="Process that is to hold the plane. [default: any of the group]")
@click.option(
    "--max-objects",
    type=int,
    help="Number of objects, at least 200; a new plane has about 150. 0 means no limit. [default: 50000]",
)
@click.option(
    "--max-bytes", help="Size of all objects, for example 64Mi, at least 1Mi; 0 means no limit. [default: 256Mi]"
)
@click.option("--max-watches", type=int, help="Number of open watches; 0 means no limit. [default: 2000]")
@click.option("--max-requests", type=int, help="Number of concurrent requests, without watches. [default: 100]")
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def create_plane(
    name: str,
    backend: str,
    sleep_after: str,
    copy_of: str,
    controllers: str,
    process: str,
    wait: bool,
    timeout: str,
    connect: Connect,
    **limits: Any,
) -> None:
    """Create the plane NAME and wait until it answers."""
    idle = seconds(sleep_after, "--sleep-after") if sleep_after else 0
    spec = {
        "backend": backend,
        "idleSeconds": idle,
        "copyOf": copy_of,
        "controllers": controllers.split(","),
        "process": process,
        "limits": {field: limits[option] for option, field in LIMITS.items() if limits[option] is not None},
    }

    async def work() -> None:
        async with connect() as client:
            await client.create(PLANES, object_named(name) | {"spec": spec})
            if wait:
                await wait_for_phase(client, name, "Open", timeout)
        click.echo(f"plane {name} created")

    run_async(work())


@command("tapestry planes list", "tapestry planes list -o wide", parent=planes, name="list")
@with_output("table", "wide", "json", "yaml")
@with_management_api
def show(output: str, connect: Connect) -> None:
    """List the planes with their phases, ids and sizes."""

    async def work() -> None:
        async with connect() as client:
            found = await client.list(PLANES)
        print_result(found, output, lambda wide: planes_table(found, wide=wide))

    run_async(work())


def planes_table(found: list[Object], *, wide: bool) -> str:
    if not found:
        return "there are no planes; `tapestry planes create NAME` creates one"
    rows = [
        (
            name_of(each),
            *(
                value_at(each, "status", field, default="")
                for field in ("phase", "id", "objects", "holder", "address", "port", "message")
            ),
        )
        for each in found
    ]
    return table(COLUMNS, rows) if wide else fitted_table(COLUMNS, rows, ("ADDRESS", "PORT", "HOLDER", "MESSAGE"))


@command("tapestry planes suspend pr-42 --reason 'over budget'", parent=planes)
@NAME
@click.option("--reason", default="", help="Reason that clients of the plane see.")
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def suspend(name: str, reason: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Suspend the plane NAME: it keeps its data, runs nothing and answers 503."""
    change(connect, name, {"state": "Suspended", "suspendReason": reason}, "Suspended" if wait else "", timeout)
    click.echo(f"plane {name} suspended")


@command("tapestry planes resume pr-42", parent=planes)
@NAME
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def resume(name: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Resume the suspended plane NAME."""
    change(connect, name, {"state": "Open", "suspendReason": ""}, "Open" if wait else "", timeout)
    click.echo(f"plane {name} resumed")


@command("tapestry planes move pr-42 --to node-b", parent=planes)
@NAME
@click.option("--to", "process", required=True, help="Name of the process that is to hold the plane.")
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def move(name: str, process: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Hand the plane NAME over to another process, which opens its prefix in etcd or its folder.

    A plane in a folder can be opened by `tapestry apiserver --file-rootpath FOLDER` once it is released.
    """
    change(connect, name, {"process": process}, "", timeout)

    async def wait_for_release() -> None:
        async with connect() as client:
            await wait_for(
                client,
                PLANES,
                name,
                until=lambda plane: plane is None or is_handed_over(plane, process),
                timeout=parse_duration(timeout, "--timeout").total_seconds(),
            )

    if wait:
        run_async(wait_for_release())
    click.echo(f"plane {name} released for {process}")


def is_handed_over(plane: Object, process: str) -> bool:
    return value_at(plane, "status", "holder", default="") in ("", process)


@command("tapestry planes copy main pr-42", parent=planes)
@click.argument("source", shell_complete=complete_plane)
@click.argument("name")
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def copy(source: str, name: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Create the plane NAME with the objects of the plane SOURCE, and with keys, users and identity of its own."""

    async def work() -> None:
        async with connect() as client:
            original = await client.get(PLANES, source)
            spec = {**original["spec"], "copyOf": source, "state": "Open", "suspendReason": "", "process": ""}
            await client.create(PLANES, object_named(name) | {"spec": spec})
            if wait:
                await wait_for_phase(client, name, "Open", timeout)
        click.echo(f"plane {name} created as a copy of {source}")

    run_async(work())


@command("tapestry planes delete pr-42", parent=planes)
@NAME
@WAIT_OPTION
@TIMEOUT_OPTION
@with_management_api
def delete(name: str, wait: bool, timeout: str, connect: Connect) -> None:
    """Delete the plane NAME with all its data. Its pods must not run in a host cluster any more."""

    async def work() -> None:
        async with connect() as client:
            found = await client.get(PLANES, name)
            if obstacle := await obstacle_to_deletion(client, plane_id(found)):
                raise click.ClickException(f"plane {name} cannot be deleted: {obstacle}")
            await client.delete(PLANES, object_named(name))
            if wait:
                seconds = parse_duration(timeout, "--timeout").total_seconds()
                await wait_for(client, PLANES, name, until=lambda plane: plane is None, timeout=seconds)
        click.echo(f"plane {name} deleted")

    run_async(work())


def change(connect: Connect, name: str, spec: dict[str, Any], phase: str, timeout: str) -> None:
    """Patch the spec of a plane, and wait for the phase unless it is empty."""

    async def work() -> None:
        async with connect() as client:
            await client.patch(PLANES, object_named(name), {"spec": spec})
            if phase:
                await wait_for_phase(client, name, phase, timeout)

    run_async(work())


async def wait_for_phase(client: Client, name: str, phase: str, timeout: str) -> None:
    """Wait until the status of a plane shows the phase for its newest spec. Raises ClickException with the reason."""
    last: list[Object] = []

    def is_reached(plane: Object | None) -> bool:
        if plane is None:
            return False
        last[:] = [plane]
        status = plane.get("status") or {}
        return status.get("phase") == phase and status.get("observedGeneration") == plane["metadata"]["generation"]

    try:
        await wait_for(
            client, PLANES, name, until=is_reached, timeout=parse_duration(timeout, "--timeout").total_seconds()
        )
    except TimeoutError as error:
        status = (last[0].get("status") or {}) if last else {}
        reason = status.get("message") or f"its phase is {status.get('phase', 'unknown')}"
        raise click.ClickException(f"plane {name} is not {phase} after {timeout}: {reason}") from error


for each in plane_credentials.COMMANDS:
    planes.add_command(each)
