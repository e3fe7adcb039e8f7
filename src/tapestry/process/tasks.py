"""Tasks that were cancelled and leave no reference cycles behind, and errors of groups of tasks."""

import asyncio
from collections.abc import Iterable
from typing import Any


def free_frames(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Free the frames of those tasks that were cancelled, and with them all that their variables refer to.

    A cancelled TaskGroup refers to its own traceback. Without this, only the garbage collector frees such frames.
    """
    for task in tasks:
        if task.cancelled():
            try:
                task.result()
            except asyncio.CancelledError as error:
                error.__traceback__ = None


def first_error(error: Exception) -> Exception:
    """Return the first error in nested groups, which caused the others."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
