"""The terminal of the user, or the pipes and files in its place."""

import asyncio
import os
import signal
import stat
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CHUNK_BYTES = 1 << 15
STDIN, STDOUT = 0, 1


def is_terminal() -> bool:
    return os.isatty(STDIN)


@contextmanager
def raw_mode() -> Iterator[None]:
    """Pass every key to the program at the other end, also Ctrl-C, while the context is open."""
    before = termios.tcgetattr(STDIN)
    tty.setraw(STDIN, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSANOW, before)  # waiting for output could block


def terminal_size() -> tuple[int, int]:
    """Return the width and height of the terminal itself, whatever the environment says."""
    size = os.get_terminal_size(STDIN)
    return size.columns, size.lines


@contextmanager
def resize_events(handle: Callable[[], None]) -> Iterator[None]:
    """Call `handle` whenever the size of the terminal changes."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, handle)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def read_stdin() -> bytes:
    """Return the next bytes of standard input; none at its end.

    A terminal or a pipe is read only when it has input, so that the program can end while it has none.
    """
    if not stat.S_ISREG(os.fstat(STDIN).st_mode):
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        try:
            loop.add_reader(STDIN, set_result_once, readable)
        except PermissionError:  # for example /dev/null, which never blocks
            return os.read(STDIN, CHUNK_BYTES)
        try:
            await readable
        finally:
            loop.remove_reader(STDIN)
    with suppress(OSError):
        return os.read(STDIN, CHUNK_BYTES)
    return b""


def set_result_once(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def write_output(data: bytes, *, is_error: bool) -> None:
    """Write bytes to standard output or standard error at once."""
    stream = sys.stderr.buffer if is_error else sys.stdout.buffer
    stream.write(data)
    stream.flush()
