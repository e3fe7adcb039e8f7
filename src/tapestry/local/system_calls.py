"""System calls that Python has no functions for.

`container_init` uses this module, so it imports the standard library only.
"""

import ctypes
import errno
import os
from typing import Any

SYSTEM_CALLS = {
    "x86_64": {"pivot_root": 155, "keyctl": 250, "mount_setattr": 442},
    "aarch64": {"pivot_root": 41, "keyctl": 219, "mount_setattr": 442},
}
"""Numbers of system calls without a function in the C library, by architecture."""

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; raise OSError."""
    values = [each.encode() if isinstance(each, str) else each for each in arguments]
    result: int = getattr(libc, name)(*values)
    if result < 0:
        number = ctypes.get_errno()
        where = f" {arguments[1]}" if name == "mount" else ""
        raise OSError(number, f"{name}{where}: {os.strerror(number)}")
    return result


def system_call(name: str, *arguments: Any) -> None:
    numbers = SYSTEM_CALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"{name}: not supported on {os.uname().machine}")
    try:
        call("syscall", ctypes.c_long(numbers[name]), *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{name}: {os.strerror(error.errno or 0)}") from error


def write_file(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
