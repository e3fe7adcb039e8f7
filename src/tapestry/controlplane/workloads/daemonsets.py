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
from tapestry.controlplane.workloads import controller_revisions, daemonset_steps, owned_pods
from tapestry.controlplane.workloads.owned_pods import BATCH_INTERVAL, matching_owner_keys
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

NAME_RETRY_INTERVAL = 1.0
"""Seconds until a name that was taken is tried again."""


@dataclass(frozen=True)
class DaemonSetReconciler:
    """Keeps the pods of each DaemonSet."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    sets: Informer
    nodes: Informer
    pods: Informer
    deleted_pods: owned_pods.DeletedPods
    revisions: Informer

    async def reconcile(self, key: str) -> Result | None:
        daemon_set = self.sets.store.get(key)
        if daemon_set is None or is_deleting(daemon_set):
            return None
        selector = owned_pods.selector_of(daemon_set)
        found = owned_pods.candidates(self.revisions, daemon_set)
        kept = await controller_revisions.claim_revisions(self.client, DAEMON_SETS, daemon_set, selector, found)
        present = await controller_revisions.ensure_current_revision(self.client, DAEMON_SETS, daemon_set, kept)
        if present is None:
            return Result(requeue_after=NAME_RETRY_INTERVAL)
        candidates = owned_pods.candidates(self.pods, daemon_set)
        pods = await owned_pods.claim_objects(self.client, DAEMON_SETS, daemon_set, selector, candidates, PODS)
        fits = {name_of(node): daemonset_steps.daemon_fit(daemon_set, node) for node in self.nodes.store.list()}
        places, mark, now = daemonset_steps.pods_by_node(pods), controller_revisions.hash_of(present), self.now()
        step = daemonset_steps.next_daemon_step(daemon_set, fits, places, mark, now)
        failure: ApiError | None = None
        try:
            await self.apply_step(daemon_set, step, pods, mark)
        except Conflict:
            raise
        except ApiError as error:
            failure = error
        await self.update_status(daemon_set, daemonset_steps.daemon_set_status(daemon_set, fits, places, mark, now))
        _, others = controller_revisions.split_revisions(daemon_set, kept)
        live = {labels_of(pod).get(controller_revisions.CONTROLLER_REVISION_HASH, "") for pod in pods}
        await controller_revisions.delete_revisions(
            self.client, controller_revisions.surplus_revisions(daemon_set, others, live)
        )
        if failure is not None:
            raise failure
        if step.requeue_at is not None:
            return Result(requeue_at=step.requeue_at)
        return owned_pods.requeue_when_available(pods, daemonset_steps.daemon_set_min_ready(daemon_set), now)

    async def apply_step(
        self, daemon_set: Object, step: daemonset_steps.DaemonStep, pods: Sequence[Object], revision_hash: str
    ) -> None:
        for pod in step.to_delete:
            if value_at(pod, "status", "phase") == "Failed":
                node, name = daemonset_steps.target_node(pod), f"{namespace_of(pod)}/{name_of(pod)}"
                message = f"Found failed daemon pod {name} on node {node}, will try to kill it"
                self.events.warning(daemon_set, "FailedDaemonPod", message)
            await self.client.delete_if_exists(PODS, pod)
            self.events.normal(daemon_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")
        is_free = self.deleted_pods.name_check(daemon_set, pods)
        for node in step.to_create:
            pod = daemonset_steps.daemon_pod(daemon_set, node, revision_hash, is_free)
            try:
                made = await owned_pods.create_pod(self.client, pod, daemon_set)
            except ApiError as error:
                self.events.warning(daemon_set, "FailedCreate", f"Error creating: {error.message}")
                raise
            if made is not None:
                self.events.normal(daemon_set, "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    async def update_status(self, daemon_set: Object, status: Object) -> None:
        before = daemon_set.get("status") or {}
        kept = {key: before[key] for key in ("collisionCount", "conditions") if key in before}
        if patch := merge_patch(before, {**kept, **status}):
            try:
                await self.client.patch(DAEMON_SETS, daemon_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def node_fit_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a node has come, or gone, or has other labels or taints: heartbeats are many."""
    if old is None or new is None:
        return True
    return labels_of(old) != labels_of(new) or value_at(old, "spec", "taints") != value_at(new, "spec", "taints")


def install(manager: Manager) -> None:
    sets = manager.informer(DAEMON_SETS, indexers={"namespace": own_namespace})
    nodes = manager.informer(NODES)
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    kept = manager.informer(CONTROLLER_REVISIONS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = DaemonSetReconciler(
        manager.client, manager.events, manager.now, sets, nodes, pods, owned_pods.DeletedPods(pods), kept
    )
    controller = manager.controller("daemonsets", reconciler.reconcile)

    def every_set(_: Object) -> Iterable[str]:
        return map(key_of, sets.store.list())

    controller.watch(sets)
    controller.watch(pods, matching_owner_keys(sets, DAEMON_SETS), after=BATCH_INTERVAL)
    controller.watch(nodes, every_set, when=node_fit_changed)
