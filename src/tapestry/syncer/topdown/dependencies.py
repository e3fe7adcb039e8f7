"""What goes down ahead of a pod: what it mounts, its tokens, its claims, the Services that it knows."""

from typing import Protocol

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object


class DependencyNotReady(Exception):
    """Something that the pod needs below is not there; a change of it brings the pod back.

    With `seconds` the pod comes back after that time anyway.
    """

    def __init__(self, reason: str, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_seconds = retry_seconds


class Dependency(Protocol):
    async def ensure(self, pod: Object, binding: Binding) -> None:
        """See that what the pod needs is there below, or raise NotYet."""
