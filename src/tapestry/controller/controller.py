"""Controllers: a reconcile function, the changes that trigger it, and the workers that run it.

A reconciler is `async (key) -> Result | None`.  It reads caches, decides, and writes little.  The result says when to
reconcile again.  An exception requeues the key with backoff.  `Terminal` waits for a change of the object.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tapestry.client.client import Client
from tapestry.controller.errors import NotLeading, Terminal
from tapestry.controller.informer import ObjectCache
from tapestry.controller.metrics import (
    ERRORS,
    RETRIES,
    WAITING_KEYS,
    MeasuredQueue,
    reconcile_series,
    sync_series,
)
from tapestry.controller.queue import Queue, QueueClosed
from tapestry.controller.store import T
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, KubeError
from tapestry.kube.objects import Object, controller_of, is_owned_by, key_of, namespace_of, owned_object
from tapestry.kube.resources import Resource
from tapestry.process.logs import log_context, logger
from tapestry.process.tracing import span

log = logger(__name__)

KeyMapper = Callable[[T], Iterable[str]]
"""Map an object that changed to the keys to reconcile."""


@dataclass(frozen=True, slots=True)
class Result:
    """Time of the next reconcile: after some seconds, or at a wall-clock time."""

    requeue_after: float | None = None
    requeue_at: datetime | None = None


Reconcile = Callable[[str], Awaitable[Result | None]]


def own_key(obj: Object) -> Iterable[str]:
    return (key_of(obj),)


def own_namespace(obj: Object) -> Iterable[str]:
    return (namespace_of(obj) or "",)


def controller_key(resource: Resource) -> KeyMapper:
    """Map an object to the `resource` object that is its managing controller, from its owner references."""

    def keys(obj: Object) -> Iterable[str]:
        owner = controller_of(obj)
        if owner is None or owner["kind"] != resource.kind or owner["apiVersion"] != resource.api_version:
            return ()
        namespace = namespace_of(obj) if resource.namespaced else None
        return (f"{namespace}/{owner['name']}" if namespace else owner["name"],)

    return keys


def generation_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether more changed than status and metadata.  For `Controller.watch(when=...)`."""
    if old is None or new is None:
        return True
    before, after = old["metadata"], new["metadata"]
    return any(before.get(field) != after.get(field) for field in ("generation", "deletionTimestamp"))


class Controller:
    """Run one reconciler over one queue of keys."""

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
        self.sources: list[tuple[ObjectCache[Any], KeyMapper[Any]]] = []
        self._reconcile = reconcile
        self._workers = workers
        self._now = now

    def watch(
        self,
        informer: ObjectCache[T],
        keys: KeyMapper[T] = own_key,  # type: ignore[assignment]  # T is a dict by default
        *,
        when: Callable[[T | None, T | None], bool] | None = None,
        after: float = 0.0,
    ) -> None:
        """Enqueue the `keys` of an object, in its old and new state, whenever it changes (and `when` returns true).

        `after` delays the reconcile by that many seconds, once for all changes until then.  Use it for expensive
        reconciles.
        """
        self.sources.append((informer, keys))

        def enqueue(old: T | None, new: T | None) -> None:
            if when is not None and not when(old, new):
                return
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add_after(key, after)

        informer.on_change(enqueue)

    def resync(self) -> None:
        """Enqueue every object of the first source, after all other keys."""
        for informer, keys in self.sources[:1]:
            for obj in informer.store.list():
                for key in keys(obj):
                    self.queue.add(key, resync=True)

    async def run(self) -> None:
        """Run workers until the queue is closed.  Reconciles in flight finish; cancellation stops them at once.

        A worker starts when a key is ready and all others are busy.  It ends when no key is ready.
        """
        measured = MeasuredQueue(self.name, self.queue, asyncio.get_running_loop().time)
        WAITING_KEYS.queues.append(measured)
        try:
            async with asyncio.TaskGroup() as group:
                free_workers = asyncio.Semaphore(self._workers)
                with suppress(QueueClosed):
                    while True:
                        await free_workers.acquire()
                        await self.queue.wait_for_key()
                        group.create_task(self._work(free_workers), name=self.name)
                        await asyncio.sleep(0)  # until the worker has taken the key
        finally:
            WAITING_KEYS.queues.remove(measured)

    async def _work(self, free_workers: asyncio.Semaphore) -> None:
        try:
            with suppress(QueueClosed):
                while len(self.queue):
                    await self._process(await self.queue.take())
                    await asyncio.sleep(0)  # reconciles that never await must not block other tasks
        finally:
            free_workers.release()

    async def _process(self, key: str) -> None:
        try:
            with log_context(controller=self.name, key=key), span("reconcile", controller=self.name, key=key):
                await self._reconcile_key(key)
        except asyncio.CancelledError:
            self.queue.add(key)  # the next leader must reconcile it: this reconcile may be incomplete
            raise
        finally:
            self.queue.done(key)

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
            log.warning("reconcile stopped until the object changes", reason=reason, error=str(error))
        except NotLeading as error:
            self.queue.retry(key)  # with backoff, so that the election can stop the workers meanwhile
            log.debug("reconcile abandoned: not the leader", error=str(error))
        except (Exception, asyncio.CancelledError) as error:  # a worker survives any error of a reconciler
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            reason, pause = self._retry(key, error)
            if isinstance(error, Conflict):  # expected: the object changed
                log.debug("reconcile failed, retrying", reason=reason, error=str(error), pause=pause)
            elif isinstance(error, KubeError):
                log.warning("reconcile failed, retrying", reason=reason, error=str(error), pause=pause)
            else:
                log.exception("reconcile failed, retrying", reason=reason, pause=pause)
        else:
            outcome = self._requeue(key, result)
            log.debug("reconcile finished", seconds=round(loop.time() - started, 4))
        finally:
            reconcile_series(self.name, outcome).observe(loop.time() - started)
        if outcome in ("ok", "requeued"):
            sync_series(self.name).observe(loop.time() - self.queue.queued_at(key))

    def _requeue(self, key: str, result: Result | None) -> str:
        self.queue.forget(key)
        delays = []
        if result is not None and result.requeue_after is not None:
            delays.append(result.requeue_after)
        if result is not None and result.requeue_at is not None:
            delays.append((result.requeue_at - self._now()).total_seconds())
        if not delays:
            return "ok"
        self.queue.add_after(key, min(delays))
        return "requeued"

    def _retry(self, key: str, error: BaseException) -> tuple[str, float]:
        reason = type(error).__name__
        ERRORS.labels(self.name, reason).inc()
        RETRIES.labels(self.name, reason).inc()
        return reason, round(self.queue.retry(key), 3)


def is_cancelled() -> bool:
    """Return whether the running task itself was cancelled, not only something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def ensure_owned(
    client: Client, informer: ObjectCache, owner: Object, content: Object, *, name: str | None = None
) -> Object:
    """Return the cached object that `owner` controls, created from `content` if missing.

    A second call creates nothing: while the cache lags, the name leads to a Conflict.  Raise Terminal if an object of
    another owner has the name.
    """
    desired = owned_object(owner, informer.resource, content, name=name)
    existing = informer.store.get(key_of(desired))
    if existing is None:
        return await client.create(informer.resource, desired)
    if not is_owned_by(existing, owner):
        kind, key = informer.resource.kind, key_of(desired)
        raise Terminal("NameTaken", f"{kind} {key} has another owner; rename or delete {owner['kind']} {key_of(owner)}")
    return existing
