"""Evictions: deletions of pods that disruption budgets have a say in.

A budget's status says how many more pods may go (a controller counts: `tapestry.controlplane.disruption`).  An eviction
takes one of them before it deletes the pod, on top of the newest version there is, so that two at the same moment do
not take the same one.  Pods that do nobody any good, or are going already, are let go without asking.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver import api_errors
from tapestry.apiserver.request_bodies import decoded_body
from tapestry.apiserver.requests import Call, Target
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.apiserver.server import ApiResponse, delete_options_of, json_response
from tapestry.apiserver.storage.store import ObjectVersion, VersionConflict
from tapestry.apiserver.verbs import MAX_ATTEMPTS, Verbs, WriteRequest, encode_for_storage
from tapestry.kube.conditions import is_condition_true, new_condition, with_condition
from tapestry.kube.errors import Conflict, Forbidden, ServerError, Timeout, TooManyRequests
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at, version_of, with_value
from tapestry.kube.resources import PODS, Resource
from tapestry.kube.selectors import SelectorError, label_selector
from tapestry.kube.times import timestamp

BUDGETS = "poddisruptionbudgets.policy"
BUDGET = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudget")
"""As refusals name it."""
MAX_DISRUPTED_PODS = 2000
RETRY_AFTER_SECONDS = 10
BUDGET_VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."
SUCCESS_STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


@dataclass(frozen=True)
class EvictionHandler:
    """Answers what is posted to a pod's `eviction`."""

    verbs: Verbs
    budget_resource: ResourceInfo
    """That of the budgets."""

    async def evict(self, call: Call, target: Target) -> ApiResponse:
        body = decoded_body(call) or {}
        name = value_at(body, "metadata", "name", default=target.name)
        if name != target.name:
            raise api_errors.bad_request("name in URL does not match name in Eviction object")
        options = {**delete_options_of(body.get("deleteOptions"), call)}
        query = {**call.query, "dryRun": "All"} if options.get("dryRun") else call.query
        request = WriteRequest("delete", target, call.user, query)  # a deletion that is nobody else's to judge
        pod: Object = msgspec.json.decode(await self.verbs.get(request.target, {}))
        budget = None if is_finished_or_deleting(pod) else self.budget_of(pod)
        if budget is None:
            await self.delete_evicted(request, options)
        elif is_pending(pod) or is_not_counted(pod, msgspec.json.decode(budget.raw)):
            await self.delete_if_unchanged(request, options, pod, budget)
        else:
            await self.take_disruption(budget, pod, is_dry=request.is_dry_run)
            await self.delete_evicted(request, options)
        return json_response(201, SUCCESS_STATUS)

    def budget_of(self, pod: Object) -> ObjectVersion | None:
        """The one budget that chooses the pod."""
        found = []
        for version in self.verbs.store.list_objects(BUDGETS, pod["metadata"]["namespace"]):
            spec: Object = msgspec.json.decode(version.raw).get("spec") or {}
            if selects_pod(spec, labels_of(pod)):
                found.append(version)
        if len(found) > 1 and not is_pending(pod):
            why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ServerError(500, "", why)
        return found[0] if found else None

    async def take_disruption(self, budget: ObjectVersion, pod: Object, *, is_dry: bool) -> None:
        """Take one of the disruptions that the budget allows."""
        store, key = self.verbs.store, budget.key
        for _ in range(MAX_ATTEMPTS):
            head = store.head(*key)
            if head is None:
                return
            smaller = self.budget_after_disruption(msgspec.json.decode(head.raw), pod)
            if is_dry:
                return
            try:
                await store.put(key, head, encode_for_storage(self.budget_resource, smaller))
            except VersionConflict:
                continue
            return
        why = f'Timeout: couldn\'t update PodDisruptionBudget "{key.name}" due to conflicts'
        raise Timeout(504, "Timeout", why, details={"retryAfterSeconds": RETRY_AFTER_SECONDS})

    def budget_after_disruption(self, budget: Object, pod: Object) -> Object:
        """The budget with one disruption less.  Raises TooManyRequests or Forbidden."""
        status, name = budget.get("status") or {}, name_of(budget)
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise budget_processing_error(name)
        left, gone = status.get("disruptionsAllowed", 0), status.get("disruptedPods") or {}
        if left < 0:
            raise budget_forbidden_error(name, "pdb disruptions allowed is negative")
        if len(gone) > MAX_DISRUPTED_PODS:
            why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
            raise budget_forbidden_error(name, why)
        if left == 0:
            needed, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            raise budget_violated_error(
                f"The disruption budget {name} needs {needed} healthy pods and has {has} currently"
            )
        now = self.verbs.now()
        status = {
            **status,
            "disruptionsAllowed": left - 1,
            "disruptedPods": {**gone, name_of(pod): timestamp(now)},
        }
        if left == 1:
            none = new_condition(
                "DisruptionAllowed", False, "InsufficientPods", observed_generation=status["observedGeneration"]
            )
            status["conditions"] = with_condition(status.get("conditions"), none, now)
        return {**budget, "status": status}

    async def delete_if_unchanged(
        self, request: WriteRequest, options: Mapping[str, Any], pod: Object, budget: ObjectVersion
    ) -> None:
        """Let the pod go as it was judged: if it has changed meanwhile, the budget may count it."""
        if value_at(options, "preconditions", "resourceVersion"):
            await self.delete_evicted(request, options)
            return
        try:
            await self.delete_evicted(request, with_version_precondition(options, pod))
        except Conflict:
            raise budget_processing_error(budget.key.name) from None

    async def delete_evicted(self, request: WriteRequest, options: Mapping[str, Any]) -> None:
        """Mark the pod as evicted, and delete it."""
        if not request.is_dry_run:
            marked = await self.mark_evicted(request, options)
            if value_at(options, "preconditions", "resourceVersion"):  # it was that one, until it was marked
                options = with_version_precondition(options, marked)
        await self.verbs.delete(request, options)

    async def mark_evicted(self, request: WriteRequest, options: Mapping[str, Any]) -> Object:
        wanted = options.get("preconditions") or {}

        def marked(pod: Object) -> Object:
            for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                found = pod["metadata"].get(field, "")
                if wanted.get(field) not in (None, "", found):
                    raise api_errors.failed_precondition(PODS, name_of(pod), word, wanted[field], found)
            evicted = new_condition("DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
            conditions = with_condition(value_at(pod, "status", "conditions"), evicted, self.verbs.now())
            return with_value(pod, ("status", "conditions"), conditions)

        target = request.target
        update = WriteRequest(
            "update", Target(target.info, target.namespace, target.name, "status"), request.user, request.query
        )
        found: Object = msgspec.json.decode(await self.verbs.update(update, marked))
        return found


def selects_pod(spec: Object, labels: Mapping[str, str]) -> bool:
    try:
        return spec.get("selector") is not None and label_selector(spec["selector"]).matches(labels)
    except SelectorError:
        return False


def is_finished_or_deleting(pod: Object) -> bool:
    """Whether nobody can miss the pod any more: it has ended, or is going."""
    return is_deleting(pod) or value_at(pod, "status", "phase") in ("Succeeded", "Failed")


def is_pending(pod: Object) -> bool:
    """Whether nobody can miss it yet."""
    return bool(value_at(pod, "status", "phase") == "Pending")


def is_not_counted(pod: Object, budget: Object) -> bool:
    """Whether a pod that is not ready may go because the budget does not count it."""
    if is_condition_true(pod, "Ready"):
        return False
    if value_at(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    needed = status.get("desiredHealthy", 0)
    return bool(needed > 0 and status.get("currentHealthy", 0) >= needed)


def with_version_precondition(options: Mapping[str, Any], pod: Object) -> Mapping[str, Any]:
    """Options of a deletion that hold for this version alone."""
    return {**options, "preconditions": {**(options.get("preconditions") or {}), "resourceVersion": version_of(pod)}}


def budget_processing_error(budget: str) -> TooManyRequests:
    return budget_violated_error(
        f"The disruption budget {budget} is still being processed by the server.", RETRY_AFTER_SECONDS
    )


def budget_violated_error(cause: str, seconds: int = 0) -> TooManyRequests:
    details: Object = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    return TooManyRequests(
        429, "TooManyRequests", BUDGET_VIOLATED, details=details | ({"retryAfterSeconds": seconds} if seconds else {})
    )


def budget_forbidden_error(name: str, why: str) -> Forbidden:
    details = api_errors.status_details(BUDGET, name)
    return Forbidden(403, "Forbidden", f'{BUDGET.name} "{name}" is forbidden: {why}', details=details)
