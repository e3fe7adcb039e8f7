"""HorizontalPodAutoscaler controller.

Every sync period it reads the scale of the target and the usage of its pods from `metrics.k8s.io`, decides the number
of replicas (`scaling_decision`) and writes it to the scale. Metrics of the types Pods, Object and External are not
supported and count as invalid.

Recent recommendations and changes are in memory. After a restart, scaling down waits for a whole window again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from tapestry.client.client import Client
from tapestry.client.discovery import discovery_document, group_versions
from tapestry.controller import Manager, Result
from tapestry.controller.events import Recorder
from tapestry.controller.store import Store
from tapestry.controlplane.autoscaling.replica_calculator import AutoscalerSettings, MetricError
from tapestry.controlplane.autoscaling.scaling_decision import (
    Decision,
    autoscaler_status,
    decision_by_bounds,
    decision_by_metrics,
    invalid_spec_decision,
    selector_decision,
    with_conditions,
)
from tapestry.controlplane.autoscaling.scaling_rules import History, Sample
from tapestry.controlplane.autoscaling.target_selectors import TargetSelectors
from tapestry.controlplane.labeled_pods import LabeledPods
from tapestry.kube.conditions import new_condition
from tapestry.kube.errors import ApiError, Conflict, NotFound
from tapestry.kube.objects import Object, key_of, namespace_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import AUTOSCALERS, POD_METRICS, PODS, Resource
from tapestry.kube.selectors import SelectorError, parse_label_selector

WORKERS = 5
MAX_RATE = 50.0
"""Average reconciles per second of all autoscalers. With many of them, each waits longer than a sync period."""
MAX_SCALE_ATTEMPTS = 5
DEFAULT_SETTINGS = AutoscalerSettings()
SUCCEEDED = ("SucceededGetScale", "the HPA controller was able to get the target's current scale")


class UnknownTarget(Exception):
    """No resource can be scaled under the kind of a target."""


@dataclass(frozen=True)
class AutoscalerReconciler:
    """Scale the target of each HorizontalPodAutoscaler and update its status."""

    autoscalers: Store
    pods: LabeledPods
    reads: Client
    client: Client
    events: Recorder
    now: Callable[[], datetime]
    settings: AutoscalerSettings
    histories: dict[str, History] = field(default_factory=dict)
    selectors: TargetSelectors = field(default_factory=TargetSelectors)
    resources: dict[tuple[str, str], Resource] = field(default_factory=dict)
    """Resources of target kinds, by group and kind. An entry is removed if its scale is not found."""

    async def reconcile(self, key: str) -> Result | None:
        autoscaler = self.autoscalers.get(key)
        if autoscaler is None:
            self.histories.pop(key, None)
            self.selectors.remove(key)
            return None
        await self.sync(autoscaler)
        return Result(requeue_after=max(self.settings.sync_period, len(self.autoscalers) / MAX_RATE))

    async def sync(self, autoscaler: Object) -> None:
        try:
            resource, scale = await self.target_scale(autoscaler)
        except (ApiError, UnknownTarget) as error:
            cause = error.message if isinstance(error, ApiError) else str(error)
            message = f"the HPA controller was unable to get the target's current scale: {cause}"
            self.events.warning(autoscaler, "FailedGetScale", cause)
            before = {"desiredReplicas": 0, **(autoscaler.get("status") or {})}
            failed = new_condition("AbleToScale", False, "FailedGetScale", message)
            await self.update_status(
                autoscaler, {**before, "conditions": with_conditions(before, [failed], self.now())}
            )
            return
        current = value_at(scale, "spec", "replicas", default=0)
        key, now = key_of(autoscaler), self.now()
        history = self.histories.get(key) or History((Sample(current, now),))
        decision = invalid_spec_decision(autoscaler, history) or decision_by_bounds(autoscaler, current, history)
        if decision is None:
            decision = await self.decision_by_usage(autoscaler, scale, current, history)
        for reason, message in decision.warnings:
            self.events.warning(autoscaler, reason, message)
        conditions = [new_condition("AbleToScale", True, *SUCCEEDED), *decision.conditions]
        self.histories[key] = decision.history
        if decision.replicas not in (None, current):
            scaled, condition = await self.rescale(autoscaler, resource, scale, decision)
            conditions.append(condition)
            if scaled:
                self.histories[key] = decision.history.with_change(autoscaler, current, decision.replicas, now)
            else:
                decision = replace(decision, replicas=None)
        status = autoscaler_status(autoscaler.get("status") or {}, current, decision, conditions, now)
        await self.update_status(autoscaler, status)

    async def target_scale(self, autoscaler: Object) -> tuple[Resource, Object]:
        target = autoscaler["spec"]["scaleTargetRef"]
        kind = (target.get("apiVersion", "").rpartition("/")[0], target["kind"])
        resource = self.resources.get(kind) or await scalable_resource(self.reads, *kind)
        try:
            scale = await self.reads.get(resource, target["name"], namespace_of(autoscaler), subresource="scale")
        except NotFound:
            self.resources.pop(kind, None)
            raise
        self.resources[kind] = resource
        return resource, scale

    async def decision_by_usage(self, autoscaler: Object, scale: Object, current: int, history: History) -> Decision:
        text = value_at(scale, "status", "selector", default="")
        if not text:
            missing = "the HPA target's scale is missing a selector"
            return selector_decision("InvalidSelector", "SelectorRequired", "selector is required", missing, history)
        try:
            selector = parse_label_selector(text)
        except SelectorError as error:
            message = f"couldn't convert selector into a corresponding internal selector object: {error}"
            return selector_decision("InvalidSelector", "InvalidSelector", message, message, history)
        key, namespace = key_of(autoscaler), namespace_of(autoscaler) or ""
        self.selectors.put(key, selector)
        pods = self.pods.matching(namespace, selector)
        if others := [each for each in self.selectors.competitors(key, pods) if each in self.autoscalers]:
            names = " ".join(sorted([key, *others]))
            message = f"pods by selector {text} are controlled by multiple HPAs: [{names}]"
            return selector_decision("AmbiguousSelector", "AmbiguousSelector", message, message, history)
        items: list[Object] | MetricError
        try:
            items = await self.reads.list(POD_METRICS, namespace, labels=str(selector))
        except ApiError as error:
            items = MetricError(f"unable to fetch metrics from resource metrics API: {error.message}")
        return decision_by_metrics(autoscaler, current, pods, items, history, self.settings, self.now())

    async def rescale(
        self, autoscaler: Object, resource: Resource, scale: Object, decision: Decision
    ) -> tuple[bool, Object]:
        """Write the number of replicas. Return whether that succeeded, and the condition."""
        change = f"New size: {decision.replicas}; reason: {decision.reason}"
        try:
            await self.write_scale(resource, scale, decision.replicas or 0)
        except ApiError as error:
            self.events.warning(autoscaler, "FailedRescale", f"{change}; error: {error.message}")
            message = f"the HPA controller was unable to update the target scale: {error.message}"
            return False, new_condition("AbleToScale", False, "FailedUpdateScale", message)
        self.events.normal(autoscaler, "SuccessfulRescale", change)
        message = f"the HPA controller was able to update the target scale to {decision.replicas}"
        return True, new_condition("AbleToScale", True, "SucceededRescale", message)

    async def write_scale(self, resource: Resource, scale: Object, replicas: int) -> None:
        """Write the scale. Other controllers often update the status of the target, so conflicts are retried."""
        for _ in range(MAX_SCALE_ATTEMPTS - 1):
            try:
                await self.client.patch(resource, scale, {"spec": {"replicas": replicas}}, subresource="scale")
                return
            except Conflict:
                metadata = scale["metadata"]
                scale = await self.reads.get(resource, metadata["name"], metadata["namespace"], subresource="scale")
        await self.client.patch(resource, scale, {"spec": {"replicas": replicas}}, subresource="scale")

    async def update_status(self, autoscaler: Object, status: Object) -> None:
        patch = merge_patch(autoscaler.get("status") or {}, status)
        if patch:
            try:
                await self.client.patch(AUTOSCALERS, autoscaler, {"status": patch}, subresource="status")
            except NotFound:
                return


async def scalable_resource(client: Client, group: str, kind: str) -> Resource:
    """Return the resource of a kind that has a scale, in the preferred version of its group."""
    versions = ["v1"] if not group else [each for each in await group_versions(client) if each.startswith(f"{group}/")]
    for version in versions:
        path = f"/apis/{version}" if group else f"/api/{version}"
        entries = (await discovery_document(client, path, "APIResourceList"))["resources"]
        names = {each["name"] for each in entries}
        for each in entries:
            if each["kind"] == kind and each["namespaced"] and f"{each['name']}/scale" in names:
                return Resource(group, version.rpartition("/")[2], kind, each["name"])
    raise UnknownTarget(f'no matches for kind "{kind}" in group "{group}" with a scale')


def install(manager: Manager, settings: AutoscalerSettings = DEFAULT_SETTINGS) -> None:
    autoscalers = manager.informer(AUTOSCALERS)
    pods = LabeledPods(manager.informer(PODS))
    reconciler = AutoscalerReconciler(
        autoscalers.store, pods, manager.reads, manager.client, manager.events, manager.now, settings
    )
    controller = manager.controller("horizontalpodautoscalers", reconciler.reconcile, workers=WORKERS)
    controller.watch(autoscalers, when=spec_changed, after=settings.sync_period)


def spec_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether more than the status changed. Autoscalers have no generation in Kubernetes."""
    return old is None or new is None or old["spec"] != new["spec"]
