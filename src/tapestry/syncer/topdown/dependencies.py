"""Dependencies that must exist in the physical cluster before a pod's twin is created."""

from typing import Protocol

from tapestry.apis.clusterbindings import Binding
from tapestry.syncer.views import VirtualPod


class DependencyNotReady(Exception):
    """A dependency of the pod does not exist yet; its change requeues the pod.

    With `retry_seconds` the pod is also requeued after that time.
    """

    def __init__(self, reason: str, message: str, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_seconds = retry_seconds


class NotGranted(DependencyNotReady):
    """The virtual API server forbids a request that the pod needs; the manager may be about to grant the right."""

    def __init__(self, message: str, reason: str = "NotGranted") -> None:
        super().__init__(reason, message)


class Dependency(Protocol):
    async def ensure(self, pod: VirtualPod, binding: Binding) -> None:
        """Create what the pod needs in the physical cluster, or raise DependencyNotReady."""
