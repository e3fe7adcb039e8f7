"""Controllers: a keyed function, the changes that call it, and the workers that run it.

A reconciler is `async (key) -> Result | None`.  It reads caches, decides, and writes little.  It says only when it
wants to look again; raising asks for another pass after a pause; `Terminal` waits for a change.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tapestry.controller.errors import NotLeading, Terminal
from tapestry.controller.informer import Informer
from tapestry.controller.metrics import ERRORS, QUEUE_AGE, QUEUE_DEPTH, RETRIES, reconcile_series, sync_series
from tapestry.controller.queue import Queue, QueueClosed
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, KubeError
from tapestry.kube.objects import Object, controller_of, key_of, namespace_of
from tapestry.kube.resources import Resource
from tapestry.process.logs import log_context, logger
from tapestry.process.tracing import span

log = logger(__name__)

KeyMapper = Callable[[Object], Iterable[str]]
"""The keys to look at when an object changes."""


@dataclass(frozen=True, slots=True)
class Result:
    """When to look again: after so many seconds, or at a moment of the wall clock."""

    requeue_after: float | None = None
    requeue_at: datetime | None = None


Reconcile = Callable[[str], Awaitable[Result | None]]


def own_key(obj: Object) -> Iterable[str]:
    return (key_of(obj),)


def own_namespace(obj: Object) -> Iterable[str]:
    return (namespace_of(obj) or "",)


def controller_key(resource: Resource) -> KeyMapper:
    """The key of the `resource` object that is the object's managing controller, as its owner references say."""

    def keys(obj: Object) -> Iterable[str]:
        owner = controller_of(obj)
        if owner is None or owner["kind"] != resource.kind or owner["apiVersion"] != resource.api_version:
            return ()
        namespace = namespace_of(obj) if resource.namespaced else None
        return (f"{namespace}/{owner['name']}" if namespace else owner["name"],)

    return keys


def generation_changed(old: Object | None, new: Object | None) -> bool:
    """Whether anything but the status and the metadata changed; for `Controller.watch(when=...)`."""
    if old is None or new is None:
        return True
    before, after = old["metadata"], new["metadata"]
    return any(before.get(field) != after.get(field) for field in ("generation", "deletionTimestamp"))


class Controller:
    """Runs one reconciler over one queue of keys."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 4,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self.queue = Queue()
        self.sources: list[tuple[Informer, KeyMapper]] = []
        self._reconcile = reconcile
        self._workers = workers
        self._now = now

    def watch(
        self,
        informer: Informer,
        keys: KeyMapper = own_key,
        *,
        when: Callable[[Object | None, Object | None], bool] | None = None,
        after: float = 0.0,
    ) -> None:
        """Look at `keys` of an object, as it was and as it is, whenever it changes (and `when` agrees).

        With `after`, so many seconds later, once for all changes until then: for passes that cost more than a change.
        """
        self.sources.append((informer, keys))

        def enqueue(old: Object | None, new: Object | None) -> None:
            if when is not None and not when(old, new):
                return
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add_after(key, after)

        informer.on_change(enqueue)

    def resync(self) -> None:
        """Look at every object of the first source again, after all fresh work."""
        for informer, keys in self.sources[:1]:
            for obj in informer.store.list():
                for key in keys(obj):
                    self.queue.add(key, resync=True)

    async def run(self) -> None:
        """Work until the queue is closed, each pass under way to its end; cancelled, drop them at once."""
        loop = asyncio.get_running_loop()
        QUEUE_DEPTH.labels(self.name).set_function(lambda: len(self.queue))
        QUEUE_AGE.labels(self.name).set_function(lambda: self.queue.age(loop.time()))
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.take()
            except QueueClosed:
                return
            try:
                with log_context(controller=self.name, key=key), span("reconcile", controller=self.name, key=key):
                    await self._reconcile_key(key)
            except asyncio.CancelledError:
                self.queue.add(key)  # whoever works next must see it: nobody knows how far this pass came
                raise
            finally:
                self.queue.done(key)
            await asyncio.sleep(0)  # passes that never wait must not keep everybody else from running

    async def _reconcile_key(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = "error"
        try:
            result = await self._reconcile(key)
        except (Terminal, InvalidSpec) as error:
            outcome = "terminal"
            self.queue.forget(key)
            reason = error.reason if isinstance(error, Terminal) else "InvalidSpec"
            ERRORS.labels(self.name, reason).inc()
            log.warning("waits for a change", reason=reason, error=str(error))
        except NotLeading as error:
            self.queue.retry(key)  # after a pause, in which the election can take the work away
            log.debug("gave up a pass", error=str(error))
        except (Exception, asyncio.CancelledError) as error:  # a worker outlives whatever a reconciler raises
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            reason, pause = self._retry(key, error)
            if isinstance(error, Conflict):  # the object moved on: ordinary
                log.debug("will try again", reason=reason, error=str(error), pause=pause)
            elif isinstance(error, KubeError):
                log.warning("will try again", reason=reason, error=str(error), pause=pause)
            else:
                log.exception("will try again", reason=reason, pause=pause)
        else:
            outcome = self._requeue(key, result)
            log.debug("reconciled", seconds=round(loop.time() - started, 4))
        finally:
            reconcile_series(self.name, outcome).observe(loop.time() - started)
        if outcome in ("ok", "requeued"):
            sync_series(self.name).observe(loop.time() - self.queue.queued_at(key))

    def _requeue(self, key: str, result: Result | None) -> str:
        self.queue.forget(key)
        waits = []
        if result is not None and result.requeue_after is not None:
            waits.append(result.requeue_after)
        if result is not None and result.requeue_at is not None:
            waits.append((result.requeue_at - self._now()).total_seconds())
        if not waits:
            return "ok"
        self.queue.add_after(key, min(waits))
        return "requeued"

    def _retry(self, key: str, error: BaseException) -> tuple[str, float]:
        reason = type(error).__name__
        ERRORS.labels(self.name, reason).inc()
        RETRIES.labels(self.name, reason).inc()
        return reason, round(self.queue.retry(key), 3)


def is_cancelled() -> bool:
    """Whether the running task was asked to end, and not only something it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
