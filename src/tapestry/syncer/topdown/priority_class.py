"""Guard that holds pods back while the PriorityClass of twins is missing.

Without the class no twin can be created. The syncer creates ours if it may. If not, it reports that once, and from time
to time one pod probes whether the class exists while the others wait.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.priorities import PRIORITY_CLASSES, missing_class_message, priority_class
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.process.logs import logger
from tapestry.syncer.caches import CACHE_LAG_SECONDS
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter
from tapestry.syncer.views import VirtualPod

log = logger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = timedelta(seconds=1), timedelta(minutes=1)
"""Time between two attempts while the class is missing; it doubles each time."""
NOT_PERMITTED = "NotPermitted"


@dataclass(slots=True)
class PriorityClassState:
    """Backoff while the PriorityClass of twins is missing in the physical cluster."""

    missing_message: str | None = None
    """Error message about the missing PriorityClass."""
    retry_at: datetime | None = None
    """Time before which no twin is created for that reason."""
    backoff: timedelta = timedelta()
    """Length of the last wait."""


@dataclass(frozen=True)
class PriorityClassGuard:
    """Hold pods back while their PriorityClass is missing in the physical cluster."""

    current_binding: CurrentBinding
    clients: Clients
    now: Callable[[], datetime]
    state: PriorityClassState
    status_writer: PodStatusWriter
    requeue_pod: Callable[[str], None]
    """Requeue a virtual pod."""
    waiting: set[str] = field(default_factory=set)
    """Keys of the pods that wait."""
    probing: set[str] = field(default_factory=set)
    """Keys of the pods that probe for the others."""

    async def wait_if_missing(self, pod: VirtualPod, binding: Binding) -> Result | None:
        """Make the pod wait while the class is missing; return None if it may be tried."""
        state, now = self.state, self.now()
        if state.retry_at is None:
            return None
        if state.retry_at <= now:
            state.retry_at = now + MAX_BACKOFF  # the result of the probe overwrites this
            self.probing.add(pod.key)
            return None
        return await self.wait(pod, binding, state.retry_at)

    async def on_class_missing(self, pod: VirtualPod, binding: Binding) -> Result:
        """Handle the error that the physical API server does not know the PriorityClass."""
        state, now = self.state, self.now()
        if state.retry_at is None or pod.key in self.probing:
            self.probing.discard(pod.key)
            state.backoff = min(2 * state.backoff, MAX_BACKOFF) if state.backoff else INITIAL_BACKOFF
            state.retry_at = now + state.backoff
            if await self.create(binding):
                state.retry_at = now + timedelta(seconds=CACHE_LAG_SECONDS)  # until the API server has seen it
            else:
                self.report(binding)
        return await self.wait(pod, binding, state.retry_at)

    async def create(self, binding: Binding) -> bool:
        """Create our class if the binding uses it and we may; return whether it exists."""
        if priority_class_name(binding) != keys.PRIORITY_CLASS:
            return False
        try:
            await self.clients.physical.create(PRIORITY_CLASSES, priority_class())
        except AlreadyExists:
            return True
        except ApiError as error:
            if self.state.missing_message is None:
                log.warning("PriorityClass not created", name=keys.PRIORITY_CLASS, error=error.message)
            return False
        log.info("PriorityClass created", name=keys.PRIORITY_CLASS)
        return True

    def report(self, binding: Binding) -> None:
        """Report the missing class in one event; the binding's condition is written later."""
        obj = self.current_binding.object()
        if self.state.missing_message is None and obj is not None:
            self.state.missing_message = missing_class_message(priority_class_name(binding))
            self.clients.events.warning(obj, keys.PRIORITY_CLASS_MISSING, self.state.missing_message)

    async def wait(self, pod: VirtualPod, binding: Binding, until: datetime) -> Result:
        self.waiting.add(pod.key)
        await self.status_writer.set_unmapped(pod, NOT_PERMITTED, missing_class_message(priority_class_name(binding)))
        return Result(requeue_at=until)

    def on_twin_created(self) -> None:
        """Handle the creation of a twin, which proves that the class exists."""
        state = self.state
        if state.retry_at is not None:
            state.missing_message = state.retry_at = None
            state.backoff = timedelta()
            for key in sorted(self.waiting):
                self.requeue_pod(key)
            self.waiting.clear()
            self.probing.clear()


def priority_class_name(binding: Binding) -> str:
    return binding.spec.pod_priority_class_name or keys.PRIORITY_CLASS
