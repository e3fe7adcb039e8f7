"""`tapestry apiserver`: Kubernetes' API where there is no Kubernetes."""

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import click
import uvloop
import yaml

from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import ROOT, RestApi, RestRequest
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import ApiResponse, CallHandler
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.apiserver.storage.log import StorageError
from tapestry.cli import apiserver_data
from tapestry.cli.envtest import envtest_assets
from tapestry.cli.help_text import STOPPED, help_epilog
from tapestry.cli.process_runner import fault_message, single_exception
from tapestry.cli.settings import CONFIG, SWITCH, Flags, settings_from_flags, split_commas, with_options
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.controlplane.app import check_patterns, control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.times import parse_duration
from tapestry.process import logs
from tapestry.process.config import load_config
from tapestry.process.signals import stop_event

FLAGS: Flags = {
    "--backend": ("backend", "Where objects are kept: file, etcd or memory."),
    "--etcd-servers": ("etcd.servers", "The URLs of etcd's members, with commas."),
    "--etcd-cafile": ("etcd.cafile", "The CAs of their certificates."),
    "--etcd-certfile": ("etcd.certfile", "Our certificate for them."),
    "--etcd-keyfile": ("etcd.keyfile", "Its key."),
    "--etcd-prefix": ("etcd.prefix", "What the keys of all objects begin with. [default: /registry]"),
    "--file-rootpath": ("fileRootpath", "The folder of the file backend, and of certificates and keys."),
    "--bind-address": ("secureAddress", "Where to serve HTTPS; empty serves none. [default: 127.0.0.1:6443]"),
    "--local-address": ("localAddress", "Where to serve this machine over HTTP. [default: 127.0.0.1:6080]"),
    "--token-auth-file": ("tokenAuthFile", 'A CSV file: token,user,uid,"group,group".'),
    "--request-timeout": ("requestTimeout", "How long a request may take: 90, 60m. [default: 60]"),
    "--max-requests-inflight": ("maxRequestsInflight", "Reads under way at once; 0 is any number. [default: 400]"),
    "--max-mutating-requests-inflight": ("maxMutatingRequestsInflight", "The same for writes. [default: 200]"),
    "--max-connections": ("maxConnections", "Connections of all users, watches included. [default: 10000]"),
    "--max-connections-per-user": ("maxConnectionsPerUser", "The same of one user, masters aside. [default: 2000]"),
    "--service-account-issuer": ("serviceAccountIssuer", "Who signs the tokens of service accounts."),
    "--service-account-signing-key-file": ("serviceAccountSigningKeyFile", "The key that they are signed with."),
    "--service-account-key-file": ("serviceAccountKeyFiles", "Keys, with commas, that they are known by beside it."),
    "--api-audiences": ("apiAudiences", "What tokens for this server name as audience. [default: the issuer]"),
    "--audit-log-path": ("auditLogPath", "Where to write down who asked for what; - is stderr."),
    "--audit-policy-file": ("auditPolicyFile", "What of it. [default: everything but bodies]"),
    "--audit-log-maxsize": ("auditLogMaxsize", "MiB at which that file is moved away. [default: 100]"),
    "--audit-log-maxbackup": ("auditLogMaxbackup", "How many of those are kept; 0 is all. [default: 0]"),
    "--service-cluster-ip-range": ("serviceClusterIpRange", "Where Services get addresses. [default: 10.0.0.0/24]"),
    "--kubelet-client-certificate": ("kubelet.clientCertificate", "The server's certificate for kubelets."),
    "--kubelet-client-key": ("kubelet.clientKey", "Its key."),
    "--kubelet-certificate-authority": ("kubelet.certificateAuthority", "The CAs of kubelets' own; none checks none."),
    "--controllers": ("controllers", "Which run beside it: `*`, `*,-garbage`, or none. [default: *]"),
    "--log-level": ("logLevel", "debug, info, warning or error."),
}
SWITCHES: Flags = {
    "--authn-allow-localhost": ("authnAllowLocalhost", "Trust whoever is on this machine, without credentials."),
    "--unrestricted-update": ("unrestrictedUpdate", "Let a write to an object change its status, too."),
    "--kubectl-disabled": ("kubectlDisabled", "Refuse requests of kubectl."),
    "--kubectl-ephemeral-token": ("kubectlEphemeralToken", "Let kubectl use no tokens but such as expire."),
    "--anonymous-auth": ("anonymousAuth", "Serve who shows no credentials, with next to no rights. [default: true]"),
}
INTEGER_SETTINGS = (
    *("maxRequestsInflight", "maxMutatingRequestsInflight", "maxConnections", "maxConnectionsPerUser"),
    *("auditLogMaxsize", "auditLogMaxbackup"),
)
EXPECTED_ERRORS = (ValueError, OSError, StorageError)
log = logs.logger(__name__)
DEBUG_VERBOSITY = 4
"""The verbosity, as Kubernetes has it, from which on it is that of debugging."""
LIST_SETTINGS = ("controllers", "etcd.servers", "serviceAccountKeyFiles", "apiAudiences")
"""Settings that are several texts, with commas between them."""


def parse_verbosity(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Kubernetes' own programs take -v=10 as well as -v 10."""
    if text is None:
        return None
    number = text.removeprefix("=")
    if not number.isdecimal():
        raise click.BadParameter(f"{number!r} is not a number")
    return int(number)


VERBOSITY_OPTION = click.option(
    "-v",
    "--v",
    "verbosity",
    callback=parse_verbosity,
    metavar="NUMBER",
    help=f"As --log-level debug, from {DEBUG_VERBOSITY} on.",
)


@click.group(
    invoke_without_command=True,
    epilog=help_epilog(
        "tapestry apiserver --file-rootpath ./data --authn-allow-localhost",
        "tapestry apiserver --backend etcd --etcd-servers https://etcd-0:2379,https://etcd-1:2379",
        "tapestry apiserver backup --file-rootpath ./data backup.tar",
        zero=STOPPED,
    ),
)
@CONFIG
@VERBOSITY_OPTION
@with_options(FLAGS, {path: {"type": int} for path in INTEGER_SETTINGS})
@with_options(SWITCHES, {path: {**SWITCH, "metavar": "[BOOL]"} for path, _ in SWITCHES.values()})
@click.pass_context
def apiserver(context: click.Context, /, config: Path | None, verbosity: int | None, **flags: Any) -> None:
    """Serve Kubernetes' API, durable on one disk or in etcd, until told to stop."""
    if context.invoked_subcommand is not None:
        return
    given = settings_from_flags(FLAGS | SWITCHES, flags)
    given |= {path: split_commas(given[path]) for path in LIST_SETTINGS}
    if verbosity is not None and verbosity >= DEBUG_VERBOSITY:
        given["logLevel"] = given["logLevel"] or "debug"
    try:
        given["requestTimeout"] = timeout_seconds(given["requestTimeout"])
        settings = load_config(ApiServerConfig, file=config, environ=os.environ, flags=given)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    run(settings)


def timeout_seconds(text: str | None) -> float | None:
    """A number of seconds, or a duration with its unit."""
    if text is None:
        return None
    return parse_duration(text if text[-1:].isalpha() else f"{text}s", "--request-timeout").total_seconds()


def run(settings: ApiServerConfig) -> None:
    """Serve until told to stop; what is wrong is one line."""
    try:
        check_patterns(settings.controllers)
        logs.configure(settings.log_level, settings.log_format)
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (*EXPECTED_ERRORS, ExceptionGroup) as error:
        fault = single_exception(error)
        if not isinstance(fault, EXPECTED_ERRORS):
            raise
        raise click.ClickException(fault_message(fault)) from error


for command in (*apiserver_data.COMMANDS, envtest_assets):
    apiserver.add_command(command)


async def serve(settings: ApiServerConfig) -> None:
    stopping = stop_event()
    async with (
        run_apiserver(settings, mounted_handlers={"apiext": apiext_handler()}) as served,
        asyncio.TaskGroup() as group,
    ):
        authority, signing = ca_certificate(settings, served), CertificateAuthority(served.folder / "pki")
        manager = control_plane_manager(served.request_handler, authority, settings.controllers, signing)
        group.create_task(manager.run(), name="controllers")
        log.info("no workload controllers: Deployments and Jobs get no pods here; `tapestry cluster` runs them")
        if "local" in served.addresses:
            write_kubeconfig(served.folder / "kubeconfig", served.addresses["local"])
        await stopping.wait()
        manager.stop()


def write_kubeconfig(file: Path, address: str) -> None:
    """The way in for whoever is on this machine, and trusted for it."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://{address}"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here"}}],
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False))


def apiext_handler() -> MountedHandler:
    """Plain REST at /apiext, in the name of whoever calls."""
    plain = RestApi(ResourceMapper())

    async def answer(api: CallHandler, call: Call) -> ApiResponse:
        content_type = call.headers.get("content-type", "")
        ask = RestRequest(call.method, call.path.removeprefix(ROOT), call.query, content_type, call.body)
        found = await plain.handle(ask, InProcessTransport(api, call.user))
        return ApiResponse(found.status, found.body, headers=found.headers)

    return answer


def ca_certificate(settings: ApiServerConfig, served: RunningServer) -> str:
    """The certificates that pods can know the server by; none where it serves no TLS."""
    if "secure" not in served.addresses:
        return ""
    if settings.tls.certificate:
        return Path(settings.tls.certificate).read_text()
    return CertificateAuthority(served.folder / "pki").certificate_pem()
