"""`tapestry k exec`, `attach`, `port-forward`, `cp` and `top`: interactive access to pods."""

import asyncio
import re
import tempfile
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import click
from click.exceptions import Exit

from tapestry.cli import terminal
from tapestry.cli.cluster_access import ALL_NAMESPACES_OPTION, name_completer
from tapestry.cli.help_text import command
from tapestry.cli.kubectl_command import CONTAINER_OPTION, default_container_with_note, kubectl_command
from tapestry.client.http_transport import HttpTransport
from tapestry.client.pod_streams import CommandSession, open_command, open_port_forward
from tapestry.inspect.anykind.archives import (
    Place,
    download_command,
    extract_archive,
    parse_place,
    upload_command,
    write_archive,
)
from tapestry.inspect.anykind.kubectl_lite import KubectlLite
from tapestry.inspect.anykind.usage_tables import usage_table
from tapestry.inspect.snapshots import QueryError
from tapestry.kube.resources import PODS
from tapestry.streams.background import background_tasks
from tapestry.streams.port_forward import copy_to_server
from tapestry.streams.remote_command import Channel
from tapestry.streams.spdy_connection import SpdyConnection, SpdyStream

CHUNK_BYTES = 1 << 16
PORTS = re.compile(r"(?:(?P<local>\d{0,5}):)?(?P<remote>\d{1,5})")

POD_ARGUMENT = click.argument("pod", metavar="POD | KIND/NAME", shell_complete=name_completer(PODS))
STDIN_OPTION = click.option("--stdin", "-i", is_flag=True, help="Send standard input to the container.")
TTY_OPTION = click.option("--tty", "-t", is_flag=True, help="Give the container this terminal.")


def transport_of(kubectl: KubectlLite) -> HttpTransport:
    assert isinstance(kubectl.client.transport, HttpTransport)
    return kubectl.client.transport


# -- exec and attach


@command(
    "tapestry k exec web-0 -- ls /",
    "tapestry k exec -i -t deployment/web -c web -- sh",
    zero="the command's own exit codes",
    one="the command's, or an error with a one-line message",
    name="exec",
)
@POD_ARGUMENT
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARG]...")
@CONTAINER_OPTION
@STDIN_OPTION
@TTY_OPTION
@kubectl_command
async def execute(
    kubectl: KubectlLite, pod: str, words: tuple[str, ...], container: str | None, stdin: bool, tty: bool
) -> None:
    """Run a command in a container, and exit with its exit code."""
    query = [("command", word) for word in words]
    await run_session(kubectl, pod, "exec", container, query, stdin=stdin, tty=tty)


@command("tapestry k attach web-0", "tapestry k attach -i -t debugger", name="attach")
@POD_ARGUMENT
@CONTAINER_OPTION
@STDIN_OPTION
@TTY_OPTION
@kubectl_command
async def attach(kubectl: KubectlLite, pod: str, container: str | None, stdin: bool, tty: bool) -> None:
    """Show the output of the main process of a container, and optionally send it input."""
    await run_session(kubectl, pod, "attach", container, [], stdin=stdin, tty=tty)


async def run_session(
    kubectl: KubectlLite,
    pod: str,
    verb: str,
    container: str | None,
    query: list[tuple[str, str]],
    *,
    stdin: bool,
    tty: bool,
) -> None:
    """Connect this terminal to a container until its process ends, and exit with its exit code."""
    if tty and not (stdin and terminal.is_terminal()):
        click.echo("no terminal: standard input is not one, or -i is missing", err=True)
        tty = False
    name = await kubectl.pod_name_for([pod])
    container = container or default_container_with_note(await kubectl.pod(name))
    query += streams_query(container, stdin=stdin, tty=tty)
    session = await open_command(transport_of(kubectl), kubectl.namespace, name, verb, query)
    with ExitStack() as stack:
        if tty:
            stack.enter_context(terminal.raw_mode())
        code = await exchange_with_terminal(session, stdin=stdin, tty=tty)
    if code:
        raise Exit(code)


def streams_query(container: str, *, stdin: bool, tty: bool) -> list[tuple[str, str]]:
    flags = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    return [*((name, "true") for name, is_set in flags.items() if is_set), ("container", container)]


async def exchange_with_terminal(session: CommandSession, *, stdin: bool, tty: bool) -> int:
    background = [session.ping_regularly()]
    if stdin:
        background.append(send_stdin(session))
    if tty:
        background.append(send_sizes(session))
    try:
        async with background_tasks(*background):
            async for channel, data in session.outputs():
                terminal.write_output(data, is_error=channel is Channel.STDERR)
    except* ConnectionError as errors:
        raise errors.exceptions[0] from None
    return session.exit_code


async def send_stdin(session: CommandSession) -> None:
    with suppress(ConnectionError):  # the outputs report it
        while data := await terminal.read_stdin():
            await session.write_stdin(data)
        await session.close_stdin()


async def send_sizes(session: CommandSession) -> None:
    """Send the size of the terminal now and whenever it changes."""
    changed = asyncio.Event()
    with suppress(ConnectionError), terminal.resize_events(changed.set):
        while True:
            changed.clear()
            width, height = terminal.terminal_size()
            if width and height:  # a terminal without a window may have no size
                await session.resize(width, height)
            await changed.wait()


# -- port-forward


class ForwardedPort(NamedTuple):
    local: int
    """0 means any free port."""
    remote: int


def parse_ports(text: str) -> ForwardedPort:
    found = PORTS.fullmatch(text)
    if found is None or not 0 < int(found["remote"]) < 1 << 16 or int(found["local"] or 0) >= 1 << 16:
        raise ValueError(f"{text!r}: expected [LOCAL:]REMOTE, for example 8080:80")
    remote = int(found["remote"])
    return ForwardedPort(remote if found["local"] is None else int(found["local"] or 0), remote)


@command("tapestry k port-forward web-0 8080:80", "tapestry k port-forward deployment/web :80", name="port-forward")
@POD_ARGUMENT
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@kubectl_command
async def port_forward(kubectl: KubectlLite, pod: str, ports: tuple[str, ...], address: str) -> None:
    """Forward ports of this machine to a pod until Ctrl-C."""
    forwarded = [parse_ports(each) for each in ports]
    name = await kubectl.pod_name_for([pod])
    spdy = SpdyConnection(await open_port_forward(transport_of(kubectl), kubectl.namespace, name), is_server=False)
    forwarder = Forwarder(spdy)
    servers = [
        await asyncio.start_server(partial(forwarder.forward, each.remote), address, each.local) for each in forwarded
    ]
    for server, each in zip(servers, forwarded, strict=True):
        host, port = server.sockets[0].getsockname()[:2]
        click.echo(f"Forwarding from {host}:{port} -> {each.remote}")
    try:
        async with background_tasks(spdy.ping_regularly()):
            await spdy.run()
    except* ConnectionError as errors:
        raise QueryError(f"the connection to pod {name} was lost: {errors.exceptions[0]}") from None
    finally:
        for server in servers:
            server.close()


class Forwarder:
    """Forward connections to one pod, each over two streams."""

    def __init__(self, spdy: SpdyConnection) -> None:
        self._spdy = spdy
        self._requests = 0

    async def forward(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._requests += 1
        headers = {"port": str(port), "requestid": str(self._requests)}
        try:
            errors = await self._spdy.open({"streamtype": "error", **headers})
            data = await self._spdy.open({"streamtype": "data", **headers})
            await errors.end()
            async with background_tasks(send_local(reader, data)):
                await copy_to_server(data, writer)
            if message := await errors.read():
                click.echo(message.decode(errors="replace"), err=True)
        except* ConnectionError as group:
            click.echo(f"Error: port {port}: {group.exceptions[0]}", err=True)
        finally:
            writer.close()


async def send_local(reader: asyncio.StreamReader, stream: SpdyStream) -> None:
    """Send what a local client writes, and its end."""
    while chunk := await reader.read(CHUNK_BYTES):
        await stream.write(chunk)
    await stream.end()


# -- cp


@command("tapestry k cp ./data web-0:/tmp/data", "tapestry k cp team-a/web-0:/var/log/app.log ./app.log", name="cp")
@click.argument("source", metavar="[[NAMESPACE/]POD:]SOURCE")
@click.argument("target", metavar="[[NAMESPACE/]POD:]TARGET")
@CONTAINER_OPTION
@kubectl_command
async def cp(kubectl: KubectlLite, source: str, target: str, container: str | None) -> None:
    """Copy a file or folder to or from a container, which needs `tar`."""
    origin, goal = parse_place(source), parse_place(target)
    if bool(origin.pod) == bool(goal.pod):
        raise click.UsageError("one of the two must be in a pod: POD:PATH")
    with tempfile.TemporaryFile() as archive:
        if goal.pod:
            await upload(kubectl, Path(origin.path), goal, container, archive)
        else:
            await download(kubectl, origin, Path(goal.path), container, archive)


async def upload(kubectl: KubectlLite, source: Path, goal: Place, container: str | None, archive: IO[bytes]) -> None:
    name = source.name if goal.path.endswith("/") else PurePosixPath(goal.path).name
    folder = goal.path if goal.path.endswith("/") else str(PurePosixPath(goal.path).parent)
    await asyncio.to_thread(write_archive, source, name, archive)
    archive.seek(0)
    session = await tar_session(kubectl, goal, upload_command(folder), container, stdin=True)
    async with background_tasks(send_file(session, archive)):
        await collect(session)


async def download(kubectl: KubectlLite, origin: Place, goal: Path, container: str | None, archive: IO[bytes]) -> None:
    session = await tar_session(kubectl, origin, download_command(origin.path), container, stdin=False)
    await collect(session, archive)
    archive.seek(0)
    await asyncio.to_thread(extract_archive, archive, PurePosixPath(origin.path).name, goal)


async def tar_session(
    kubectl: KubectlLite, place: Place, words: tuple[str, ...], container: str | None, *, stdin: bool
) -> CommandSession:
    there = KubectlLite(kubectl.client, place.namespace or kubectl.namespace)
    container = container or default_container_with_note(await there.pod(place.pod))
    query = [("command", word) for word in words] + streams_query(container, stdin=stdin, tty=False)
    return await open_command(transport_of(there), there.namespace, place.pod, "exec", query)


async def send_file(session: CommandSession, file: IO[bytes]) -> None:
    with suppress(ConnectionError):  # the outputs report it
        while chunk := file.read(CHUNK_BYTES):
            await session.write_stdin(chunk)
        await session.close_stdin()


async def collect(session: CommandSession, file: IO[bytes] | None = None) -> None:
    """Read a session to its end; raise QueryError with what it wrote to stderr if the command fails."""
    errors = b""
    async for channel, data in session.outputs():
        if channel is Channel.STDERR:
            errors = (errors + data)[-4096:]
        elif file is not None:
            file.write(data)
    if code := session.exit_code:
        text = " ".join(errors.decode(errors="replace").split())
        raise QueryError(f"tar failed in the container with exit code {code}: {text}")


# -- top


@command("tapestry k top nodes", "tapestry k top pods -A", name="top")
@click.argument("what", type=click.Choice(["nodes", "pods"]))
@ALL_NAMESPACES_OPTION
@kubectl_command
async def top(kubectl: KubectlLite, what: str, everywhere: bool) -> None:
    """Show the CPU and memory that nodes or pods use, from the metrics API."""
    if everywhere and what != "pods":
        raise click.UsageError("-A selects pods; nodes have no namespace")
    click.echo(await usage_table(kubectl.client, what, None if everywhere else kubectl.namespace))


COMMANDS: dict[str, click.Command] = {
    "attach": attach,
    "cp": cp,
    "exec": execute,
    "port-forward": port_forward,
    "top": top,
}
