"""DNS servers and clients for tests."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tapestry.dns.messages import (
    HEADER,
    Answer,
    Code,
    Record,
    Type,
    encode_query,
    encode_response,
    labels_of_name,
    parse_query,
    parse_response,
    wire_name,
)
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.local.kubernetes import free_ports


@dataclass
class Upstream:
    """A DNS server with fixed answers, which remembers its queries."""

    answers: dict[str, list[str]] = field(default_factory=dict)
    """Addresses by name."""
    queries: list[bytes] = field(default_factory=list)
    port: int = 0

    def response(self, data: bytes, *, limit: int = 1232) -> bytes:
        query = parse_query(data)
        self.queries.append(query.name)
        found = [
            Record(query.name, Type.A, 60, ipaddress.ip_address(each).packed)
            for name, addresses in self.answers.items()
            if wire_name(name) == query.name and query.type == Type.A
            for each in addresses
        ]
        return encode_response(query, Answer(Code.NOERROR if found else Code.NXDOMAIN, found), limit)

    def names(self) -> set[str]:
        """Return the names that were queried."""
        return {".".join(label.decode("ascii", "replace") for label in labels_of_name(each)) for each in self.queries}


class Protocol(asyncio.DatagramProtocol):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, source: Any) -> None:
        self.transport.sendto(HEADER.pack(1, 0x8000, 0, 0, 0, 0), source)  # a response to another query
        self.transport.sendto(self.upstream.response(data), source)


async def serve_tcp(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    length = int.from_bytes(await reader.readexactly(2), "big")
    response = upstream.response(await reader.readexactly(length), limit=65535)
    writer.write(len(response).to_bytes(2, "big") + response)
    writer.close()


@asynccontextmanager
async def running_upstream(answers: Mapping[str, list[str]] = EMPTY_MAPPING) -> AsyncIterator[Upstream]:
    """Run a server with the addresses of some names."""
    upstream = Upstream(dict(answers))
    loop = asyncio.get_running_loop()
    (upstream.port,) = free_ports(1)
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Protocol(upstream), local_addr=("127.0.0.1", upstream.port)
    )
    try:
        async with await asyncio.start_server(lambda r, w: serve_tcp(upstream, r, w), "127.0.0.1", upstream.port):
            yield upstream
    finally:
        transport.close()
        await asyncio.sleep(0)  # until it is closed


async def ask(port: int, name: str, type: int = Type.A) -> tuple[Code, list[str]]:
    """Return the code and the addresses of the response over UDP."""
    message = encode_query(7, wire_name(name), type)
    answer, _ = parse_response(await sent(port, message), 7, parse_query(message).question)
    return answer.code, [str(ipaddress.ip_address(each.data)) for each in answer.records if each.type == Type.A]


async def sent(port: int, message: bytes, timeout: float = 5.0, address: str = "127.0.0.1") -> bytes:
    """Return the response to a packet, which must come from the address that it was sent to."""
    loop, family = asyncio.get_running_loop(), socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.connect((address, port))
        channel.send(message)
        async with asyncio.timeout(timeout):
            return await loop.sock_recv(channel, 65535)


async def sent_over_tcp(port: int, *messages: bytes) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    try:
        for each in messages:
            writer.write(len(each).to_bytes(2, "big") + each)
            found.append(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")))
    finally:
        writer.close()
        await writer.wait_closed()
    return found


def consecutive_ports(count: int) -> list[int]:
    """Return free ports in a row."""
    while True:
        (first,) = free_ports(1)
        if first + count < 32_000:
            return list(range(first, first + count))
