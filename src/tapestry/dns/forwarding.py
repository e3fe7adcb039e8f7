"""Queries to other DNS servers, with a small cache for each client.

Each query has a random id and a socket of its own, which is connected to the server, so its port is random, too, and
packets of other machines do not reach it. Equal queries of a client at the same time are sent once: otherwise each of
them would be one more chance to guess the id of another.
"""

import asyncio
import secrets
import socket
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tapestry.dns.messages import (
    MAX_TCP,
    Answer,
    Code,
    MessageError,
    encode_query,
    parse_query,
    parse_response,
)
from tapestry.process.logs import logger

log = logger(__name__)

DNS_PORT = 53
TRY_SECONDS, TOTAL_SECONDS = 1.5, 4.5
"""Seconds to wait for one server, and for all of them. Clients usually wait five seconds."""
MAX_SERVERS, ROUNDS = 3, 2
MAX_CLIENT_QUERIES, MAX_QUERIES = 64, 1024
"""Queries of one client, and of all, that wait for other servers at the same time."""
MAX_CACHED, MAX_CACHED_RECORDS = 256, 32
"""Answers that are kept for one client, and records of such an answer."""
MAX_TTL = 300
"""Seconds for which an answer is kept at most."""


class Server(NamedTuple):
    """Address of a DNS server."""

    address: str
    port: int = DNS_PORT


@dataclass
class ClientState:
    """Cached answers of one client, and its queries that wait."""

    cached: OrderedDict[tuple[bytes, int], tuple[float, Answer]] = field(default_factory=OrderedDict)
    """Answers with the times at which they were received, by name and type."""
    waiting: dict[tuple[bytes, int], asyncio.Future[Answer]] = field(default_factory=dict)


@dataclass
class Forwarder:
    """Queries of many clients to other servers."""

    monotonic: Callable[[], float] = time.monotonic
    _clients: defaultdict[str, ClientState] = field(default_factory=lambda: defaultdict(ClientState))
    _count: int = 0
    """Queries that wait."""

    def forget(self, client: str) -> None:
        """Forget the cached answers of a client."""
        self._clients.pop(client, None)

    async def answer(self, client: str, servers: Sequence[Server], name: bytes, type: int) -> Answer:
        """Return the answer of one of the servers. It has the code SERVFAIL if there is none in time."""
        state, key = self._clients[client], (name, type)
        if (waiting := state.waiting.get(key)) is not None:
            return await asyncio.shield(waiting)
        if len(state.waiting) >= MAX_CLIENT_QUERIES or self._count >= MAX_QUERIES:
            return Answer(Code.SERVFAIL)
        result = state.waiting[key] = asyncio.get_running_loop().create_future()
        self._count += 1
        found = Answer(Code.SERVFAIL)
        try:
            found = await answer_of_servers(servers, name, type)
            self._keep(state, key, found)
        finally:
            self._count -= 1
            del state.waiting[key]
            result.set_result(found)
        return found

    def cached_answer(self, client: str, name: bytes, type: int) -> Answer | None:
        """Return a cached answer, whose records are valid for the rest of their time; None if there is none."""
        state, key = self._clients.get(client), (name, type)
        if state is None or (entry := state.cached.get(key)) is None:
            return None
        received, answer = entry
        age = int(self.monotonic() - received)
        if age >= min(answer.ttl, MAX_TTL):
            del state.cached[key]
            return None
        state.cached.move_to_end(key)
        records = [each._replace(ttl=each.ttl - age) for each in answer.records]
        authority = [each._replace(ttl=each.ttl - age) for each in answer.authority]
        return replace(answer, records=records, authority=authority)

    def _keep(self, state: ClientState, key: tuple[bytes, int], answer: Answer) -> None:
        if answer.code == Code.SERVFAIL or not answer.ttl:
            return
        if len(answer.records) + len(answer.authority) > MAX_CACHED_RECORDS:
            return
        state.cached[key] = self.monotonic(), answer
        if len(state.cached) > MAX_CACHED:
            state.cached.popitem(last=False)


async def answer_of_servers(servers: Sequence[Server], name: bytes, type: int) -> Answer:
    """Ask the servers one after the other, and return the first answer that is not an error."""
    found = Answer(Code.SERVFAIL)
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            for server in (*servers[:MAX_SERVERS],) * ROUNDS:
                found = await answer_of_server(server, name, type)
                if found.code != Code.SERVFAIL:
                    break
    except TimeoutError:
        return found
    return found


async def answer_of_server(server: Server, name: bytes, type: int) -> Answer:
    message = encode_query(secrets.randbits(16), name, type)
    try:
        async with asyncio.timeout(TRY_SECONDS):
            answer, is_truncated = await udp_answer(server, message)
            return await tcp_answer(server, message) if is_truncated else answer
    except (OSError, TimeoutError, MessageError, asyncio.IncompleteReadError) as error:
        log.debug("DNS server did not answer", server=server.address, error=repr(error))
        return Answer(Code.SERVFAIL)


def parsed(response: bytes, message: bytes) -> tuple[Answer, bool]:
    """Return the answer in a response to a query. Raise MessageError."""
    query = parse_query(message)
    return parse_response(response, query.id, query.question)


async def udp_answer(server: Server, message: bytes) -> tuple[Answer, bool]:
    """Return the answer of a server, and whether it is truncated."""
    loop, family = asyncio.get_running_loop(), socket.AF_INET6 if ":" in server.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect((server.address, server.port))
        channel.send(message)
        while True:
            response = await loop.sock_recv(channel, MAX_TCP)
            try:
                return parsed(response, message)
            except MessageError as error:
                if error.code is not None:
                    raise  # it is a response to our query


async def tcp_answer(server: Server, message: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(server.address, server.port, limit=MAX_TCP)
    try:
        writer.write(len(message).to_bytes(2, "big") + message)
        length = int.from_bytes(await reader.readexactly(2), "big")
        answer, is_truncated = parsed(await reader.readexactly(length), message)
        return Answer(Code.SERVFAIL) if is_truncated else answer
    finally:
        writer.close()
