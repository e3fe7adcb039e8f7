"""The PriorityClass below, without which no twin can be created.

The syncer creates ours where its rights allow.  Where they do not, it says so once, and from time to time one pod finds
out whether the class is there: the others wait without being tried.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.priorities import PRIORITY_CLASSES, missing_class_message, priority_class
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.objects import Object, key_of
from tapestry.process.logs import logger
from tapestry.syncer.context import CACHE_LAG_SECONDS, SyncContext
from tapestry.syncer.topdown.pod_status_writer import PodStatusWriter

log = logger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = timedelta(seconds=1), timedelta(minutes=1)
"""Between two tries while the class is missing; each is twice as long as the one before."""
NOT_PERMITTED = "NotPermitted"


@dataclass(frozen=True)
class PriorityClassGuard:
    """Holds pods back while their PriorityClass is missing below."""

    context: SyncContext
    status_writer: PodStatusWriter
    requeue_pod: Callable[[str], None]
    """Has a virtual pod looked at."""
    waiting: set[str] = field(default_factory=set)
    """Keys of the pods that wait."""
    probing: set[str] = field(default_factory=set)
    """Keys of those that find out for the others."""

    async def wait_if_missing(self, pod: Object, binding: Binding) -> Result | None:
        """Have the pod wait while the class is missing; None where it may be tried."""
        trouble, now = self.context.priority_class_state, self.context.now()
        if trouble.retry_at is None:
            return None
        if trouble.retry_at <= now:
            trouble.retry_at = now + MAX_BACKOFF  # unless there is an answer before
            self.probing.add(key_of(pod))
            return None
        return await self.wait(pod, binding, trouble.retry_at)

    async def on_class_missing(self, pod: Object, binding: Binding) -> Result:
        """The physical API server does not know the PriorityClass of the twin."""
        trouble, now = self.context.priority_class_state, self.context.now()
        if trouble.retry_at is None or key_of(pod) in self.probing:
            self.probing.discard(key_of(pod))
            trouble.backoff = min(2 * trouble.backoff, MAX_BACKOFF) if trouble.backoff else INITIAL_BACKOFF
            trouble.retry_at = now + trouble.backoff
            if await self.create(binding):
                trouble.retry_at = now + timedelta(seconds=CACHE_LAG_SECONDS)  # until the API server there knows it
            else:
                self.report(binding)
        return await self.wait(pod, binding, trouble.retry_at)

    async def create(self, binding: Binding) -> bool:
        """Create our class, if it is ours that the binding wants and we may; whether it is there."""
        if priority_class_name(binding) != keys.PRIORITY_CLASS:
            return False
        try:
            await self.context.physical_client.create(PRIORITY_CLASSES, priority_class())
        except AlreadyExists:
            return True
        except ApiError as error:
            if self.context.priority_class_state.missing_message is None:
                log.warning("cannot create the PriorityClass", name=keys.PRIORITY_CLASS, error=error.message)
            return False
        log.info("created the PriorityClass", name=keys.PRIORITY_CLASS)
        return True

    def report(self, binding: Binding) -> None:
        """Say that the class is missing: in one event, and in a condition of the binding, which is written later."""
        obj = self.context.binding_object()
        if self.context.priority_class_state.missing_message is None and obj is not None:
            self.context.priority_class_state.missing_message = missing_class_message(priority_class_name(binding))
            self.context.manager.events.warning(
                obj, keys.PRIORITY_CLASS_MISSING, self.context.priority_class_state.missing_message
            )

    async def wait(self, pod: Object, binding: Binding, until: datetime) -> Result:
        self.waiting.add(key_of(pod))
        await self.status_writer.set_unmapped(pod, NOT_PERMITTED, missing_class_message(priority_class_name(binding)))
        return Result(requeue_at=until)

    def on_twin_created(self) -> None:
        """A twin was created: the class is there."""
        trouble = self.context.priority_class_state
        if trouble.retry_at is not None:
            trouble.missing_message = trouble.retry_at = None
            trouble.backoff = timedelta()
            for key in sorted(self.waiting):
                self.requeue_pod(key)
            self.waiting.clear()
            self.probing.clear()


def is_class_missing(error: ApiError) -> bool:
    return "no PriorityClass with name" in error.message


def priority_class_name(binding: Binding) -> str:
    """The PriorityClass of a binding's twins."""
    return binding.spec.pod_priority_class_name or keys.PRIORITY_CLASS
