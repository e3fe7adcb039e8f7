"""Startup, liveness and readiness probes of containers.

`Prober.attempt` runs one probe.  `probe_results` applies the thresholds and yields each change.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from tapestry.kube.objects import Object

MAX_REASON_LENGTH = 256
EAGER_SECONDS = 1

CommandRunner = Callable[[Sequence[str]], Awaitable[tuple[int, bytes]]]
"""Run the command of a probe in the container; return its exit code and output."""
SocketFactory = Callable[[], Awaitable[socket.socket]]
"""Return a socket in the pod's network."""


@dataclass(frozen=True)
class Prober:
    """Run the probes of one container."""

    session: aiohttp.ClientSession
    address: str
    ports: dict[str, int]
    run: CommandRunner
    new_socket: SocketFactory | None = None
    """Open sockets in the pod's network; None if that is the machine's."""

    async def attempt(self, probe: Object) -> str | None:
        """Run a probe; return the failure, or None on success."""
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds") or 1):
                return await self._probe_once(probe)
        except TimeoutError:
            return "timed out"
        except (OSError, aiohttp.ClientError) as error:
            return str(error) or type(error).__name__

    async def _probe_once(self, probe: Object) -> str | None:
        if get := probe.get("httpGet"):
            return await self._http_get(get)
        if tcp := probe.get("tcpSocket"):
            await self._connect(tcp.get("host") or self.address, self._port(tcp["port"]))
            return None
        code, output = await self.run(probe["exec"]["command"])
        text = output[:MAX_REASON_LENGTH].decode(errors="replace").strip()
        return f"command exited with {code}: {text}" if code else None

    async def _connect(self, host: str, port: int) -> None:
        if self.new_socket is None:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return
        with await self.new_socket() as sock:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))

    async def _http_get(self, get: Object) -> str | None:
        scheme, host = get.get("scheme", "HTTP").lower(), get.get("host") or self.address
        url = f"{scheme}://{host}:{self._port(get['port'])}{get.get('path') or '/'}"
        headers = {"User-Agent": "kube-probe/tapestry", **{e["name"]: e["value"] for e in get.get("httpHeaders") or ()}}
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # probes check that it answers, not its identity
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        async with (
            self._open_session() as session,
            session.get(url, headers=headers, ssl=unchecked, allow_redirects=False) as response,
        ):
            return None if 200 <= response.status < 400 else f"HTTP probe failed with statuscode: {response.status}"

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[aiohttp.ClientSession]:
        if self.new_socket is None:
            yield self.session
            return
        sock = await self.new_socket()
        connector = aiohttp.TCPConnector(socket_factory=lambda _: sock)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session

    def _port(self, port: int | str) -> int:
        if isinstance(port, int):
            return port
        if port not in self.ports:
            raise OSError(f"the container has no port named {port}")
        return self.ports[port]


async def probe_results(
    probe: Object, attempt: Callable[[], Awaitable[str | None]], *, eager: bool = False
) -> AsyncGenerator[bool, None]:
    """Yield whether the container is healthy: first when known, then at each change.

    With `eager`, probe every second until the first success.
    """
    await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
    thresholds = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
    period = probe.get("periodSeconds") or 10
    last, in_a_row = True, 0
    while True:
        healthy = await attempt() is None
        last, in_a_row = healthy, in_a_row + 1 if healthy == last else 1
        if in_a_row == thresholds[healthy]:
            yield healthy
        eager = eager and not healthy
        await asyncio.sleep(min(period, EAGER_SECONDS) if eager else period)
