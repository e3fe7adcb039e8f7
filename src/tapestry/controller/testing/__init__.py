"""Test tools for controllers: virtual time, an in-process Kubernetes API, the perturbation driver."""

from tapestry.controller.testing.api import InProcessApi, everything_allowed, specimen
from tapestry.controller.testing.clock import (
    START,
    Spinning,
    VirtualClock,
    VirtualLoop,
    in_virtual_time,
    run,
    running_clock,
)
from tapestry.controller.testing.connection import Connection
from tapestry.controller.testing.perturbation import Disturbance, Failure, Report, Scenario, perturb

__all__ = [
    "START",
    "Connection",
    "Disturbance",
    "Failure",
    "InProcessApi",
    "Report",
    "Scenario",
    "Spinning",
    "VirtualClock",
    "VirtualLoop",
    "everything_allowed",
    "in_virtual_time",
    "perturb",
    "run",
    "running_clock",
    "specimen",
]
