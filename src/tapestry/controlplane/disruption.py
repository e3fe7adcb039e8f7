"""Disruption: how many of its pods a PodDisruptionBudget can spare.

A budget says how many of the pods that it selects must stay up; their owners say how many there should be.  What is
written to its status, evictions take from (`tapestry.apiserver.subresources.evictions`).  A pod that an eviction has
taken counts as gone from then on, though it may be there for a while; one that is still there after two minutes counts
again.
Where nobody can say how many pods there should be, none can be spared.
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
from tapestry.controlplane.metadata_informers import MetadataInformers
from tapestry.kube.conditions import is_condition_true, new_condition, with_condition
from tapestry.kube.errors import MethodNotAllowed, NotFound
from tapestry.kube.objects import Object, controller_of, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import DISRUPTION_BUDGETS, PODS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time

NAMESPACE_INDEX = "namespace"
BATCH_INTERVAL = 0.2
"""Seconds in which changes are counted together."""
DELETION_TIMEOUT = timedelta(minutes=2)
"""How long a pod that was taken may still be there."""
REPLICA_KINDS = frozenset({("apps", "ReplicaSet"), ("apps", "Deployment"), ("apps", "StatefulSet")})
"""Kinds that say in `spec.replicas` how many pods they want; others are asked for their scale."""
REPLICATION = ("", "ReplicationController")


class UnknownScale(Exception):
    """Nobody can say how many pods there should be."""


@dataclass(frozen=True)
class BudgetTarget:
    """How many pods there should be, and how many of them have to be up."""

    expected_pods: int
    desired_healthy: int


@dataclass(frozen=True)
class DisruptionReconciler:
    """Keeps the status of each budget."""

    budgets: Store
    metadata_informers: MetadataInformers
    reads: Client
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> Result | None:
        await self.metadata_informers.synced.wait()
        budget = self.budgets.get(key)
        if budget is None:
            return None
        pods = await self.selected_pods(budget)
        now, before = self.now(), budget.get("status") or {}
        try:
            need = await self.budget_target(budget, pods)
        except UnknownScale as error:
            await self.update_status(budget, failed_status(before, str(error), now))
            return None
        taken = pending_disruptions(before.get("disruptedPods") or {}, pods, now)
        await self.update_status(budget, budget_status(budget, need, healthy_count(pods, taken), taken, now))
        first = min((parse_time(each) for each in taken.values()), default=None)
        return Result(requeue_at=first + DELETION_TIMEOUT) if first is not None else None

    async def selected_pods(self, budget: Object) -> list[Object]:
        selector = value_at(budget, "spec", "selector")
        if selector is None:
            return []
        return await self.reads.list(PODS, namespace_of(budget), labels=str(label_selector(selector)))

    async def budget_target(self, budget: Object, pods: Sequence[Object]) -> BudgetTarget:
        spec = budget.get("spec") or {}
        if (most := spec.get("maxUnavailable")) is not None:
            expected = await self.expected_pods(pods)
            return BudgetTarget(expected, max(0, expected - scaled_value(most, expected)))
        least = spec.get("minAvailable")
        if least is None:
            return BudgetTarget(0, 0)
        if isinstance(least, int):
            return BudgetTarget(len(pods), least)
        expected = await self.expected_pods(pods)
        return BudgetTarget(expected, scaled_value(least, expected))

    async def expected_pods(self, pods: Sequence[Object]) -> int:
        """How many pods the owners of these want, in all; pods that nobody owns do not count."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is not None and owner["uid"] not in scales:
                found = await self.owner_scale(owner, namespace_of(pod))
                if found is None:
                    raise UnknownScale(f'found no controllers for pod "{name_of(pod)}"')
                scales[owner["uid"]] = 0  # of a Deployment there may be several sets
                scales[found[0]] = found[1]
        return sum(scales.values())

    async def owner_scale(self, reference: Object, namespace: str | None) -> tuple[str, int] | None:
        """Who decides how many pods an owner has, and how many; None where there is no such owner any more."""
        kind = (reference["apiVersion"].rpartition("/")[0], reference["kind"])
        resource = self.metadata_informers.resources_by_kind.get(kind)
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
        """Something changed in a namespace: it may be a pod of a budget, or an owner of one."""
        obj = new or old
        namespace = namespace_of(obj) if obj is not None else None
        for budget in self.budgets.by(NAMESPACE_INDEX, namespace) if namespace else ():
            queue.add_after(key_of(budget), BATCH_INTERVAL)


# -- pure


def scaled_value(part: int | str, whole: int) -> int:
    """A number, or so many percent, rounded up."""
    return part if isinstance(part, int) else math.ceil(int(part.removesuffix("%")) * whole / 100)


def pending_disruptions(disrupted_pods: Mapping[str, str], pods: Sequence[Object], now: datetime) -> dict[str, str]:
    """The pods that evictions took and that are to go any moment."""
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
    spare = max(0, current_healthy - target.desired_healthy) if target.expected_pods > 0 else 0
    reason = "SufficientPods" if spare else "InsufficientPods"
    allowed = new_condition("DisruptionAllowed", bool(spare), reason, observed_generation=generation)
    found: dict[str, Any] = {
        "currentHealthy": current_healthy,
        "desiredHealthy": target.desired_healthy,
        "expectedPods": target.expected_pods,
        "disruptionsAllowed": spare,
        "observedGeneration": generation,
        "conditions": with_condition(before.get("conditions"), allowed, now),
    }
    return {**found, **({"disruptedPods": dict(disrupted_pods)} if disrupted_pods else {})}


def failed_status(before: Object, message: str, now: datetime) -> Object:
    """A status that lets nobody go."""
    none = new_condition(
        "DisruptionAllowed", False, "SyncFailed", message, observed_generation=before.get("observedGeneration", 0)
    )
    counts = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
    conditions = with_condition(before.get("conditions"), none, now)
    return {**counts, **before, "disruptionsAllowed": 0, "conditions": conditions}


def install(manager: Manager, metadata_informers: MetadataInformers) -> None:
    budgets = manager.informer(DISRUPTION_BUDGETS)
    budgets.store.add_index(NAMESPACE_INDEX, own_namespace)
    reconciler = DisruptionReconciler(budgets.store, metadata_informers, manager.reads, manager.client, manager.now)
    controller = manager.controller("disruption", reconciler.reconcile)
    controller.watch(budgets)
    metadata_informers.on_change(lambda _, old, new: reconciler.object_changed(controller.queue, old, new))
