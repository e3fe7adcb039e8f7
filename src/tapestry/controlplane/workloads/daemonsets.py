"""DaemonSet controller: one pod on each matching node.

`daemonset_steps` decides which pods to create and delete. This module executes the steps and updates the status.
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
"""Seconds until a name collision is retried."""


@dataclass(frozen=True)
class DaemonSetReconciler:
    """Create and delete the pods of each DaemonSet."""

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
        revisions = await controller_revisions.claim_revisions(self.client, DAEMON_SETS, daemon_set, selector, found)
        current = await controller_revisions.ensure_current_revision(self.client, DAEMON_SETS, daemon_set, revisions)
        if current is None:
            return Result(requeue_after=NAME_RETRY_INTERVAL)
        candidates = owned_pods.candidates(self.pods, daemon_set)
        pods = await owned_pods.claim_objects(self.client, DAEMON_SETS, daemon_set, selector, candidates, PODS)
        fits = {name_of(node): daemonset_steps.daemon_fit(daemon_set, node) for node in self.nodes.store.list()}
        by_node, digest, now = daemonset_steps.pods_by_node(pods), controller_revisions.hash_of(current), self.now()
        step = daemonset_steps.next_daemon_step(daemon_set, fits, by_node, digest, now)
        failure: ApiError | None = None
        try:
            await self.apply_step(daemon_set, step, pods, digest)
        except Conflict:
            raise
        except ApiError as error:
            failure = error
        await self.update_status(daemon_set, daemonset_steps.daemon_set_status(daemon_set, fits, by_node, digest, now))
        _, others = controller_revisions.split_revisions(daemon_set, revisions)
        live = {labels_of(pod).get(controller_revisions.CONTROLLER_REVISION_HASH, "") for pod in pods}
        await controller_revisions.delete_revisions(
            self.client, controller_revisions.surplus_revisions(daemon_set, others, live)
        )
        if failure is not None:
            raise failure
        if step.requeue_at is not None:
            return Result(requeue_at=step.requeue_at)
        return owned_pods.requeue_when_available(pods, owned_pods.min_ready_time(daemon_set), now)

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
                created = await owned_pods.create_pod(self.client, pod, daemon_set)
            except ApiError as error:
                self.events.warning(daemon_set, "FailedCreate", f"Error creating: {error.message}")
                raise
            if created is not None:
                self.events.normal(daemon_set, "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    async def update_status(self, daemon_set: Object, status: Object) -> None:
        before = daemon_set.get("status") or {}
        unchanged = {key: before[key] for key in ("collisionCount", "conditions") if key in before}
        if patch := merge_patch(before, {**unchanged, **status}):
            try:
                await self.client.patch(DAEMON_SETS, daemon_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def node_fit_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether a node was added or deleted, or its labels or taints changed. Heartbeats are ignored."""
    if old is None or new is None:
        return True
    return labels_of(old) != labels_of(new) or value_at(old, "spec", "taints") != value_at(new, "spec", "taints")


def install(manager: Manager) -> None:
    sets = manager.informer(DAEMON_SETS, indexers={"namespace": own_namespace})
    nodes = manager.informer(NODES)
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    revisions = manager.informer(CONTROLLER_REVISIONS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = DaemonSetReconciler(
        manager.client, manager.events, manager.now, sets, nodes, pods, owned_pods.DeletedPods(pods), revisions
    )
    controller = manager.controller("daemonsets", reconciler.reconcile)

    def all_set_keys(_: Object) -> Iterable[str]:
        return map(key_of, sets.store.list())

    controller.watch(sets)
    controller.watch(pods, matching_owner_keys(sets, DAEMON_SETS), after=BATCH_INTERVAL)
    controller.watch(nodes, all_set_keys, when=node_fit_changed)
