"""Evictions: deletions of pods that respect PodDisruptionBudgets.

A budget's status has the number of allowed disruptions, which a controller counts (`tapestry.controlplane.disruption`).
An eviction takes one before it deletes the pod, based on the newest version of the budget, so concurrent evictions do
not take the same one. Pods that are pending, finished or being deleted do not take one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.request_bodies import decoded_body
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.responses import CREATED_STATUS, ApiResponse, json_response
from tapestry.apiserver.core.storage_codec import encode_for_storage
from tapestry.apiserver.core.store import ObjectVersion, VersionConflict
from tapestry.apiserver.handlers.options import delete_options
from tapestry.apiserver.handlers.reader import Reader
from tapestry.apiserver.handlers.verbs import MAX_ATTEMPTS, Verbs
from tapestry.kube.conditions import is_condition_true, new_condition, with_condition
from tapestry.kube.errors import Conflict, Forbidden, ServerError, Timeout, TooManyRequests
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, value_at, version_of, with_value
from tapestry.kube.resources import PODS, Resource
from tapestry.kube.selectors import SelectorError, label_selector
from tapestry.kube.times import timestamp

BUDGETS = "poddisruptionbudgets.policy"
BUDGET = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudget")
"""The resource with the name that errors use."""
MAX_DISRUPTED_PODS = 2000
RETRY_AFTER_SECONDS = 10
BUDGET_VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."


@dataclass(frozen=True)
class EvictionHandler:
    """Handle posts to the `eviction` subresource of pods."""

    reader: Reader
    verbs: Verbs
    budget_resource: ResourceInfo
    """The resource info of PodDisruptionBudgets."""

    async def evict(self, call: Call, target: Target) -> ApiResponse:
        body = decoded_body(call) or {}
        name = value_at(body, "metadata", "name", default=target.name)
        if name != target.name:
            raise api_errors.bad_request("name in URL does not match name in Eviction object")
        options = {**delete_options(body.get("deleteOptions"), call.query)}
        query = {**call.query, "dryRun": "All"} if options.get("dryRun") else call.query
        request = WriteRequest(
            "delete", target, call.user, query, origin=call.origin
        )  # webhooks have admitted the eviction
        pod: Object = msgspec.json.decode(await self.reader.get(request.target, {}))
        budget = None if is_finished_or_deleting(pod) else self.budget_of(pod)
        if budget is None:
            await self.delete_evicted(request, options)
        elif is_pending(pod) or is_not_counted(pod, msgspec.json.decode(budget.raw)):
            await self.delete_if_unchanged(request, options, pod, budget)
        else:
            await self.take_disruption(budget, pod, is_dry=request.is_dry_run)
            await self.delete_evicted(request, options)
        return json_response(201, CREATED_STATUS)

    def budget_of(self, pod: Object) -> ObjectVersion | None:
        """The budget that selects the pod, or None. Raises ServerError if there are several."""
        budgets = []
        for version in self.verbs.store.list_objects(BUDGETS, pod["metadata"]["namespace"]):
            spec: Object = msgspec.json.decode(version.raw).get("spec") or {}
            if selects_pod(spec, labels_of(pod)):
                budgets.append(version)
        if len(budgets) > 1 and not is_pending(pod):
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise ServerError(500, "", message)
        return budgets[0] if budgets else None

    async def take_disruption(self, budget: ObjectVersion, pod: Object, *, is_dry: bool) -> None:
        """Take one of the disruptions that the budget allows."""
        store, key = self.verbs.store, budget.key
        for _ in range(MAX_ATTEMPTS):
            head = store.head(*key)
            if head is None:
                return
            updated = self.budget_after_disruption(msgspec.json.decode(head.raw), pod)
            if is_dry:
                return
            try:
                await store.put(key, head, encode_for_storage(self.budget_resource, updated))
            except VersionConflict:
                continue
            return
        message = f'Timeout: couldn\'t update PodDisruptionBudget "{key.name}" due to conflicts'
        raise Timeout(504, "Timeout", message, details={"retryAfterSeconds": RETRY_AFTER_SECONDS})

    def budget_after_disruption(self, budget: Object, pod: Object) -> Object:
        """The budget with one allowed disruption less. Raises TooManyRequests or Forbidden."""
        status, name = budget.get("status") or {}, name_of(budget)
        if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
            raise budget_processing_error(name)
        allowed, disrupted = status.get("disruptionsAllowed", 0), status.get("disruptedPods") or {}
        if allowed < 0:
            raise budget_forbidden_error(name, "pdb disruptions allowed is negative")
        if len(disrupted) > MAX_DISRUPTED_PODS:
            message = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
            raise budget_forbidden_error(name, message)
        if allowed == 0:
            needed, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            raise budget_violated_error(
                f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            )
        now = self.verbs.now()
        status = {
            **status,
            "disruptionsAllowed": allowed - 1,
            "disruptedPods": {**disrupted, name_of(pod): timestamp(now)},
        }
        if allowed == 1:
            condition = new_condition(
                "DisruptionAllowed", False, "InsufficientPods", observed_generation=status["observedGeneration"]
            )
            status["conditions"] = with_condition(status.get("conditions"), condition, now)
        return {**budget, "status": status}

    async def delete_if_unchanged(
        self, request: WriteRequest, options: Mapping[str, Any], pod: Object, budget: ObjectVersion
    ) -> None:
        """Delete the pod only if it did not change, because the budget may count a changed pod."""
        if value_at(options, "preconditions", "resourceVersion"):
            await self.delete_evicted(request, options)
            return
        try:
            await self.delete_evicted(request, with_version_precondition(options, pod))
        except Conflict:
            raise budget_processing_error(budget.key.name) from None

    async def delete_evicted(self, request: WriteRequest, options: Mapping[str, Any]) -> None:
        """Set the pod's DisruptionTarget condition and delete it."""
        if not request.is_dry_run:
            updated = await self.mark_evicted(request, options)
            if value_at(options, "preconditions", "resourceVersion"):  # the condition changed the resourceVersion
                options = with_version_precondition(options, updated)
        await self.verbs.delete(request, options)

    async def mark_evicted(self, request: WriteRequest, options: Mapping[str, Any]) -> Object:
        preconditions = options.get("preconditions") or {}

        def with_disruption_target(pod: Object) -> Object:
            for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                current = pod["metadata"].get(field, "")
                if preconditions.get(field) not in (None, "", current):
                    raise api_errors.failed_precondition(PODS, name_of(pod), word, preconditions[field], current)
            evicted = new_condition("DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
            conditions = with_condition(value_at(pod, "status", "conditions"), evicted, self.verbs.now())
            return with_value(pod, ("status", "conditions"), conditions)

        target = request.target
        update = WriteRequest(
            *("update", Target(target.info, target.namespace, target.name, "status"), request.user, request.query),
            origin=request.origin,
        )
        updated: Object = msgspec.json.decode(await self.verbs.update(update, with_disruption_target))
        return updated


def selects_pod(spec: Object, labels: Mapping[str, str]) -> bool:
    try:
        return spec.get("selector") is not None and label_selector(spec["selector"]).matches(labels)
    except SelectorError:
        return False


def is_finished_or_deleting(pod: Object) -> bool:
    return is_deleting(pod) or value_at(pod, "status", "phase") in ("Succeeded", "Failed")


def is_pending(pod: Object) -> bool:
    return bool(value_at(pod, "status", "phase") == "Pending")


def is_not_counted(pod: Object, budget: Object) -> bool:
    """Return whether an unready pod may be deleted because the budget does not count it."""
    if is_condition_true(pod, "Ready"):
        return False
    if value_at(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    needed = status.get("desiredHealthy", 0)
    return bool(needed > 0 and status.get("currentHealthy", 0) >= needed)


def with_version_precondition(options: Mapping[str, Any], pod: Object) -> Mapping[str, Any]:
    """Delete options with the pod's resourceVersion as a precondition."""
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


def budget_forbidden_error(name: str, reason: str) -> Forbidden:
    details = api_errors.status_details(BUDGET, name)
    return Forbidden(403, "Forbidden", f'{BUDGET.name} "{name}" is forbidden: {reason}', details=details)
