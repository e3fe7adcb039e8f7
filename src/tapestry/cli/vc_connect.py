"""`tapestry vc connect|disconnect|kubeconfig`: kubectl for virtual clusters."""

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from tapestry.cli.cluster_access import run_async
from tapestry.cli.help_text import command
from tapestry.cli.kubeconfig_file import change_file, connected, context_name, disconnected, user_kubeconfig
from tapestry.cli.service_access import VCLUSTER_NAMESPACE, local_world_config, service_config, with_service
from tapestry.cli.vc_credential import credential, with_settings
from tapestry.cli.vc_state import NAME
from tapestry.kube.objects import Object

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

VALIDITY_OPTION = click.option(
    "--validity-hours", type=click.IntRange(min=1), help="Hours after which the credentials expire. [default: 24]"
)
FILE_KUBECONFIG = "kubeconfig"


async def issued_kubeconfig(client: "ServiceClient", namespace: str, name: str, hours: int | None = None) -> Object:
    answer = await client.call("GetVClusterKubeconfig", namespace=namespace, name=name, validity_hours=hours)
    found: Object = yaml.safe_load(base64.b64decode(answer["kubeconfig"]))
    return found


async def renewed_kubeconfig(client: "ServiceClient", namespace: str, name: str) -> Object:
    """Return a kubeconfig without a credential, which gets one from `tapestry vc credential` when it is used."""
    answer = await client.call("GetVClusterKubeconfig", namespace=namespace, name=name, format="exec")
    options = click.get_current_context().params
    file = options["config"] or local_world_config(options["server"])
    settings = service_config(file, options["server"])
    return with_settings(yaml.safe_load(base64.b64decode(answer["kubeconfig"])), settings, file)


async def connect_context(client: "ServiceClient", namespace: str, name: str, hours: int | None = None) -> None:
    """Make a virtual cluster the current context of the user's kubeconfig, for some hours or for good."""
    if hours is None:
        issued = await renewed_kubeconfig(client, namespace, name)
    else:
        issued = await issued_kubeconfig(client, namespace, name, hours)
    file, context = user_kubeconfig(os.environ, Path.home()), context_name(namespace, name)
    change_file(file, lambda before: connected(before, context, issued))
    click.echo(f"context {context} is current in {file}; `tapestry vc disconnect` returns to the previous one")


@command(
    "tapestry vc connect blue",
    "tapestry vc connect blue -- kubectl get namespaces",
)
@NAME
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@VALIDITY_OPTION
@VCLUSTER_NAMESPACE
@with_service
async def connect(
    client: "ServiceClient", name: str, program: tuple[str, ...], namespace: str, validity_hours: int | None
) -> None:
    """Make the virtual cluster NAME the current context, or run PROGRAM with it and change no kubeconfig.

    The context gets its credentials from `tapestry vc credential`, so it does not expire. With --validity-hours, it has
    credentials of its own that do. With PROGRAM, the exit code is that of PROGRAM.
    """
    if not program:
        await connect_context(client, namespace, name, validity_hours)
        return
    issued = await issued_kubeconfig(client, namespace, name, validity_hours)
    sys.exit(await asyncio.to_thread(run_program, program, issued))


def run_program(program: tuple[str, ...], kubeconfig: Object) -> int:
    """Run a program with a kubeconfig that nobody else may read, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:  # only its owner may read it
        file = Path(folder, FILE_KUBECONFIG)
        file.write_text(yaml.safe_dump(kubeconfig, sort_keys=False))
        try:
            done = subprocess.run(program, env={**os.environ, "KUBECONFIG": str(file)}, check=False)
        except OSError as error:
            raise click.ClickException(f"{program[0]} cannot be run: {error.strerror}") from error
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


@command("tapestry vc disconnect")
def disconnect() -> None:
    """Return to the context that was current before `tapestry vc connect`."""

    async def work() -> None:
        file = user_kubeconfig(os.environ, Path.home())
        after = change_file(file, disconnected)
        click.echo(f"context {after['current-context'] or '(none)'} is current in {file}")

    run_async(work())


@command(
    "tapestry vc kubeconfig blue > blue.kubeconfig",
    "tapestry vc kubeconfig blue --validity-hours 8",
    "tapestry vc kubeconfig blue --exec",
)
@NAME
@VALIDITY_OPTION
@click.option("--exec", "is_renewed", is_flag=True, help="Get credentials from this command when they are needed.")
@VCLUSTER_NAMESPACE
@with_service
async def kubeconfig(
    client: "ServiceClient", name: str, namespace: str, validity_hours: int | None, is_renewed: bool
) -> None:
    """Print a kubeconfig of the virtual cluster NAME, with credentials that expire.

    With --exec, it has no credentials, and works on this machine for as long as you have access to the service.
    """
    if is_renewed and validity_hours is not None:
        raise click.UsageError("--exec and --validity-hours exclude each other")
    if is_renewed:
        issued = await renewed_kubeconfig(client, namespace, name)
    else:
        issued = await issued_kubeconfig(client, namespace, name, validity_hours)
    click.echo(yaml.safe_dump(issued, sort_keys=False), nl=False)


COMMANDS = (connect, disconnect, kubeconfig, credential)
