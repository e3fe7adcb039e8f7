"""Controller that computes the number of allowed disruptions of each PodDisruptionBudget.

A budget sets how many of the selected pods must be available, and the owners of the pods set how many are expected.
Evictions decrement the number in the status (`tapestry.apiserver.subresources.evictions`). An evicted pod does not
count as healthy from then on, unless it still exists two minutes later. If the number of expected pods is unknown, no
disruption is allowed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tapestry.client.client import Client
from tapestry.controller import Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.queue import Queue
from tapestry.controller.store import Store
from tapestry.controlplane.metadata_cache import MetadataCache
from tapestry.kube.conditions import is_condition_true, new_condition, with_condition
from tapestry.kube.errors import MethodNotAllowed, NotFound
from tapestry.kube.objects import Object, controller_of, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.quantity import scaled_value
from tapestry.kube.resources import DISRUPTION_BUDGETS, PODS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time

NAMESPACE_INDEX = "namespace"
BATCH_INTERVAL = 0.2
"""Seconds over which changes are batched."""
DELETION_TIMEOUT = timedelta(minutes=2)
"""Time after which an evicted pod that still exists counts again."""
REPLICA_KINDS = frozenset({("apps", "ReplicaSet"), ("apps", "Deployment"), ("apps", "StatefulSet")})
"""Kinds with the number of pods in `spec.replicas`. Others are read through the scale subresource."""
REPLICATION = ("", "ReplicationController")


class UnknownScale(Exception):
    """The expected number of pods cannot be determined."""


@dataclass(frozen=True)
class BudgetTarget:
    """Number of expected pods, and of pods that must be healthy."""

    expected_pods: int
    desired_healthy: int


@dataclass(frozen=True)
class DisruptionReconciler:
    """Update the status of each PodDisruptionBudget."""

    budgets: Store
    metadata: MetadataCache
    reads: Client
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> Result | None:
        await self.metadata.synced.wait()
        budget = self.budgets.get(key)
        if budget is None:
            return None
        pods = await self.selected_pods(budget)
        now, before = self.now(), budget.get("status") or {}
        try:
            target = await self.budget_target(budget, pods)
        except UnknownScale as error:
            await self.update_status(budget, failed_status(before, str(error), now))
            return None
        disrupted = pending_disruptions(before.get("disruptedPods") or {}, pods, now)
        await self.update_status(budget, budget_status(budget, target, healthy_count(pods, disrupted), disrupted, now))
        first = min((parse_time(each) for each in disrupted.values()), default=None)
        return Result(requeue_at=first + DELETION_TIMEOUT) if first is not None else None

    async def selected_pods(self, budget: Object) -> list[Object]:
        selector = value_at(budget, "spec", "selector")
        if selector is None:
            return []
        return await self.reads.list(PODS, namespace_of(budget), labels=str(label_selector(selector)))

    async def budget_target(self, budget: Object, pods: Sequence[Object]) -> BudgetTarget:
        spec = budget.get("spec") or {}
        if (max_unavailable := spec.get("maxUnavailable")) is not None:
            expected = await self.expected_pods(pods)
            return BudgetTarget(expected, max(0, expected - scaled_value(max_unavailable, expected, math.ceil)))
        min_available = spec.get("minAvailable")
        if min_available is None:
            return BudgetTarget(0, 0)
        if isinstance(min_available, int):
            return BudgetTarget(len(pods), min_available)
        expected = await self.expected_pods(pods)
        return BudgetTarget(expected, scaled_value(min_available, expected, math.ceil))

    async def expected_pods(self, pods: Sequence[Object]) -> int:
        """Return the number of replicas of all owners of these pods. Pods without an owner do not count."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is not None and owner["uid"] not in scales:
                scale = await self.owner_scale(owner, namespace_of(pod))
                if scale is None:
                    raise UnknownScale(f'found no controllers for pod "{name_of(pod)}"')
                scales[owner["uid"]] = 0  # a Deployment may own several ReplicaSets
                scales[scale[0]] = scale[1]
        return sum(scales.values())

    async def owner_scale(self, reference: Object, namespace: str | None) -> tuple[str, int] | None:
        """Return the UID of the object that sets the scale of an owner, and its replicas. None if the owner is gone."""
        kind = (reference["apiVersion"].rpartition("/")[0], reference["kind"])
        resource = self.metadata.resources_by_kind.get(kind)
        if resource is None:
            raise UnknownScale(f'no matches for kind "{kind[1]}" in version "{reference["apiVersion"]}"')
        is_plain = kind in REPLICA_KINDS or kind == REPLICATION
        try:
            subresource = None if is_plain else "scale"
            owner = await self.reads.get(resource, reference["name"], namespace, subresource=subresource)
        except (NotFound, MethodNotAllowed) as error:
            if is_plain or await self.reads.find(resource, reference["name"], namespace) is None:
                return None
            raise UnknownScale(f"{resource.name} does not implement the scale subresource") from error
        if uid_of(owner) != reference["uid"]:
            return None
        above = controller_of(owner) if kind == ("apps", "ReplicaSet") else None
        if above is not None and above["kind"] == "Deployment":
            return await self.owner_scale(above, namespace)
        return uid_of(owner), value_at(owner, "spec", "replicas", default=1 if is_plain else 0)

    async def update_status(self, budget: Object, status: Object) -> None:
        before = budget.get("status") or {}
        if status != before:
            patch = {"status": merge_patch(before, status)}
            await self.client.patch(DISRUPTION_BUDGETS, budget, patch, subresource="status")

    def object_changed(self, queue: Queue, old: Object | None, new: Object | None) -> None:
        """Enqueue all budgets of the namespace: the object may be a selected pod or an owner of one."""
        obj = new or old
        namespace = namespace_of(obj) if obj is not None else None
        for budget in self.budgets.by(NAMESPACE_INDEX, namespace) if namespace else ():
            queue.add_after(key_of(budget), BATCH_INTERVAL)


# -- pure


def pending_disruptions(disrupted_pods: Mapping[str, str], pods: Sequence[Object], now: datetime) -> dict[str, str]:
    """Return the evicted pods whose deletion is expected soon."""
    waiting = {name_of(pod) for pod in pods if not is_deleting(pod)}
    return {
        name: at for name, at in disrupted_pods.items() if name in waiting and parse_time(at) + DELETION_TIMEOUT > now
    }


def healthy_count(pods: Sequence[Object], disrupted_pods: Mapping[str, str]) -> int:
    return sum(
        1
        for pod in pods
        if not is_deleting(pod) and name_of(pod) not in disrupted_pods and is_condition_true(pod, "Ready")
    )


def budget_status(
    budget: Object, target: BudgetTarget, current_healthy: int, disrupted_pods: Mapping[str, str], now: datetime
) -> Object:
    before, generation = budget.get("status") or {}, budget["metadata"].get("generation", 1)
    disruptions_allowed = max(0, current_healthy - target.desired_healthy) if target.expected_pods > 0 else 0
    reason = "SufficientPods" if disruptions_allowed else "InsufficientPods"
    allowed = new_condition("DisruptionAllowed", bool(disruptions_allowed), reason, observed_generation=generation)
    status: dict[str, Any] = {
        "currentHealthy": current_healthy,
        "desiredHealthy": target.desired_healthy,
        "expectedPods": target.expected_pods,
        "disruptionsAllowed": disruptions_allowed,
        "observedGeneration": generation,
        "conditions": with_condition(before.get("conditions"), allowed, now),
    }
    return {**status, **({"disruptedPods": dict(disrupted_pods)} if disrupted_pods else {})}


def failed_status(before: Object, message: str, now: datetime) -> Object:
    """Return a status that allows no disruption."""
    condition = new_condition(
        "DisruptionAllowed", False, "SyncFailed", message, observed_generation=before.get("observedGeneration", 0)
    )
    counts = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
    conditions = with_condition(before.get("conditions"), condition, now)
    return {**counts, **before, "disruptionsAllowed": 0, "conditions": conditions}


def install(manager: Manager, metadata: MetadataCache) -> None:
    budgets = manager.informer(DISRUPTION_BUDGETS)
    budgets.store.add_index(NAMESPACE_INDEX, own_namespace)
    reconciler = DisruptionReconciler(budgets.store, metadata, manager.reads, manager.client, manager.now)
    controller = manager.controller("disruption", reconciler.reconcile)
    controller.watch(budgets)
    metadata.on_change(lambda _, old, new: reconciler.object_changed(controller.queue, old, new))
