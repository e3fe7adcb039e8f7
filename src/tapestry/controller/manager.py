"""The manager: runs reconcilers with shared informers, leader election, probes and metrics.

    register   add the setup function of a reconciler, under a name
    setup      call the setup functions that the configuration enables; they create informers and controllers
    run        start probes and metrics, sync the caches, call the setup functions that wait for that (and sync the
               caches that these add), call the callbacks, then campaign (if enabled), then work

Caches are synced before the election, so a standby takes over without listing.  On stop, a manager starts no new
reconciles, lets those in flight finish, releases the Lease, and then closes its connections.
"""

import asyncio
import fnmatch
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from tapestry.client.client import Client
from tapestry.client.delegated_auth import DelegatedAuth
from tapestry.client.transport import Transport
from tapestry.controller.config import ManagerConfig
from tapestry.controller.controller import Controller, Reconcile
from tapestry.controller.errors import NotLeading
from tapestry.controller.events import Recorder
from tapestry.controller.informer import Informer
from tapestry.controller.leader import Elector, LeaseDurations
from tapestry.controller.phase_table import PhaseTable
from tapestry.controller.store import Indexer, T
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.audit import AuditLog
from tapestry.process.logs import logger
from tapestry.process.probes import serve_health, serve_metrics, server_tls
from tapestry.process.tasks import free_frames

log = logger(__name__)

RESTART_INTERVAL = 1.0

Setup = Callable[["Manager"], None]
"""Set up a reconciler: create informers and controllers of the manager."""
BackgroundTask = Callable[[], Coroutine[Any, Any, None]]


class Manager:
    """Run controllers against one API server.

    `connect` opens a transport.  A manager opens two, so that cutting the leader's writes does not cut its watches.
    """

    def __init__(
        self,
        config: ManagerConfig,
        connect: Callable[[], Transport],
        *,
        identity: str,
        keep: Callable[[Object], bool] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.now = now
        self.identity = identity
        self.audit = AuditLog(config.audit) if config.audit else None
        self.reads = Client(connect(), identity=identity)
        """Client for informers and the election."""
        self.elector = self._elector(monotonic) if config.leader_election.enabled else None
        self.client = Client(
            connect(),
            fence=self.elector.fence if self.elector else None,
            audit=self.audit,
            identity=identity,
        )
        """Client for reconcilers.  Fenced if leader election is enabled."""
        self.events = Recorder(self.client, config.name, identity, now)
        self.controllers: list[Controller] = []
        self.phase_tables: dict[str, PhaseTable] = {}
        """Tables of the controllers that are PhaseMachines, by the name of the controller."""
        self._keep = keep
        self._setups: dict[str, Setup] = {}
        self._late_setups: set[str] = set()
        self._set_up = False
        self._informers: dict[tuple[Any, ...], Informer[Any]] = {}
        self._unstarted: list[tuple[str, BackgroundTask]] = []
        self._leader_tasks: dict[str, BackgroundTask] = {}
        self._after_sync: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[], None]] = []
        self._stopping = asyncio.Event()
        self._working = False

    # -- assembly

    @property
    def name(self) -> str:
        return self.config.name

    def register(self, name: str, setup: Setup, *, after_sync: bool = False) -> Self:
        """Add a reconciler.  The configuration decides whether it runs.

        With `after_sync`, `setup` is called when the caches of all other reconcilers are synced, so it can read them.
        Caches that it adds are synced before any work starts, too.
        """
        self._setups[name] = setup
        if after_sync:
            self._late_setups.add(name)
        return self

    def setup(self) -> None:
        """Set up every enabled reconciler, except those that wait for the sync.  The second call does nothing."""
        if self._set_up:
            return
        self._set_up = True
        enabled = self._enabled()
        if not enabled:
            known = ", ".join(sorted(self._setups)) or "none"
            raise ValueError(f"controllers: {self.config.controllers} enables no controller; known: {known}")
        disabled = [name for name in self._setups if name not in enabled]
        log.info("controllers selected", enabled=enabled, disabled=disabled)
        for name in enabled:
            if name not in self._late_setups:
                self._setups[name](self)

    def _enabled(self) -> list[str]:
        return [name for name in self._setups if is_enabled(name, self.config.controllers)]

    # -- setup functions of reconcilers

    def informer(
        self,
        resource: Resource,
        *,
        filtered: bool = True,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], bool] | None = None,
        transform: Transform[T] = slim,  # type: ignore[assignment]  # T is a dict by default
        indexers: dict[str, Indexer[T]] | None = None,
    ) -> Informer[T]:
        """Return the shared informer of a resource and selection.

        The configured filter applies to it.  `filtered=False` exempts resources that do not carry the filter's labels.
        """
        configured = self.config.filter.namespaces if resource.namespaced else []
        namespaces = [namespace] if namespace is not None else configured
        selector = ",".join(part for part in (labels, self.config.filter.labels if filtered else "") if part)
        keep = keep or (self._keep if filtered else None)
        key = (resource, namespace, selector, fields, keep, transform)
        informer = self._informers.get(key)
        if informer is None:
            informer = self._informers[key] = Informer(
                self.reads,
                resource,
                namespace=namespaces[0] if len(namespaces) == 1 else None,
                labels=selector,
                fields=fields,
                keep=namespace_filter(namespaces, keep),
                transform=transform,
            )
            self._start_in_background(informer)
        for name, indexer in (indexers or {}).items():
            informer.store.add_index(name, indexer)
        return informer

    def add_optional_informer(self, informer: Informer[T]) -> Informer[T]:
        """Run an informer of another cluster.  Work does not wait for its sync: that cluster may be unreachable."""
        self._start_in_background(informer)
        return informer

    def _start_in_background(self, informer: Informer[Any]) -> None:
        self._unstarted.append((f"informer-{informer.resource.name}", informer.run))

    def run_always(self, name: str, task: BackgroundTask) -> None:
        """Run `task` with the informers, also on a standby, until cancelled.  It is restarted after a KubeError."""
        self._unstarted.append((name, partial(restart_on_error, task)))

    def run_while_leading(self, name: str, task: BackgroundTask) -> None:
        """Run `task` with the controllers, only while leading.  It is restarted after a KubeError."""
        self._leader_tasks[name] = task

    def controller(self, name: str, reconcile: Reconcile, *, workers: int | None = None) -> Controller:
        """Add a controller.  The caller adds its watches."""
        controller = Controller(name, reconcile, workers=workers or self.config.workers, now=self.now)
        self.controllers.append(controller)
        return controller

    def has_work(self, seconds: float) -> bool:
        """Return whether a controller reconciles a key, or will within `seconds`."""
        return any(each.queue.has_work(seconds) for each in self.controllers)

    def after_sync(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after every cache is synced and before any work starts."""
        self._after_sync.append(callback)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Call `callback` first when leadership is lost, to cut connections that the leader writes over."""
        self._on_loss.append(callback)

    def options(self, name: str) -> dict[str, Any]:
        """Return the configured options of one controller."""
        return self.config.options.get(name, {})

    # -- running

    def stop(self) -> None:
        """Start a graceful shutdown."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped.  A manager runs only once."""
        self.setup()
        background: list[asyncio.Task[None]] = []
        try:
            await self._run(background)
        finally:
            free_frames(background)
            self._setups.clear()  # they refer to this manager
            for informer in self._informers.values():
                informer.forget_handlers()

    async def _run(self, background: list[asyncio.Task[None]]) -> None:
        async with AsyncExitStack() as stack:
            if self.audit is not None:
                stack.callback(self.audit.close)
            stack.push_async_callback(self.reads.close)
            stack.push_async_callback(self.client.close)
            await self._listen(stack)
            async with asyncio.TaskGroup() as group:
                self._start_background(group, background)
                serving = group.create_task(self._serve(group, background), name="serve")
                await self._wait_for_stop(group, serving)
                for task in background:
                    task.cancel()

    def _start_background(self, group: asyncio.TaskGroup, background: list[asyncio.Task[None]]) -> None:
        """Start the informers and tasks that were added since the last call, and append them to `background`."""
        background += [group.create_task(task(), name=name) for name, task in self._unstarted]
        self._unstarted.clear()

    async def _wait_for_stop(self, group: asyncio.TaskGroup, serving: asyncio.Task[None]) -> None:
        stopping = group.create_task(self._stopping.wait(), name="stopping")
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            return
        log.info("manager stopping", working=self._working)
        if not self._working:
            serving.cancel()
            return
        for controller in self.controllers:
            controller.queue.close()
        await asyncio.wait([serving], timeout=self.config.shutdown_seconds)
        if not serving.done():
            log.warning("shutdown timed out, cancelling reconciles", seconds=self.config.shutdown_seconds)
            serving.cancel()

    async def _serve(self, group: asyncio.TaskGroup, background: list[asyncio.Task[None]]) -> None:
        await self._wait_for_sync()
        late = [name for name in self._enabled() if name in self._late_setups]
        if late:
            for name in late:
                self._setups[name](self)
            self._start_background(group, background)
            await self._wait_for_sync()
        log.info("caches synced", objects={i.name: len(i.store) for i in self._informers.values()})
        for callback in self._after_sync:
            callback()
        if self.elector is not None:
            await self.elector.run(self._work)
        else:
            await self._work()

    async def _wait_for_sync(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()

    async def _work(self) -> None:
        self._working = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.events.run(), name="events")
                background = [group.create_task(self._resync(), name="resync")]
                background += [
                    group.create_task(restart_on_error(task), name=name) for name, task in self._leader_tasks.items()
                ]
                controllers = [group.create_task(each.run(), name=each.name) for each in self.controllers]
                await asyncio.wait(controllers)
                for task in background:
                    task.cancel()
                self.events.close()
        finally:
            self._working = False

    async def _resync(self) -> None:
        while self.config.resync_seconds:
            await asyncio.sleep(self.config.resync_seconds)
            for controller in self.controllers:
                controller.resync()

    async def _listen(self, stack: AsyncExitStack) -> None:
        config = self.config.metrics
        probes = await stack.enter_async_context(
            serve_health(self.config.probes.address, alive={}, ready={"caches": self._unready})
        )
        metrics = await stack.enter_async_context(
            serve_metrics(
                config.address,
                authorize=None if config.open else self._may_read_metrics,
                tls=server_tls(config.certificate, config.key, config.client_ca or None)
                if config.certificate
                else None,
            )
        )
        addresses = {"probes": str(probes), "metrics": str(metrics)}
        log.info("probe and metrics listeners started", identity=self.identity, **addresses)

    def _unready(self) -> str | None:
        missing = [each.resource.name for each in self._informers.values() if not each.synced.is_set()]
        return f"not synced yet: {', '.join(missing)}" if missing else None

    async def _may_read_metrics(self, token: str) -> bool:
        """Return whether the API server authenticates the token and authorizes its user to get /metrics."""
        auth = DelegatedAuth(self.reads)
        user = await auth.user_for_token(token)
        attributes = {"path": "/metrics", "verb": "get"}
        return user is not None and await auth.is_allowed(user, {"nonResourceAttributes": attributes})

    def _abort_connections(self) -> None:
        self.client.abort()
        for callback in self._on_loss:
            callback()

    def _elector(self, monotonic: Callable[[], float]) -> Elector:
        config = self.config.leader_election
        return Elector(
            self.reads,
            config.namespace,
            config.name or self.config.name,
            self.identity,
            LeaseDurations(config.lease_seconds, config.deadline_seconds, config.retry_seconds),
            on_loss=self._abort_connections,
            monotonic=monotonic,
            now=self.now,
        )


async def restart_on_error(task: BackgroundTask) -> None:
    """Run `task`, and run it again after each KubeError or NotLeading."""
    while True:
        try:
            return await task()
        except (KubeError, NotLeading) as error:
            log.warning("background task restarted", task=task.__qualname__, error=str(error))
            await asyncio.sleep(RESTART_INTERVAL)


def is_enabled(name: str, patterns: list[str]) -> bool:
    """Return whether the last pattern that matches `name` includes it."""
    enabled = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("-")):
            enabled = not pattern.startswith("-")
    return enabled


def namespace_filter(namespaces: list[str], keep: Callable[[Object], bool] | None) -> Callable[[Object], bool] | None:
    """Return the filter for what the server cannot select: several namespaces, or a predicate."""
    if len(namespaces) < 2:
        return keep
    selected = frozenset(namespaces)

    def both(obj: Object) -> bool:
        return obj["metadata"].get("namespace") in selected and (keep is None or keep(obj))

    return both
