"""The PriorityClass below, without which no twin can be created.

The syncer creates ours where its rights allow.  Where they do not, it says so once, and from time to time one pod finds
out whether the class is there: the others wait without being tried.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.priorities import PRIORITY_CLASSES, missing_message, priority_class
from tapestry.controller import Result
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.objects import Object, key_of
from tapestry.process.logs import logger
from tapestry.syncer.site import LAG, Site
from tapestry.syncer.topdown.verdicts import Verdicts

log = logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=1)
"""Between two tries while the class is missing; each is twice as long as the one before."""
NOT_PERMITTED = "NotPermitted"


@dataclass(frozen=True)
class PriorityClassGuard:
    """Holds pods back while their PriorityClass is missing below."""

    site: Site
    verdicts: Verdicts
    wake: Callable[[str], None]
    """Has a virtual pod looked at."""
    waiting: set[str] = field(default_factory=set)
    """Keys of the pods that wait."""
    trying: set[str] = field(default_factory=set)
    """Keys of those that find out for the others."""

    async def hold_back(self, pod: Object, binding: Binding) -> Result | None:
        """Have the pod wait while the class is missing; None where it may be tried."""
        trouble, now = self.site.trouble, self.site.now()
        if trouble.retry_at is None:
            return None
        if trouble.retry_at <= now:
            trouble.retry_at = now + LONGEST_PAUSE  # unless there is an answer before
            self.trying.add(key_of(pod))
            return None
        return await self.wait(pod, binding, trouble.retry_at)

    async def refused(self, pod: Object, binding: Binding) -> Result:
        """The physical API server does not know the PriorityClass of the twin."""
        trouble, now = self.site.trouble, self.site.now()
        if trouble.retry_at is None or key_of(pod) in self.trying:
            self.trying.discard(key_of(pod))
            trouble.pause = min(2 * trouble.pause, LONGEST_PAUSE) if trouble.pause else FIRST_PAUSE
            trouble.retry_at = now + trouble.pause
            if await self.create(binding):
                trouble.retry_at = now + timedelta(seconds=LAG)  # until the API server there knows it
            else:
                self.report(binding)
        return await self.wait(pod, binding, trouble.retry_at)

    async def create(self, binding: Binding) -> bool:
        """Create our class, if it is ours that the binding wants and we may; whether it is there."""
        if class_of(binding) != keys.PRIORITY_CLASS:
            return False
        try:
            await self.site.physical.create(PRIORITY_CLASSES, priority_class())
        except AlreadyExists:
            return True
        except ApiError as error:
            if self.site.trouble.priority_class is None:
                log.warning("cannot create the PriorityClass", name=keys.PRIORITY_CLASS, error=error.message)
            return False
        log.info("created the PriorityClass", name=keys.PRIORITY_CLASS)
        return True

    def report(self, binding: Binding) -> None:
        """Say that the class is missing: in one event, and in a condition of the binding, which is written later."""
        obj = self.site.binding_object()
        if self.site.trouble.priority_class is None and obj is not None:
            self.site.trouble.priority_class = missing_message(class_of(binding))
            self.site.manager.events.warning(obj, keys.PRIORITY_CLASS_MISSING, self.site.trouble.priority_class)

    async def wait(self, pod: Object, binding: Binding, until: datetime) -> Result:
        self.waiting.add(key_of(pod))
        await self.verdicts.wait(pod, NOT_PERMITTED, missing_message(class_of(binding)))
        return Result(requeue_at=until)

    def found(self) -> None:
        """A twin was created: the class is there."""
        trouble = self.site.trouble
        if trouble.retry_at is not None:
            trouble.priority_class = trouble.retry_at = None
            trouble.pause = timedelta()
            for key in sorted(self.waiting):
                self.wake(key)
            self.waiting.clear()
            self.trying.clear()


def is_missing(error: ApiError) -> bool:
    return "no PriorityClass with name" in error.message


def class_of(binding: Binding) -> str:
    """The PriorityClass of a binding's twins."""
    return binding.spec.pod_priority_class_name or keys.PRIORITY_CLASS
