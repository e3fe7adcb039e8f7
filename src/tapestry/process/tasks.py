"""Cancelled tasks that leave no reference cycles behind."""

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
