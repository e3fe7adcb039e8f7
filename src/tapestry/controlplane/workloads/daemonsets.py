"""DaemonSets: a pod on each node that it fits.

Which pods come and go is decided in `daemons`; here it is done, and told.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.events import Recorder
from tapestry.controlplane.workloads import daemons, members, revisions
from tapestry.controlplane.workloads.members import PAUSE, keepers_among
from tapestry.kube.errors import ApiError, Conflict, NotFound
from tapestry.kube.objects import (
    Object,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    value_at,
)
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS

LAG = 1.0
"""Seconds until a name that was taken is tried again."""


@dataclass(frozen=True)
class DaemonSets:
    """Keeps the pods of each DaemonSet."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    sets: Informer
    nodes: Informer
    pods: Informer
    gone: members.Gone
    revisions: Informer

    async def reconcile(self, key: str) -> Result | None:
        daemon_set = self.sets.store.get(key)
        if daemon_set is None or is_deleting(daemon_set):
            return None
        selector = members.selector_of(daemon_set)
        found = members.candidates(self.revisions, daemon_set)
        kept = await revisions.claimed(self.client, DAEMON_SETS, daemon_set, selector, found)
        present = await revisions.current(self.client, DAEMON_SETS, daemon_set, kept)
        if present is None:
            return Result(requeue_after=LAG)
        candidates = members.candidates(self.pods, daemon_set)
        pods = await members.claimed(self.client, DAEMON_SETS, daemon_set, selector, candidates, PODS)
        fits = {name_of(node): daemons.fit_of(daemon_set, node) for node in self.nodes.store.list()}
        places, mark, now = daemons.by_node(pods), revisions.hash_of(present), self.now()
        step = daemons.next_step(daemon_set, fits, places, mark, now)
        failure: ApiError | None = None
        try:
            await self.act(daemon_set, step, pods, mark)
        except Conflict:
            raise
        except ApiError as error:
            failure = error
        await self.tell(daemon_set, daemons.status_of(daemon_set, fits, places, mark, now))
        _, others = revisions.split(daemon_set, kept)
        live = {labels_of(pod).get(revisions.HASH, "") for pod in pods}
        await revisions.forget(self.client, revisions.obsolete(daemon_set, others, live))
        if failure is not None:
            raise failure
        if step.again is not None:
            return Result(requeue_at=step.again)
        return members.when_available(pods, daemons.patience_of(daemon_set), now)

    async def act(self, daemon_set: Object, step: daemons.Step, pods: Sequence[Object], mark: str) -> None:
        for pod in step.leave:
            if value_at(pod, "status", "phase") == "Failed":
                node, name = daemons.node_of(pod), f"{namespace_of(pod)}/{name_of(pod)}"
                message = f"Found failed daemon pod {name} on node {node}, will try to kill it"
                self.events.warning(daemon_set, "FailedDaemonPod", message)
            await self.client.remove(PODS, pod)
            self.events.normal(daemon_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")
        is_free = self.gone.leaves(daemon_set, pods)
        for node in step.make:
            pod = daemons.pod_of(daemon_set, node, mark, is_free)
            try:
                made = await members.create(self.client, pod, daemon_set)
            except ApiError as error:
                self.events.warning(daemon_set, "FailedCreate", f"Error creating: {error.message}")
                raise
            if made is not None:
                self.events.normal(daemon_set, "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    async def tell(self, daemon_set: Object, status: Object) -> None:
        before = daemon_set.get("status") or {}
        kept = {key: before[key] for key in ("collisionCount", "conditions") if key in before}
        if patch := merge_patch(before, {**kept, **status}):
            try:
                await self.client.patch(DAEMON_SETS, daemon_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def changes_fit(old: Object | None, new: Object | None) -> bool:
    """Whether a node has come, or gone, or has other labels or taints: heartbeats are many."""
    if old is None or new is None:
        return True
    return labels_of(old) != labels_of(new) or value_at(old, "spec", "taints") != value_at(new, "spec", "taints")


def install(manager: Manager) -> None:
    sets = manager.informer(DAEMON_SETS, indexers={"namespace": own_namespace})
    nodes = manager.informer(NODES)
    pods = manager.informer(PODS, indexers=members.BY_OWNER)
    kept = manager.informer(CONTROLLER_REVISIONS, indexers=members.BY_OWNER)
    reconciler = DaemonSets(manager.client, manager.events, manager.now, sets, nodes, pods, members.Gone(pods), kept)
    controller = manager.controller("daemonsets", reconciler.reconcile)

    def every_set(_: Object) -> Iterable[str]:
        return map(key_of, sets.store.list())

    controller.watch(sets)
    controller.watch(pods, keepers_among(sets, DAEMON_SETS), after=PAUSE)
    controller.watch(nodes, every_set, when=changes_fit)
