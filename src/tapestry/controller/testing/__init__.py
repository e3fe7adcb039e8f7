"""Test tools for authors of controllers: virtual time, and a Kubernetes API in this process."""

from tapestry.controller.testing.api import InProcessApi, everything_allowed
from tapestry.controller.testing.clock import START, Spinning, VirtualClock, VirtualLoop, run, running_clock
from tapestry.controller.testing.connection import Connection

__all__ = [
    "START",
    "Connection",
    "InProcessApi",
    "Spinning",
    "VirtualClock",
    "VirtualLoop",
    "everything_allowed",
    "run",
    "running_clock",
]
