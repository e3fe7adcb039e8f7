"""`tapestry apiserver`: Kubernetes' API where there is no Kubernetes."""

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import click
import uvloop

from tapestry.apiserver.app import Running, running
from tapestry.apiserver.certificates import Authority
from tapestry.apiserver.config import ApiServerConfig
from tapestry.apiserver.storage.log import LogError
from tapestry.controlplane.app import check_patterns, manager_beside
from tapestry.process import logs
from tapestry.process.config import load

FLAGS: dict[str, tuple[str, str]] = {
    "--backend": ("backend", "Where objects are kept: file or memory."),
    "--file-rootpath": ("fileRootpath", "The folder of the file backend, and of certificates and keys."),
    "--bind-address": ("secureAddress", "Where to serve HTTPS; empty serves none. [default: 127.0.0.1:6443]"),
    "--local-address": ("localAddress", "Where to serve this machine over HTTP. [default: 127.0.0.1:6080]"),
    "--token-auth-file": ("tokenAuthFile", 'A CSV file: token,user,uid,"group,group".'),
    "--request-timeout": ("requestTimeout", "Seconds that a request may take. [default: 60]"),
    "--controllers": ("controllers", "Which run beside it: `*`, `*,-garbage`, or none. [default: *]"),
    "--log-level": ("logLevel", "debug, info, warning or error."),
}
SWITCHES: dict[str, tuple[str, str]] = {
    "--authn-allow-localhost": ("authnAllowLocalhost", "Trust whoever is on this machine, without credentials."),
    "--unrestricted-update": ("unrestrictedUpdate", "Let a write to an object change its status, too."),
    "--kubectl-disabled": ("kubectlDisabled", "Refuse requests of kubectl."),
}


def with_flags(command: Any) -> Any:
    for option, (_, text) in reversed(SWITCHES.items()):
        command = click.option(option, is_flag=True, default=None, help=text)(command)
    for option, (_, text) in reversed(FLAGS.items()):
        command = click.option(option, help=text)(command)
    return click.option("--config", "-c", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file.")(command)


@click.command()
@with_flags
def apiserver(config: Path | None, **flags: Any) -> None:
    """Serve Kubernetes' API, durable on one disk, until told to stop."""
    given = {
        path: flags[option.removeprefix("--").replace("-", "_")] for option, (path, _) in (FLAGS | SWITCHES).items()
    }
    given["controllers"] = given["controllers"].split(",") if given["controllers"] else None
    try:
        settings = load(ApiServerConfig, file=config, environ=os.environ, flags=given)
        check_patterns(settings.controllers)
        logs.configure(settings.log_level, settings.log_format)
        gc.set_threshold(50_000, 20, 50)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (ValueError, OSError, LogError) as error:
        raise click.ClickException(str(error)) from error


async def serve(settings: ApiServerConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with running(settings) as served, asyncio.TaskGroup() as group:
        manager = manager_beside(served.server, authority_of(settings, served), settings.controllers)
        group.create_task(manager.run(), name="controllers")
        await stopping.wait()
        manager.stop()


def authority_of(settings: ApiServerConfig, served: Running) -> str:
    """The certificates that pods can know the server by; none where it serves no TLS."""
    if "secure" not in served.addresses:
        return ""
    if settings.tls.certificate:
        return Path(settings.tls.certificate).read_text()
    return Authority(served.folder / "pki").certificate()
