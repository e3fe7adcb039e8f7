"""UDP and TCP sockets of one resolver on the same port.

The socket is not read while the client has used up its queries, so that the kernel drops further ones at little cost.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple

from tapestry.dns.messages import (
    MAX_TCP,
    Answer,
    Code,
    MessageError,
    Query,
    encode_response,
    error_response,
    parse_query,
)
from tapestry.dns.resolver import Forwarded, Resolver
from tapestry.process.logs import logger
from tapestry.process.work_meter import CURRENT_METER, WorkMeter

log = logger(__name__)

QUERIES_PER_SECOND, BURST = 2000.0, 2000.0
"""Queries of one cluster that are answered."""
FORWARDED_COST = 10
"""Queries that one counts as if other servers have to answer it, which costs this process more."""
BATCH = 32
"""Packets that are read before other work runs."""
MAX_QUERY = 1024
"""Bytes of a query; longer ones are malformed."""
MAX_WAITING = 128
"""Queries that wait for other servers at the same time."""
MAX_CONNECTIONS, IDLE_SECONDS = 16, 10.0
MAX_SOURCES, SOURCE_SECONDS = 1024, 1.0
"""Addresses of clients for which it is known whether they are accepted, and seconds until they are checked again."""
MAX_RESPONSES = 256
"""Responses that are sent again to equal queries."""

Source = tuple[str, int]
Ancillary = list[tuple[int, int, bytes]]
IP_PKTINFO = 8
"""Option of Linux that reports the destinations of packets; the module socket has it from Python 3.14 on."""
IPV4_DESTINATION = struct.Struct("@i4s4s")
"""Interface, own address, and destination."""
ANCILLARY_BYTES = socket.CMSG_SPACE(20)


@dataclass(slots=True)
class QueryCounts:
    """Numbers of queries since the start of a listener."""

    queries: int = 0
    limited: int = 0
    """Times that queries were not read, not answered, or a connection was closed, because of a limit."""
    forwarded: int = 0
    failed: int = 0
    """Forwarded queries that no server has answered."""


class DnsListener:
    """Sockets of one resolver."""

    def __init__(
        self, resolver: Resolver, group: asyncio.TaskGroup, meter: Callable[[], WorkMeter | None] = lambda: None
    ) -> None:
        """Create a listener. `meter` returns the meter of the cluster, to which all work is added."""
        self._resolver, self._group, self._meter = resolver, group, meter
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._queries, self._counted = BURST, self._loop.time()
        """Queries that may be answered now, and the time at which they were counted."""
        self._state: object = None
        """State of the resolver to which the responses belong."""
        self._responses: dict[bytes, bytes] = {}
        """Responses by their query, both without the id."""
        self._accepted: dict[str, bool] = {}
        self._checked = 0.0
        """Time from which the addresses of clients are known."""
        self._waiting: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self.port = 0
        self.counts = QueryCounts()

    async def start(self, host: str, port: int) -> None:
        """Listen on a port. Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host or None, port, limit=MAX_QUERY)
        self.port = self._server.sockets[0].getsockname()[1]
        try:
            for each in self._server.sockets:
                self._sockets.append(udp_socket(each.family, each.getsockname()))
        except OSError:
            await self.stop()
            raise
        self._resume()

    async def stop(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        for channel in self._sockets:
            self._loop.remove_reader(channel)
            channel.close()
        self._sockets.clear()
        if self._server is not None:
            self._server.close()
        for each in self._waiting:
            each.cancel()
        for connection in tuple(self._connections):
            connection.transport.abort()

    def _available(self) -> int:
        """Return how many queries may be answered now."""
        now = self._loop.time()
        self._queries = min(self._queries + (now - self._counted) * QUERIES_PER_SECOND, BURST)
        self._counted = now
        return int(self._queries)

    # -- UDP

    def _read(self, channel: socket.socket) -> None:
        meter, started = self._meter(), time.perf_counter_ns()
        self._answer_packets(channel)
        if meter is not None:
            meter.loop_ns += time.perf_counter_ns() - started

    def _answer_packets(self, channel: socket.socket) -> None:
        """Answer some of the packets that have arrived."""
        available = self._available()
        if available <= 0:
            self.counts.limited += 1
            for each in self._sockets:
                self._loop.remove_reader(each)
            self._resuming = self._loop.call_later(BATCH / QUERIES_PER_SECOND, self._resume)
            return
        self._forget_old_responses()  # nothing changes while a batch is read
        for _ in range(min(BATCH, available)):
            try:
                data, ancillary, _, source = channel.recvmsg(MAX_QUERY, ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue
            self._queries -= 1
            self.counts.queries += 1
            self._handle_packet(data, Peer(channel, source, ancillary))

    def _resume(self) -> None:
        self._resuming = None
        for channel in self._sockets:
            self._loop.add_reader(channel, self._read, channel)

    def _handle_packet(self, data: bytes, peer: "Peer") -> None:
        if not self._accepts(peer.source[0]):
            return
        if (known := self._responses.get(data[2:])) is not None:
            peer.send(data[:2] + known)
            return
        query, response = self._own_response(data, None)
        if isinstance(response, bytes):
            peer.send(response)
        elif query is not None and response is not None:
            self._wait(query, response, peer)

    def _forget_old_responses(self) -> None:
        if (state := self._resolver.state()) != self._state:
            self._state = state
            self._responses.clear()

    def _accepts(self, source: str) -> bool:
        if self._counted - self._checked >= SOURCE_SECONDS or len(self._accepted) >= MAX_SOURCES:
            self._accepted.clear()
            self._checked = self._counted
        accepted = self._accepted.get(source)
        if accepted is None:
            accepted = self._accepted[source] = self._resolver.accepts(source)
        return accepted

    def _own_response(self, data: bytes, limit: int | None) -> tuple[Query | None, bytes | Forwarded | None]:
        """Return the query, and the response or the name to forward; None if it gets no response."""
        try:
            query = parse_query(data)
        except MessageError as error:
            return None, error_response(data, error.code) if error.code is not None else None
        try:
            found = self._resolver.known_answer(query)
        except Exception:  # no object of a cluster may stop its resolver
            log.exception("DNS query failed", cluster=self._resolver.client)
            found = Answer(Code.SERVFAIL)
        if isinstance(found, Forwarded):
            return query, found
        response = encode_response(query, found, limit or query.udp_size)
        if limit is None and found.is_authoritative and len(found.records) <= 1:
            self._keep(data, response)
        return query, response

    def _keep(self, data: bytes, response: bytes) -> None:
        """Keep the response to a query, if it is always the same."""
        if len(self._responses) >= MAX_RESPONSES:
            self._responses.clear()
        self._responses[data[2:]] = response[2:]

    def _wait(self, query: Query, forwarded: Forwarded, peer: "Peer") -> None:
        """Answer a query when other servers have answered. With too many such queries, clients have to repeat it."""
        if len(self._waiting) >= MAX_WAITING:
            self.counts.limited += 1
            return
        self._queries -= FORWARDED_COST - 1

        async def answer() -> None:
            peer.send(await self._forwarded_response(query, forwarded, query.udp_size))

        task = self._create_task(answer(), f"dns-{self._resolver.client}")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _forwarded_response(self, query: Query, forwarded: Forwarded, limit: int) -> bytes:
        self.counts.forwarded += 1
        try:
            answer = await self._resolver.forwarded_answer(query, forwarded)
        except Exception:  # no response of a server may stop the resolver
            log.exception("forwarded DNS query failed", cluster=self._resolver.client)
            answer = Answer(Code.SERVFAIL)
        self.counts.failed += answer.code == Code.SERVFAIL
        return encode_response(query, answer, limit)

    # -- TCP

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source = writer.get_extra_info("peername")
        is_busy = len(self._connections) >= MAX_CONNECTIONS or self._available() <= 0
        self.counts.limited += is_busy
        if source is None or is_busy or not self._accepts(source[0]):
            writer.close()
            return
        self._connections.add(writer)
        self._create_task(self._serve(reader, writer), f"dns-tcp-{self._resolver.client}")

    def _create_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Create a task whose steps belong to the cluster."""
        context = Context()
        context.run(CURRENT_METER.set, self._meter())
        return self._group.create_task(work, name=name, context=context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the queries of a connection one after the other."""
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                while self._available() > 0:
                    self._queries -= 1
                    async with asyncio.timeout(IDLE_SECONDS):
                        length = int.from_bytes(await reader.readexactly(2), "big")
                        if length > MAX_QUERY:
                            return
                        self.counts.queries += 1
                        response = await self._tcp_response(await reader.readexactly(length))
                        if response is None:
                            return
                        writer.write(len(response).to_bytes(2, "big") + response)
                        await writer.drain()
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _tcp_response(self, data: bytes) -> bytes | None:
        query, response = self._own_response(data, MAX_TCP)
        if query is None or not isinstance(response, Forwarded):
            return response if isinstance(response, bytes) else None
        self._queries -= FORWARDED_COST - 1
        return await self._forwarded_response(query, response, MAX_TCP)


class Peer(NamedTuple):
    """Client of a packet."""

    channel: socket.socket
    source: Source
    ancillary: Ancillary
    """The address to which the client sent the packet, if the socket is bound to all addresses."""

    def send(self, response: bytes) -> None:
        """Send a packet from the address that the client called. One that cannot be sent now is lost."""
        with suppress(OSError):
            if self.ancillary:
                self.channel.sendmsg([response], list(map(own_address, self.ancillary)), 0, self.source)
            else:
                self.channel.sendto(response, self.source)


def own_address(item: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
    """Return the ancillary data that makes the destination of a received packet the source of the next one."""
    level, type, data = item
    if level == socket.IPPROTO_IP:
        return level, type, IPV4_DESTINATION.pack(0, IPV4_DESTINATION.unpack(data)[1], bytes(4))
    return item


def udp_socket(family: int, address: Source) -> socket.socket:
    """Return a socket that is bound to an address."""
    found = socket.socket(family, socket.SOCK_DGRAM)
    try:
        found.setblocking(False)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as the server for TCP does
        if address[0] == "0.0.0.0":
            found.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        elif address[0] == "::":
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        found.bind(address)
    except OSError:
        found.close()
        raise
    return found
