"""The bytes that went over our TCP connections, as the kernel counts them.

Nothing is counted per request.  The kernel knows the bytes of each open connection; those of a connection that ends are
added up when its socket is closed.  Where the kernel does not tell (other systems than Linux), the totals stay 0.
"""

import socket
import struct
import weakref
from typing import NamedTuple

BYTES = struct.Struct("=QQ")
OFFSET = 120
"""Of tcpi_bytes_acked in Linux' struct tcp_info; tcpi_bytes_received follows it."""
TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)


class Bytes(NamedTuple):
    sent: int = 0
    received: int = 0

    def plus(self, other: "Bytes") -> "Bytes":
        return Bytes(self.sent + other.sent, self.received + other.received)


class Traffic:
    """Totals of the connections of this process, those that ended included."""

    def __init__(self) -> None:
        self._ended = Bytes()
        # A plain dict: its values are copied in one step, so that another thread may read the totals.
        self._open: dict[int, weakref.ref[socket.socket]] = {}

    def opened(self, made: socket.socket) -> None:
        key = id(made)
        self._open[key] = weakref.ref(made, lambda _: self._open.pop(key, None))

    def ended(self, made: socket.socket) -> None:
        """Call it before the socket is closed; the second call for a socket does nothing."""
        if self._open.pop(id(made), None) is not None:
            self._ended = self._ended.plus(bytes_of(made))

    def totals(self) -> Bytes:
        found = self._ended
        for each in list(self._open.values()):
            if (made := each()) is not None:
                found = found.plus(bytes_of(made))
        return found


TRAFFIC = Traffic()


class CountedSocket(socket.socket):
    """A TCP socket whose bytes count."""

    def __init__(self, family: int, type: int, proto: int) -> None:
        super().__init__(family, type, proto)
        TRAFFIC.opened(self)

    def close(self) -> None:
        TRAFFIC.ended(self)
        super().close()

    def detach(self) -> int:  # uvloop closes the descriptor itself
        TRAFFIC.ended(self)
        return super().detach()


def bytes_of(made: socket.socket) -> Bytes:
    """What the kernel counted for one connection so far."""
    if TCP_INFO is None or made.fileno() < 0:
        return Bytes()
    try:
        info = made.getsockopt(socket.IPPROTO_TCP, TCP_INFO, OFFSET + BYTES.size)
    except OSError:
        return Bytes()
    return Bytes(*BYTES.unpack_from(info, OFFSET)) if len(info) >= OFFSET + BYTES.size else Bytes()
