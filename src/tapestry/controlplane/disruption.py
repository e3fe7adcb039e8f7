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
from tapestry.controlplane.everything import Everything
from tapestry.kube.conditions import condition, is_true, with_condition
from tapestry.kube.errors import MethodNotAllowed, NotFound
from tapestry.kube.objects import Object, controller_of, is_deleting, key_of, name_of, namespace_of, uid_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import DISRUPTION_BUDGETS, PODS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time

NAMESPACE = "namespace"
PAUSE = 0.2
"""Seconds in which changes are counted together."""
PATIENCE = timedelta(minutes=2)
"""How long a pod that was taken may still be there."""
SCALED = frozenset({("apps", "ReplicaSet"), ("apps", "Deployment"), ("apps", "StatefulSet")})
"""Kinds that say in `spec.replicas` how many pods they want; others are asked for their scale."""
REPLICATION = ("", "ReplicationController")


class Unknown(Exception):
    """Nobody can say how many pods there should be."""


@dataclass(frozen=True)
class Need:
    """How many pods there should be, and how many of them have to be up."""

    expected: int
    healthy: int


@dataclass(frozen=True)
class Disruption:
    """Keeps the status of each budget."""

    budgets: Store
    everything: Everything
    reads: Client
    client: Client
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> Result | None:
        await self.everything.settled.wait()
        budget = self.budgets.get(key)
        if budget is None:
            return None
        pods = await self.selected(budget)
        now, before = self.now(), budget.get("status") or {}
        try:
            need = await self.need(budget, pods)
        except Unknown as error:
            await self.write(budget, failed(before, str(error), now))
            return None
        taken = still_taken(before.get("disruptedPods") or {}, pods, now)
        await self.write(budget, status_of(budget, need, healthy(pods, taken), taken, now))
        first = min((parse_time(each) for each in taken.values()), default=None)
        return Result(requeue_at=first + PATIENCE) if first is not None else None

    async def selected(self, budget: Object) -> list[Object]:
        selector = value_at(budget, "spec", "selector")
        if selector is None:
            return []
        return await self.reads.list(PODS, namespace_of(budget), labels=str(label_selector(selector)))

    async def need(self, budget: Object, pods: Sequence[Object]) -> Need:
        spec = budget.get("spec") or {}
        if (most := spec.get("maxUnavailable")) is not None:
            expected = await self.expected(pods)
            return Need(expected, max(0, expected - share(most, expected)))
        least = spec.get("minAvailable")
        if least is None:
            return Need(0, 0)
        if isinstance(least, int):
            return Need(len(pods), least)
        expected = await self.expected(pods)
        return Need(expected, share(least, expected))

    async def expected(self, pods: Sequence[Object]) -> int:
        """How many pods the owners of these want, in all; pods that nobody owns do not count."""
        scales: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is not None and owner["uid"] not in scales:
                found = await self.scale(owner, namespace_of(pod))
                if found is None:
                    raise Unknown(f'found no controllers for pod "{name_of(pod)}"')
                scales[owner["uid"]] = 0  # of a Deployment there may be several sets
                scales[found[0]] = found[1]
        return sum(scales.values())

    async def scale(self, reference: Object, namespace: str | None) -> tuple[str, int] | None:
        """Who decides how many pods an owner has, and how many; None where there is no such owner any more."""
        kind = (reference["apiVersion"].rpartition("/")[0], reference["kind"])
        resource = self.everything.kinds.get(kind)
        if resource is None:
            raise Unknown(f'no matches for kind "{kind[1]}" in version "{reference["apiVersion"]}"')
        is_plain = kind in SCALED or kind == REPLICATION
        try:
            subresource = None if is_plain else "scale"
            owner = await self.reads.get(resource, reference["name"], namespace, subresource=subresource)
        except (NotFound, MethodNotAllowed) as error:
            if is_plain or await self.reads.find(resource, reference["name"], namespace) is None:
                return None
            raise Unknown(f"{resource.name} does not implement the scale subresource") from error
        if uid_of(owner) != reference["uid"]:
            return None
        above = controller_of(owner) if kind == ("apps", "ReplicaSet") else None
        if above is not None and above["kind"] == "Deployment":
            return await self.scale(above, namespace)
        return uid_of(owner), value_at(owner, "spec", "replicas", default=1 if is_plain else 0)

    async def write(self, budget: Object, status: Object) -> None:
        before = budget.get("status") or {}
        if status != before:
            patch = {"status": merge_patch(before, status)}
            await self.client.patch(DISRUPTION_BUDGETS, budget, patch, subresource="status")

    def noticed(self, queue: Queue, old: Object | None, new: Object | None) -> None:
        """Something changed in a namespace: it may be a pod of a budget, or an owner of one."""
        obj = new or old
        namespace = namespace_of(obj) if obj is not None else None
        for budget in self.budgets.by(NAMESPACE, namespace) if namespace else ():
            queue.add_after(key_of(budget), PAUSE)


# -- pure


def share(part: int | str, whole: int) -> int:
    """A number, or so many percent, rounded up."""
    return part if isinstance(part, int) else math.ceil(int(part.removesuffix("%")) * whole / 100)


def still_taken(taken: Mapping[str, str], pods: Sequence[Object], now: datetime) -> dict[str, str]:
    """The pods that evictions took and that are to go any moment."""
    waiting = {name_of(pod) for pod in pods if not is_deleting(pod)}
    return {name: at for name, at in taken.items() if name in waiting and parse_time(at) + PATIENCE > now}


def healthy(pods: Sequence[Object], taken: Mapping[str, str]) -> int:
    return sum(1 for pod in pods if not is_deleting(pod) and name_of(pod) not in taken and is_true(pod, "Ready"))


def status_of(budget: Object, need: Need, up: int, taken: Mapping[str, str], now: datetime) -> Object:
    before, generation = budget.get("status") or {}, budget["metadata"].get("generation", 1)
    spare = max(0, up - need.healthy) if need.expected > 0 else 0
    reason = "SufficientPods" if spare else "InsufficientPods"
    allowed = condition("DisruptionAllowed", bool(spare), reason, observed_generation=generation)
    found: dict[str, Any] = {
        "currentHealthy": up,
        "desiredHealthy": need.healthy,
        "expectedPods": need.expected,
        "disruptionsAllowed": spare,
        "observedGeneration": generation,
        "conditions": with_condition(before.get("conditions"), allowed, now),
    }
    return {**found, **({"disruptedPods": dict(taken)} if taken else {})}


def failed(before: Object, why: str, now: datetime) -> Object:
    """A status that lets nobody go."""
    none = condition(
        "DisruptionAllowed", False, "SyncFailed", why, observed_generation=before.get("observedGeneration", 0)
    )
    counts = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
    conditions = with_condition(before.get("conditions"), none, now)
    return {**counts, **before, "disruptionsAllowed": 0, "conditions": conditions}


def install(manager: Manager, everything: Everything) -> None:
    budgets = manager.informer(DISRUPTION_BUDGETS)
    budgets.store.add_index(NAMESPACE, own_namespace)
    reconciler = Disruption(budgets.store, everything, manager.reads, manager.client, manager.now)
    controller = manager.controller("disruption", reconciler.reconcile)
    controller.watch(budgets)
    everything.on_change(lambda _, old, new: reconciler.noticed(controller.queue, old, new))
