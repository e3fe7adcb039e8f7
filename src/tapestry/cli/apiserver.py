"""`tapestry apiserver`: Kubernetes API server without Kubernetes."""

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import click
import uvloop
import yaml

from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.store import StorageError
from tapestry.cli import apiserver_data
from tapestry.cli.help_text import STOPPED, help_epilog
from tapestry.cli.mounted_apiext import installed_apiext_handlers
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
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.controller.app import GC_THRESHOLDS
from tapestry.controlplane.app import check_patterns, has_workload_controllers
from tapestry.kube.times import parse_duration
from tapestry.planes.standalone import run_standalone
from tapestry.process import logs
from tapestry.process.config import load_config
from tapestry.process.system import return_large_blocks_to_system, stop_event

FLAGS: Flags = {
    "--backend": ("backend", "Storage backend: file, etcd or memory."),
    "--etcd-servers": ("etcd.servers", "Comma-separated URLs of the etcd members."),
    "--etcd-cafile": ("etcd.cafile", "CA file that verifies the etcd members."),
    "--etcd-certfile": ("etcd.certfile", "Client certificate file for etcd."),
    "--etcd-keyfile": ("etcd.keyfile", "Private key file of the client certificate for etcd."),
    "--etcd-prefix": ("etcd.prefix", "Prefix of all keys in etcd. [default: /registry]"),
    "--file-rootpath": ("fileRootpath", "Data folder: objects of the file backend, certificates and keys."),
    "--bind-address": ("secureAddress", "Address to serve HTTPS on; empty disables it. [default: 127.0.0.1:6443]"),
    "--local-address": ("localAddress", "Address to serve HTTP on for this machine. [default: 127.0.0.1:6080]"),
    "--token-auth-file": ("tokenAuthFile", 'CSV file of static tokens: token,user,uid,"group,group".'),
    "--request-timeout": ("requestTimeout", "Time limit of a request, for example 90 (seconds) or 60m. [default: 60]"),
    "--max-requests-inflight": ("maxRequestsInflight", "Concurrent read requests; 0 means no limit. [default: 400]"),
    "--max-mutating-requests-inflight": (
        "maxMutatingRequestsInflight",
        "Concurrent write requests; 0 means no limit. [default: 200]",
    ),
    "--max-connections": ("maxConnections", "Open connections of all users, including watches. [default: 10000]"),
    "--max-connections-per-user": ("maxConnectionsPerUser", "Open connections per non-admin user. [default: 2000]"),
    "--max-objects": ("maxObjects", "Number of objects; 0 means no limit. [default: 0]"),
    "--max-bytes": ("maxBytes", "Size of all objects in bytes; 0 means no limit. [default: 0]"),
    "--max-watches": ("maxWatches", "Open watches of all users; 0 means no limit. [default: 0]"),
    "--service-account-issuer": ("serviceAccountIssuer", "Issuer of ServiceAccount tokens."),
    "--service-account-signing-key-file": (
        "serviceAccountSigningKeyFile",
        "Private key file that signs ServiceAccount tokens.",
    ),
    "--service-account-key-file": ("serviceAccountKeyFiles", "Comma-separated keys to verify ServiceAccount tokens."),
    "--api-audiences": ("apiAudiences", "Comma-separated audiences of tokens for this server. [default: the issuer]"),
    "--audit-log-path": ("auditLogPath", "Audit log file; - is stderr."),
    "--audit-policy-file": ("auditPolicyFile", "File of the audit policy. [default: log everything except bodies]"),
    "--audit-log-maxsize": ("auditLogMaxsize", "Size in MiB at which the audit log is rotated. [default: 100]"),
    "--audit-log-maxbackup": ("auditLogMaxbackup", "Number of rotated audit logs to keep; 0 keeps all. [default: 0]"),
    "--service-cluster-ip-range": ("serviceClusterIpRange", "IP range of Service addresses. [default: 10.0.0.0/24]"),
    "--kubelet-client-certificate": ("kubelet.clientCertificate", "Client certificate file for kubelets."),
    "--kubelet-client-key": ("kubelet.clientKey", "Private key file of the client certificate for kubelets."),
    "--kubelet-certificate-authority": (
        "kubelet.certificateAuthority",
        "CA file that verifies kubelets; without it they are not verified.",
    ),
    "--controllers": ("controllers", "Controllers to run in the server: `*`, `*,-garbage`, or none. [default: *]"),
    "--log-level": ("logLevel", "Log level: debug, info, warning or error."),
}
SWITCHES: Flags = {
    "--authn-allow-localhost": ("authnAllowLocalhost", "Accept clients on this machine without credentials."),
    "--unrestricted-update": ("unrestrictedUpdate", "Let creates and updates of an object set its status as well."),
    "--kubectl-disabled": ("kubectlDisabled", "Reject requests of kubectl."),
    "--kubectl-ephemeral-token": ("kubectlEphemeralToken", "Accept only expiring tokens from kubectl."),
    "--anonymous-auth": ("anonymousAuth", "Serve requests without credentials as system:anonymous. [default: true]"),
}
INTEGER_SETTINGS = (
    *("maxRequestsInflight", "maxMutatingRequestsInflight", "maxConnections", "maxConnectionsPerUser"),
    *("maxObjects", "maxBytes", "maxWatches", "auditLogMaxsize", "auditLogMaxbackup"),
)
EXPECTED_ERRORS = (ValueError, OSError, StorageError)
log = logs.logger(__name__)
DEBUG_VERBOSITY = 4
"""Smallest Kubernetes log verbosity that means debug."""
LIST_SETTINGS = ("controllers", "etcd.servers", "serviceAccountKeyFiles", "apiAudiences")
"""Settings whose flags are comma-separated lists."""


def parse_verbosity(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Parse -v=10 as well as -v 10, as Kubernetes' own programs do."""
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
    help=f"Kubernetes log verbosity; {DEBUG_VERBOSITY} and above mean --log-level debug.",
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
    """Serve the Kubernetes API, with data on the local disk or in etcd, until SIGTERM or Ctrl-C."""
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
    """Parse a number of seconds or a duration with a unit."""
    if text is None:
        return None
    return parse_duration(text if text[-1:].isalpha() else f"{text}s", "--request-timeout").total_seconds()


def run(settings: ApiServerConfig) -> None:
    """Serve until stopped; expected errors become one-line messages."""
    try:
        check_patterns(settings.controllers)
        logs.configure(settings.log_level, settings.log_format)
        gc.set_threshold(*GC_THRESHOLDS)
        return_large_blocks_to_system()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (*EXPECTED_ERRORS, ExceptionGroup) as error:
        fault = single_exception(error)
        if not isinstance(fault, EXPECTED_ERRORS):
            raise
        raise click.ClickException(fault_message(fault)) from error


for command in apiserver_data.COMMANDS:
    apiserver.add_command(command)


async def serve(settings: ApiServerConfig) -> None:
    stopping = stop_event()
    async with (
        run_standalone(settings, installed_apiext_handlers()) as running,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(running.manager.run(), name="controllers")
        if not has_workload_controllers(settings.controllers):
            log.info("API server runs no workload controllers; use `tapestry cluster` for Deployments and Jobs")
        if "local" in running.server.addresses:
            write_kubeconfig(running.server.folder / "kubeconfig", running.server.addresses["local"])
        await stopping.wait()
        running.manager.stop()


def write_kubeconfig(file: Path, address: str) -> None:
    """Write a kubeconfig without credentials for clients on this machine."""
    document = kubeconfig_document("here", {"server": f"http://{address}"}, {})
    file.write_text(yaml.safe_dump(document, sort_keys=False))
