"""The server name of a TLS connection, before anything of it is read."""

import asyncio
import socket
import ssl

POLL_SECONDS = 0.01
"""Seconds between two looks at a message that has not arrived completely."""
MAX_BYTES = 1 << 14
"""Size of the longest message that is looked at. Those of browsers have 2 KiB."""


async def peek_server_name(client: socket.socket) -> str:
    """Return the server name that a client sends first; empty if it sends none, or something else than TLS.

    The message stays in the socket, for a server that has not seen it. Wait until it is complete.
    """
    while True:
        try:
            data = client.recv(MAX_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            data = b""
        else:
            if not data:  # the client has disconnected
                return ""
        name = server_name(data)
        if name is not None or len(data) == MAX_BYTES:
            return name or ""
        await asyncio.sleep(POLL_SECONDS)


def server_name(hello: bytes) -> str | None:
    """Return the server name in the first message of a client; None if the message is not complete."""
    found: list[str] = []

    def select(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        found.append(name or "")
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # ends the handshake of OpenSSL, which was only the parser

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = select
    received = ssl.MemoryBIO()
    received.write(hello)
    try:
        context.wrap_bio(received, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError:
        return found[0] if found else ""
    return ""
