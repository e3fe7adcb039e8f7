"""Evictions: deletions of pods that disruption budgets have a say in.

A budget's status says how many more pods may go (a controller counts: `tapestry.controlplane.disruption`).  An eviction
takes one of them before it deletes the pod, on top of the newest version there is, so that two at the same moment do
not take the same one.  Pods that do nobody any good, or are going already, are let go without asking.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.payloads import sent_in
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Answer, answered, deletion
from tapestry.apiserver.storage.store import Stale, Version
from tapestry.apiserver.verbs import TRIES, Request, Verbs, making
from tapestry.kube.conditions import condition, is_true, with_condition
from tapestry.kube.errors import Conflict, Forbidden, ServerError, Timeout, TooManyRequests
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at, version_of, with_value
from tapestry.kube.resources import PODS, Resource
from tapestry.kube.selectors import SelectorError, label_selector
from tapestry.kube.times import timestamp

BUDGETS = "poddisruptionbudgets.policy"
BUDGET = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudget")
"""As refusals name it."""
MOST_DISRUPTED = 2000
AGAIN_SECONDS = 10
VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."
DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


@dataclass(frozen=True)
class Evictions:
    """Answers what is posted to a pod's `eviction`."""

    verbs: Verbs
    row: Row
    """That of the budgets."""

    async def evict(self, call: Call, target: Target) -> Answer:
        body = sent_in(call) or {}
        name = value_at(body, "metadata", "name", default=target.name)
        if name != target.name:
            raise refusals.bad_request("name in URL does not match name in Eviction object")
        options = {**deletion(body.get("deleteOptions"), call)}
        query = {**call.query, "dryRun": "All"} if options.get("dryRun") else call.query
        request = Request("delete", target, call.user, query)  # a deletion that is nobody else's to judge
        pod: Object = msgspec.json.decode(await self.verbs.get(request.target, {}))
        budget = None if is_over(pod) else self.budget_of(pod)
        if budget is None:
            await self.go(request, options)
        elif is_waiting(pod) or is_beyond(pod, msgspec.json.decode(budget.raw)):
            await self.go_as_judged(request, options, pod, budget)
        else:
            await self.take(budget, pod, is_dry=request.is_dry)
            await self.go(request, options)
        return answered(201, DONE)

    def budget_of(self, pod: Object) -> Version | None:
        """The one budget that chooses the pod."""
        found = []
        for version in self.verbs.store.every(BUDGETS, pod["metadata"]["namespace"]):
            spec: Object = msgspec.json.decode(version.raw).get("spec") or {}
            if chooses(spec, labels_of(pod)):
                found.append(version)
        if len(found) > 1 and not is_waiting(pod):
            why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ServerError(500, "", why)
        return found[0] if found else None

    async def take(self, budget: Version, pod: Object, *, is_dry: bool) -> None:
        """Take one of the disruptions that the budget allows."""
        store, key = self.verbs.store, budget.key
        for _ in range(TRIES):
            head = store.head(*key)
            if head is None:
                return
            smaller = self.disrupted(msgspec.json.decode(head.raw), pod)
            if is_dry:
                return
            try:
                await store.put(key, head, making(self.row, smaller))
            except Stale:
                continue
            return
        why = f'Timeout: couldn\'t update PodDisruptionBudget "{key.name}" due to conflicts'
        raise Timeout(504, "Timeout", why, details={"retryAfterSeconds": AGAIN_SECONDS})

    def disrupted(self, budget: Object, pod: Object) -> Object:
        """The budget with one disruption less.  Raises TooManyRequests or Forbidden."""
        status, name = budget.get("status") or {}, name_of(budget)
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise processing(name)
        left, gone = status.get("disruptionsAllowed", 0), status.get("disruptedPods") or {}
        if left < 0:
            raise forbidden(name, "pdb disruptions allowed is negative")
        if len(gone) > MOST_DISRUPTED:
            why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
            raise forbidden(name, why)
        if left == 0:
            needed, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            raise violated(f"The disruption budget {name} needs {needed} healthy pods and has {has} currently")
        now = self.verbs.now()
        status = {
            **status,
            "disruptionsAllowed": left - 1,
            "disruptedPods": {**gone, name_of(pod): timestamp(now)},
        }
        if left == 1:
            none = condition(
                "DisruptionAllowed", False, "InsufficientPods", observed_generation=status["observedGeneration"]
            )
            status["conditions"] = with_condition(status.get("conditions"), none, now)
        return {**budget, "status": status}

    async def go_as_judged(self, request: Request, options: Mapping[str, Any], pod: Object, budget: Version) -> None:
        """Let the pod go as it was judged: if it has changed meanwhile, the budget may count it."""
        if value_at(options, "preconditions", "resourceVersion"):
            await self.go(request, options)
            return
        try:
            await self.go(request, at_version(options, pod))
        except Conflict:
            raise processing(budget.key.name) from None

    async def go(self, request: Request, options: Mapping[str, Any]) -> None:
        """Mark the pod as evicted, and delete it."""
        if not request.is_dry:
            marked = await self.mark(request, options)
            if value_at(options, "preconditions", "resourceVersion"):  # it was that one, until it was marked
                options = at_version(options, marked)
        await self.verbs.delete(request, options)

    async def mark(self, request: Request, options: Mapping[str, Any]) -> Object:
        wanted = options.get("preconditions") or {}

        def marked(pod: Object) -> Object:
            for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                found = pod["metadata"].get(field, "")
                if wanted.get(field) not in (None, "", found):
                    raise refusals.failed_precondition(PODS, name_of(pod), word, wanted[field], found)
            evicted = condition("DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
            conditions = with_condition(value_at(pod, "status", "conditions"), evicted, self.verbs.now())
            return with_value(pod, ("status", "conditions"), conditions)

        target = request.target
        update = Request(
            "update", Target(target.row, target.namespace, target.name, "status"), request.user, request.query
        )
        found: Object = msgspec.json.decode(await self.verbs.update(update, marked))
        return found


def chooses(spec: Object, labels: Mapping[str, str]) -> bool:
    try:
        return spec.get("selector") is not None and label_selector(spec["selector"]).matches(labels)
    except SelectorError:
        return False


def is_over(pod: Object) -> bool:
    """Whether nobody can miss the pod any more: it has ended, or is going."""
    return is_deleting(pod) or value_at(pod, "status", "phase") in ("Succeeded", "Failed")


def is_waiting(pod: Object) -> bool:
    """Whether nobody can miss it yet."""
    return bool(value_at(pod, "status", "phase") == "Pending")


def is_beyond(pod: Object, budget: Object) -> bool:
    """Whether a pod that is not ready may go because the budget does not count it."""
    if is_true(pod, "Ready"):
        return False
    if value_at(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    needed = status.get("desiredHealthy", 0)
    return bool(needed > 0 and status.get("currentHealthy", 0) >= needed)


def at_version(options: Mapping[str, Any], pod: Object) -> Mapping[str, Any]:
    """Options of a deletion that hold for this version alone."""
    return {**options, "preconditions": {**(options.get("preconditions") or {}), "resourceVersion": version_of(pod)}}


def processing(budget: str) -> TooManyRequests:
    return violated(f"The disruption budget {budget} is still being processed by the server.", AGAIN_SECONDS)


def violated(cause: str, seconds: int = 0) -> TooManyRequests:
    details: Object = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    return TooManyRequests(
        429, "TooManyRequests", VIOLATED, details=details | ({"retryAfterSeconds": seconds} if seconds else {})
    )


def forbidden(name: str, why: str) -> Forbidden:
    details = refusals.details(BUDGET, name)
    return Forbidden(403, "Forbidden", f'{BUDGET.name} "{name}" is forbidden: {why}', details=details)
