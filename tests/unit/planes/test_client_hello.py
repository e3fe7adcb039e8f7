"""The server name of a TLS connection, read without taking it from the socket."""

import asyncio
import socket
import ssl

import pytest

from tapestry.planes.client_hello import peek_server_name, server_name


def hello(host: str | None) -> bytes:
    """Return the first message of a TLS client."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    context.check_hostname = False
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=host).do_handshake()
    return sent.read()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (hello("abc.planes.tapestry.local"), "abc.planes.tapestry.local"),
        (hello(None), ""),
        (hello("abc")[:-1], None),
        (hello("abc")[:3], None),
        (b"", None),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
        (bytes(range(256)), ""),
        (b"\x16\x03\x01\xff\xff" + bytes(100), ""),
    ],
)
def test_server_name_of_a_first_message(data: bytes, expected: str | None) -> None:
    assert server_name(data) == expected


async def test_message_in_parts_stays_in_the_socket() -> None:
    data = hello("abc")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            found = group.create_task(peek_server_name(ours))
            for part in (data[:10], data[10:]):
                await asyncio.sleep(0)
                assert not found.done()
                theirs.send(part)
        assert found.result() == "abc"
        assert ours.recv(10_000) == data


async def test_client_that_disconnects_has_no_name() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    with ours:
        assert await peek_server_name(ours) == ""
