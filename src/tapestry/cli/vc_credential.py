"""`tapestry vc credential`: the exec plugin of kubeconfigs that renew their credentials themselves.

A credential is kept in a private file until it expires soon, because kubectl runs the plugin with each command.
"""

import base64
import hashlib
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from tapestry.cli.cluster_access import run_async
from tapestry.cli.help_text import command
from tapestry.cli.kubeconfig_file import write_private
from tapestry.cli.service_access import (
    SERVICE_OPTIONS,
    VCLUSTER_NAMESPACE,
    ServiceConfig,
    run_with_service,
    service_config,
)
from tapestry.cli.vc_state import NAME
from tapestry.client.exec_plugin import KIND
from tapestry.kube.objects import Object

if TYPE_CHECKING:
    from tapestry.vclusters.client import ServiceClient

API_VERSION = "client.authentication.k8s.io/v1"
EXEC_INFO = "KUBERNETES_EXEC_INFO"
CACHE_FOLDER = Path(".cache/tapestry/credentials")
"""Folder of credentials in the home folder."""
VALIDITY_HOURS = 1
RENEW_BEFORE = timedelta(minutes=10)
"""Time before its expiry at which a credential is replaced. Programs that run for long replace it in half that time."""
SETTING_VARIABLES = {
    "TAPESTRY_SERVER": "server",
    "TAPESTRY_CERTIFICATE_AUTHORITY": "certificate_authority",
    "TAPESTRY_CLIENT_CERTIFICATE": "client_certificate",
    "TAPESTRY_CLIENT_KEY": "client_key",
}
"""Settings that are in the kubeconfig, because they would depend on the folder and the environment otherwise."""


class CallingCluster(msgspec.Struct, frozen=True, rename="kebab"):
    """The cluster of the client that runs the plugin, as its kubeconfig names it."""

    server: str = ""
    tls_server_name: str = ""


class ExecInfoSpec(msgspec.Struct, frozen=True):
    cluster: CallingCluster | None = None


class ExecInfo(msgspec.Struct, frozen=True):
    spec: ExecInfoSpec = ExecInfoSpec()


class Issued(msgspec.Struct, frozen=True):
    """A token of a virtual cluster, in the file of a credential."""

    token: str
    expires: Annotated[datetime, msgspec.Meta(tz=True)]

    def is_usable(self, now: datetime) -> bool:
        return now < self.expires - RENEW_BEFORE


def calling_cluster(variable: str) -> CallingCluster | None:
    """Return the cluster in the variable of an exec plugin. Raises ClickException if it is malformed."""
    if not variable:
        return None
    try:
        return msgspec.json.decode(variable, type=ExecInfo).spec.cluster
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{EXEC_INFO} is not an ExecCredential: {error}") from error


def cache_file(settings: ServiceConfig, cluster: CallingCluster | None, namespace: str, name: str) -> Path:
    """Return the file of a credential: one for each service, caller and virtual cluster."""
    caller = (settings.server, settings.key, settings.client_certificate, namespace, name)
    key = "\0".join((*caller, *((cluster.server, cluster.tls_server_name) if cluster is not None else ())))
    return Path.home() / CACHE_FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def cached(file: Path, now: datetime) -> Issued | None:
    """Return the credential in a file, unless there is none or it expires soon."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Issued)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.is_usable(now) else None


async def issued_credential(client: "ServiceClient", namespace: str, name: str) -> tuple[Issued, CallingCluster]:
    """Return a new credential, and the cluster for which it is."""
    import yaml

    fields = {"namespace": namespace, "name": name, "validity_hours": VALIDITY_HOURS}
    answer = await client.call("GetVClusterKubeconfig", **fields, format="token")
    document = yaml.safe_load(base64.b64decode(answer["kubeconfig"]))
    cluster = msgspec.convert(document["clusters"][0]["cluster"], CallingCluster)
    return Issued(document["users"][0]["user"]["token"], datetime.fromisoformat(answer["expiresAt"])), cluster


@command("tapestry vc credential blue")
@NAME
@VCLUSTER_NAMESPACE
@SERVICE_OPTIONS[0]
@SERVICE_OPTIONS[1]
def credential(name: str, namespace: str | None, server: str | None, config: Path | None) -> None:
    """Print a credential for the virtual cluster NAME, by the protocol of exec plugins.

    Kubeconfigs of `tapestry vc connect` and of `tapestry vc kubeconfig --exec` run it.
    """
    settings = service_config(config, server)
    place, cluster = namespace or settings.namespace, calling_cluster(os.environ.get(EXEC_INFO, ""))
    file = cache_file(settings, cluster, place, name)

    async def renew(client: "ServiceClient") -> None:
        issued, issuer = await issued_credential(client, place, name)
        if cluster is not None and issuer != cluster:
            message = f"{place}/{name} has moved or is another cluster; run `tapestry vc connect {name} -n {place}`"
            raise click.ClickException(message)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(file, msgspec.json.encode(issued))
        click.echo(exec_credential(issued))

    found = cached(file, datetime.now(UTC))
    if found is not None:
        click.echo(exec_credential(found))
    else:
        run_async(run_with_service(renew, config, server, {}))


def exec_credential(issued: Issued) -> bytes:
    """Return what a plugin prints. Clients run it again before the credential expires."""
    status = {"token": issued.token, "expirationTimestamp": issued.expires - RENEW_BEFORE / 2}
    return msgspec.json.encode({"kind": KIND, "apiVersion": API_VERSION, "status": status})


def with_settings(kubeconfig: Object, settings: ServiceConfig, config: Path | None) -> Object:
    """Return a kubeconfig whose plugin is this program, with the settings of the caller but without its access key."""
    variables = {}
    for variable, name in SETTING_VARIABLES.items():
        value = getattr(settings, name)
        if value:
            variables[variable] = value if name == "server" else str(Path(value).absolute())
    users = []
    for each in kubeconfig["users"]:
        plugin = each["user"]["exec"]
        arguments = [*plugin["args"], *(("--config", str(config.absolute())) if config is not None else ())]
        env = [{"name": variable, "value": value} for variable, value in variables.items()]
        users.append({**each, "user": {"exec": {**plugin, "command": program(), "args": arguments, "env": env}}})
    return {**kubeconfig, "users": users}


def program() -> str:
    """Return the path of this command, which may be in no folder of PATH when kubectl runs it."""
    beside = Path(sys.executable).with_name("tapestry")
    return str(beside) if beside.exists() else shutil.which("tapestry") or "tapestry"
