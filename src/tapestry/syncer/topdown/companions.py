"""What goes down ahead of a pod: what it mounts, its tokens, its claims, the Services that it knows."""

from typing import Protocol

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object


class NotYet(Exception):
    """Something that the pod needs below is not there; a change of it brings the pod back.

    With `seconds` the pod comes back after that time anyway.
    """

    def __init__(self, reason: str, message: str, seconds: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.seconds = seconds


class Companion(Protocol):
    async def precede(self, pod: Object, binding: Binding) -> None:
        """See that what the pod needs is there below, or raise NotYet."""
