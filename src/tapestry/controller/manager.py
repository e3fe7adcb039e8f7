"""The manager: everything between a set of reconcilers and a running process.

    with_      takes a reconciler's set-up function, under a name
    setup      calls those that the configuration enables; they ask for informers and give controllers
    run        probes and metrics up, caches filled, callbacks called, then the election (if any), then work

Caches are warm before leadership is sought, so a standby takes over without a list.  Asked to stop, a manager takes no
new work, lets what is under way finish, releases the Lease, and only then closes its connections.
"""

import asyncio
import fnmatch
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
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
from tapestry.controller.registry import Setup
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.audit import AuditLog
from tapestry.process.logs import logger
from tapestry.process.probes import serve_health, serve_metrics, server_tls

log = logger(__name__)

RESTART_INTERVAL = 1.0


class Manager:
    """Runs controllers against one API server.

    `connect` opens a transport; a manager opens two, so that cutting the leader's writes does not cut its watches.
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
        """For informers and the election."""
        self.elector = self._elector(monotonic) if config.leader_election.enabled else None
        self.client = Client(
            connect(),
            fence=self.elector.fence if self.elector else None,
            audit=self.audit,
            identity=identity,
        )
        """For reconcilers: fenced where there is an election."""
        self.events = Recorder(self.client, config.name, identity, now)
        self.controllers: list[Controller] = []
        self._keep = keep
        self._setups: dict[str, Setup] = {}
        self._set_up = False
        self._informers: dict[tuple[Any, ...], Informer] = {}
        self._optional_informers: list[Informer] = []
        self._startup_tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._leader_tasks: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._after_sync: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[], None]] = [lambda: self.client.abort()]
        self._stopping = asyncio.Event()
        self._working = False

    # -- for those who assemble

    def register(self, name: str, setup: Setup) -> Self:
        """Take a reconciler; whether it runs is for the configuration to say."""
        self._setups[name] = setup
        return self

    def setup(self) -> None:
        """Install every reconciler that is enabled.  The second call does nothing."""
        if self._set_up:
            return
        self._set_up = True
        chosen = [name for name in self._setups if is_enabled(name, self.config.controllers)]
        if not chosen:
            known = ", ".join(sorted(self._setups)) or "none"
            raise ValueError(f"controllers: {self.config.controllers} leaves nothing to run; known are: {known}")
        for name in chosen:
            self._setups[name](self)

    # -- for reconcilers' set-up functions

    def informer(
        self,
        resource: Resource,
        *,
        filtered: bool = True,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], bool] | None = None,
        transform: Transform = slim,
        indexers: dict[str, Indexer] | None = None,
    ) -> Informer:
        """The shared informer of a resource and selection.

        The configured filter holds for it; `filtered=False` exempts resources that carry no labels of their owner's.
        """
        configured = self.config.filter.namespaces if resource.namespaced else []
        namespaces = [namespace] if namespace is not None else configured
        chosen = ",".join(part for part in (labels, self.config.filter.labels if filtered else "") if part)
        keep = keep or (self._keep if filtered else None)
        key = (resource, namespace, chosen, fields, keep, transform)
        informer = self._informers.get(key)
        if informer is None:
            informer = self._informers[key] = Informer(
                self.reads,
                resource,
                namespace=namespaces[0] if len(namespaces) == 1 else None,
                labels=chosen,
                fields=fields,
                keep=namespace_filter(namespaces, keep),
                transform=transform,
            )
        for name, indexer in (indexers or {}).items():
            informer.store.add_index(name, indexer)
        return informer

    def add_optional_informer(self, informer: Informer) -> Informer:
        """Run an informer of another cluster too.  Work does not wait for it: that cluster may be out of reach."""
        self._optional_informers.append(informer)
        return informer

    def run_always(self, name: str, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `duty` beside the informers, on a standby too, until it is cancelled; a KubeError begins it again."""
        self._startup_tasks[name] = task

    def run_while_leading(self, name: str, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `duty` beside the controllers, as long as this process works; a KubeError begins it again."""
        self._leader_tasks[name] = task

    def controller(self, name: str, reconcile: Reconcile, *, workers: int | None = None) -> Controller:
        """Add a controller; tell it what to watch."""
        controller = Controller(name, reconcile, workers=workers or self.config.workers, now=self.now)
        self.controllers.append(controller)
        return controller

    def after_sync(self, callback: Callable[[], None]) -> None:
        """Call back once, when every cache has been filled and before any work begins."""
        self._after_sync.append(callback)

    def on_loss(self, cut: Callable[[], None]) -> None:
        """Call `cut` before anything else when the lead is lost: it ends connections that the leader writes over."""
        self._on_loss.append(cut)

    def options(self, name: str) -> dict[str, Any]:
        """What the configuration says for one controller."""
        return self.config.options.get(name, {})

    # -- running

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until stopped."""
        self.setup()
        async with AsyncExitStack() as stack:
            if self.audit is not None:
                stack.callback(self.audit.close)
            stack.push_async_callback(self.reads.close)
            stack.push_async_callback(self.client.close)
            await self._listen(stack)
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(informer.run(), name=f"informer-{informer.resource.name}")
                    for informer in (*self._informers.values(), *self._optional_informers)
                ]
                background += [
                    group.create_task(restart_on_error(duty), name=name) for name, duty in self._startup_tasks.items()
                ]
                serving = group.create_task(self._serve(), name="serve")
                await self._wait_for_stop(group, serving)
                for task in background:
                    task.cancel()

    async def _wait_for_stop(self, group: asyncio.TaskGroup, serving: asyncio.Task[None]) -> None:
        stopping = group.create_task(self._stopping.wait(), name="stopping")
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if serving.done():
            return
        log.info("stopping", working=self._working)
        if not self._working:
            serving.cancel()
            return
        for controller in self.controllers:
            controller.queue.close()
        await asyncio.wait([serving], timeout=self.config.shutdown_seconds)
        if not serving.done():
            log.warning("work under way did not finish in time", seconds=self.config.shutdown_seconds)
            serving.cancel()

    async def _serve(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()
        log.info("caches filled", objects={i.name: len(i.store) for i in self._informers.values()})
        for callback in self._after_sync:
            callback()
        if self.elector is not None:
            await self.elector.run(self._work)
        else:
            await self._work()

    async def _work(self) -> None:
        self._working = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.events.run(), name="events")
                beside = [group.create_task(self._resync(), name="resync")]
                beside += [
                    group.create_task(restart_on_error(duty), name=name) for name, duty in self._leader_tasks.items()
                ]
                working = [group.create_task(each.run(), name=each.name) for each in self.controllers]
                await asyncio.wait(working)
                for task in beside:
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
        log.info("listening", identity=self.identity, probes=str(probes), metrics=str(metrics))

    def _unready(self) -> str | None:
        missing = [each.resource.name for each in self._informers.values() if not each.synced.is_set()]
        return f"not filled yet: {', '.join(missing)}" if missing else None

    async def _may_read_metrics(self, token: str) -> bool:
        """Whether the API server knows the token and lets its user get /metrics."""
        callers = DelegatedAuth(self.reads)
        user = await callers.user_for_token(token)
        wanted = {"path": "/metrics", "verb": "get"}
        return user is not None and await callers.is_allowed(user, {"nonResourceAttributes": wanted})

    def _abort_connections(self) -> None:
        for cut in self._on_loss:
            cut()

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


async def restart_on_error(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `duty` again whenever what goes wrong with API servers ends it."""
    while True:
        try:
            return await task()
        except (KubeError, NotLeading) as error:
            log.warning("begins again", duty=task.__qualname__, error=str(error))
            await asyncio.sleep(RESTART_INTERVAL)


def is_enabled(name: str, patterns: list[str]) -> bool:
    """Whether the last pattern that matches `name` lets it run."""
    verdict = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("-")):
            verdict = not pattern.startswith("-")
    return verdict


def namespace_filter(namespaces: list[str], keep: Callable[[Object], bool] | None) -> Callable[[Object], bool] | None:
    """The filter for what the server cannot select: several namespaces, or a rule in code."""
    if len(namespaces) < 2:
        return keep
    wanted = frozenset(namespaces)

    def both(obj: Object) -> bool:
        return obj["metadata"].get("namespace") in wanted and (keep is None or keep(obj))

    return both
