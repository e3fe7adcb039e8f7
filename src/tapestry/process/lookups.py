"""Lookups of host names in threads of their own.

The threads in which an event loop looks names up are few, and all parts of a process share them. A name server that
does not answer would block the lookups of all parts.
"""

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

MAX_LOOKUPS = 4

AddressInfos = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]]
"""Addresses as `socket.getaddrinfo` returns them."""


class Lookups:
    """Looks up names for one part of a process, each in a new thread, and a few at the same time."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_LOOKUPS)

    async def addresses(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> AddressInfos:
        """Return the addresses of a host for TCP. Raises OSError. The lookup continues if the caller is cancelled."""
        query = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        with suppress(OSError, UnicodeError):
            return query(flags=socket.AI_NUMERICHOST)
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        found: asyncio.Future[AddressInfos] = loop.create_future()

        def end(result: AddressInfos | OSError) -> None:
            self._free.release()
            if found.done():
                return
            if isinstance(result, OSError):
                found.set_exception(result)
            else:
                found.set_result(result)

        def look_up() -> None:
            result: AddressInfos | OSError
            try:
                result = query(flags=socket.AI_ADDRCONFIG)
            except OSError as error:
                result = error
            except UnicodeError as error:  # a label is empty or too long
                result = socket.gaierror(socket.EAI_NONAME, str(error))
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, result)

        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        return await found
