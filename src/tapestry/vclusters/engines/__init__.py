"""The interface of engines, which run the steps of operations.

An engine looks at what exists before it acts, so it may run or undo any step again after it was killed anywhere. It
finds everything that it made by the UID of the virtual cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tapestry.apis.vclusters import Journal
from tapestry.kube.objects import Object
from tapestry.vclusters.plans import Step


class StepNotDone(Exception):
    """The step needs more time. The message is shown as that of the virtual cluster."""


class StepFailed(Exception):
    """The step cannot succeed, so it is not repeated. Any other error is, until the deadline of the step."""

    def __init__(self, reason: str, message: str, code: str = "FAILED_PRECONDITION") -> None:
        super().__init__(message)
        self.reason, self.code = reason, code


@dataclass(frozen=True)
class Observation:
    """State of a virtual cluster as its engine sees it."""

    is_healthy: bool
    message: str = ""
    status: Object = field(default_factory=dict)
    """Fields of the status that the engine knows: endpoint, version, replicas, usage."""
    conditions: tuple[Object, ...] = ()


class Engine(Protocol):
    async def run(self, step: Step, vcluster: Object, journal: Journal) -> Mapping[str, Any]:
        """Run a step, and return results that later steps need. Raises StepNotDone, StepFailed and other errors."""
        ...

    async def undo(self, step: Step, vcluster: Object, journal: Journal) -> None:
        """Undo what a step did, as far as it did it. Raises StepNotDone and other errors."""
        ...

    async def observe(self, vcluster: Object) -> Observation:
        """Return the state of a virtual cluster that is installed."""
        ...
