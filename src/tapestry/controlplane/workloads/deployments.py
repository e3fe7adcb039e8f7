"""Deployment controller: rolls pods from one ReplicaSet to the next.

`rollouts` decides the steps. This module executes them and updates the status.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import controller_key, own_namespace
from tapestry.controller.events import Recorder
from tapestry.controlplane.workloads import owned_pods, rollouts
from tapestry.controlplane.workloads.owned_pods import owner_uid
from tapestry.controlplane.workloads.rollouts import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    POD_TEMPLATE_HASH,
    REVISION,
    REVISION_HISTORY,
)
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    name_of,
    namespace_of,
    owned_object,
    uid_of,
    value_at,
)
from tapestry.kube.patches import merge_patch
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time, timestamp

REPLICA_SET_UPDATED, NEW_REPLICA_SET_AVAILABLE, DEPLOYMENT_PAUSED = (
    "ReplicaSetUpdated",
    "NewReplicaSetAvailable",
    "DeploymentPaused",
)
"""Reasons of the condition Progressing."""
DEFAULT_PROGRESS_DEADLINE = 600
NO_PROGRESS_DEADLINE = 2**31 - 1
"""Value of `progressDeadlineSeconds` that means no deadline."""


@dataclass(frozen=True)
class DeploymentReconciler:
    """Manage the ReplicaSets of each Deployment."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    deployments: Informer
    replica_sets: Informer
    pods: Informer

    async def reconcile(self, key: str) -> Result | None:
        deployment = self.deployments.store.get(key)
        if deployment is None:
            return None
        selector = label_selector(value_at(deployment, "spec", "selector"))
        candidates = owned_pods.candidates(self.replica_sets, deployment)
        sets = await owned_pods.claim_objects(self.client, DEPLOYMENTS, deployment, selector, candidates, REPLICA_SETS)
        sets = [each for each in sets if not is_deleting(each)]
        new, old = rollouts.split_replica_sets(deployment, sets)
        if is_deleting(deployment):
            return await self.update_status(deployment, new, old)
        if new is None and not deployment["spec"].get("paused"):
            is_created = await self.create_replica_set(deployment, old)
            return None if is_created else Result(requeue_after=1)  # the watch event triggers another reconcile
        if new is not None:
            new = await self.update_revision(deployment, new, old)
        step = rollouts.next_rollout_step(deployment, new, old, sum(map(self.running_pods, old)))
        for each in [*([new] if new is not None else []), *old]:
            if uid_of(each) in step.sizes:
                await self.scale(deployment, each, step.sizes[uid_of(each)])
        for each in step.to_delete:
            await self.client.delete_if_exists(REPLICA_SETS, each)
        return await self.update_status(deployment, new, old)

    def running_pods(self, replica_set: Object) -> int:
        pods = self.pods.store.by("owner", uid_of(replica_set))
        return sum(not is_pod_terminal(pod) for pod in pods)

    # -- ReplicaSets

    async def create_replica_set(self, deployment: Object, old: Sequence[Object]) -> bool:
        """Create a ReplicaSet for the current template. Return False on a name collision."""
        collisions = value_at(deployment, "status", "collisionCount", default=0)
        content = rollouts.new_replica_set(deployment, collisions)
        revision = str(max(map(rollouts.revision_of, old), default=0) + 1)
        bounds = rollouts.bounds_of(deployment)
        extra = {REVISION: revision, DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        replica_set = owned_object(
            deployment, REPLICA_SETS, {"spec": content["spec"]}, name=replica_set_name(deployment, content)
        )
        metadata = {**content["metadata"], **replica_set["metadata"]}
        metadata["annotations"] = {**content["metadata"]["annotations"], **extra}
        try:
            await self.client.create(REPLICA_SETS, {**replica_set, "metadata": metadata})
        except AlreadyExists:
            existing = await self.client.get(REPLICA_SETS, name_of(replica_set), namespace_of(replica_set))
            if not owned_pods.is_controlled_by(existing, deployment) or not rollouts.has_template_of(
                existing, deployment
            ):
                patch = {"status": {"collisionCount": collisions + 1}}
                await self.client.patch(DEPLOYMENTS, deployment, patch, subresource="status")
                return False
        return True

    async def update_revision(self, deployment: Object, new: Object, old: Sequence[Object]) -> Object:
        """Give the new ReplicaSet the highest revision number, and copy it to the Deployment."""
        highest = max(map(rollouts.revision_of, old), default=0)
        revision = max(rollouts.revision_of(new), highest + 1)
        desired = {**rollouts.propagated_annotations(annotations_of(deployment)), REVISION: str(revision)}
        if before := rollouts.revision_of(new) if rollouts.revision_of(new) != revision else 0:
            desired[REVISION_HISTORY] = ",".join(filter(None, (annotations_of(new).get(REVISION_HISTORY), str(before))))
        min_ready = deployment["spec"].get("minReadySeconds", 0)
        patch: Object = {}
        if missing := {key: value for key, value in desired.items() if annotations_of(new).get(key) != value}:
            patch["metadata"] = {"annotations": missing}
        if new["spec"].get("minReadySeconds", 0) != min_ready:
            patch["spec"] = {"minReadySeconds": min_ready}
        if patch:
            new = await self.client.patch(REPLICA_SETS, new, patch)
        if annotations_of(deployment).get(REVISION) != str(revision):
            await self.client.patch(DEPLOYMENTS, deployment, {"metadata": {"annotations": {REVISION: str(revision)}}})
        return new

    async def scale(self, deployment: Object, replica_set: Object, size: int) -> None:
        bounds, before = rollouts.bounds_of(deployment), rollouts.spec_replicas(replica_set)
        annotations = {DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        if size == before and all(annotations_of(replica_set).get(key) == value for key, value in annotations.items()):
            return
        patch = {"metadata": {"annotations": annotations}, "spec": {"replicas": size}}
        await self.client.patch(REPLICA_SETS, replica_set, patch)
        if size != before:
            direction = "up" if size > before else "down"
            message = f"Scaled {direction} replica set {name_of(replica_set)} from {before} to {size}"
            self.events.normal(deployment, "ScalingReplicaSet", message)

    # -- status

    async def update_status(self, deployment: Object, new: Object | None, old: Sequence[Object]) -> Result | None:
        status = deployment_status(deployment, new, old, self.now())
        before = deployment.get("status") or {}
        if patch := merge_patch(
            before, {**({"collisionCount": before["collisionCount"]} if "collisionCount" in before else {}), **status}
        ):
            await self.client.patch(DEPLOYMENTS, deployment, {"status": patch}, subresource="status")
        due = progress_deadline(deployment, status)
        return Result(requeue_at=due) if due is not None else None


def replica_set_name(deployment: Object, content: Object) -> str:
    return f"{name_of(deployment)}-{content['metadata']['labels'][POD_TEMPLATE_HASH]}"


def deployment_status(deployment: Object, new: Object | None, old: Sequence[Object], now: datetime) -> Object:
    all_sets = [*([new] if new is not None else []), *old]

    def total(field: str, sets: Iterable[Object] = all_sets) -> int:
        return sum(value_at(each, "status", field, default=0) for each in sets)

    replicas = deployment["spec"].get("replicas", 1)
    counts = {
        "replicas": total("replicas"),
        "updatedReplicas": total("replicas", [new] if new is not None else []),
        "readyReplicas": total("readyReplicas"),
        "availableReplicas": total("availableReplicas"),
        "unavailableReplicas": max(max(rollouts.total_replicas(all_sets), replicas) - total("availableReplicas"), 0),
    }
    status: Object = {key: count for key, count in counts.items() if count}
    status["observedGeneration"] = deployment["metadata"].get("generation", 0)
    conditions = value_at(deployment, "status", "conditions", default=[])
    conditions = with_condition(conditions, available_condition(deployment, counts["availableReplicas"]), now)
    conditions = progress_conditions(deployment, new, counts, conditions, now)
    status["conditions"] = with_replica_failure(conditions, all_sets, now)
    return status


def available_condition(deployment: Object, available: int) -> Object:
    if available >= rollouts.bounds_of(deployment).min_available:
        message = "Deployment has minimum availability."
        return new_condition("Available", True, "MinimumReplicasAvailable", message)
    return new_condition(
        "Available", False, "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
    )


def progress_conditions(
    deployment: Object, new: Object | None, counts: Object, conditions: list[Object], now: datetime
) -> list[Object]:
    """Return the conditions with Progressing updated: whether the rollout advances, and since when."""
    if deployment["spec"].get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE) == NO_PROGRESS_DEADLINE:
        return [each for each in conditions if each["type"] != "Progressing"]
    before = find_condition(conditions, "Progressing") or {}
    if deployment["spec"].get("paused"):
        paused = new_condition("Progressing", None, DEPLOYMENT_PAUSED, "Deployment is paused")
        return with_update(conditions, paused, now) if before.get("reason") != DEPLOYMENT_PAUSED else conditions
    name = name_of(new) if new is not None else ""
    complete = new_condition(
        "Progressing", True, NEW_REPLICA_SET_AVAILABLE, f'ReplicaSet "{name}" has successfully progressed.'
    )
    if before.get("message") == complete["message"] and counts["updatedReplicas"] == counts["replicas"]:
        return conditions  # complete: later changes of its pods do not matter
    replicas = deployment["spec"].get("replicas", 1)
    if counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == replicas:
        return with_update(conditions, complete, now)
    if before.get("reason") in (None, DEPLOYMENT_PAUSED, NEW_REPLICA_SET_AVAILABLE) or has_progressed(
        deployment, counts
    ):
        progressing = new_condition("Progressing", True, REPLICA_SET_UPDATED, f'ReplicaSet "{name}" is progressing.')
        return with_update(conditions, progressing, now)
    due = progress_deadline(deployment, {"conditions": conditions})
    if due is not None and due <= now:
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return with_update(conditions, new_condition("Progressing", False, "ProgressDeadlineExceeded", message), now)
    return conditions


def has_progressed(deployment: Object, counts: Object) -> bool:
    """Return whether more pods are updated, ready or available, or fewer are old, than in the last status."""
    before = deployment.get("status") or {}

    def previous(field: str) -> int:
        count: int = before.get(field, 0)
        return count

    return bool(
        counts["updatedReplicas"] > previous("updatedReplicas")
        or counts["replicas"] - counts["updatedReplicas"] < previous("replicas") - previous("updatedReplicas")
        or counts["readyReplicas"] > previous("readyReplicas")
        or counts["availableReplicas"] > previous("availableReplicas")
    )


def with_update(conditions: list[Object], new: Object, now: datetime) -> list[Object]:
    return with_condition(conditions, {**new, "lastUpdateTime": timestamp(now)}, now)


def with_replica_failure(conditions: list[Object], sets: Iterable[Object], now: datetime) -> list[Object]:
    """Return the conditions with the ReplicaFailure condition of the ReplicaSets, if any has one."""
    failures = (find_condition(value_at(each, "status", "conditions"), "ReplicaFailure") for each in sets)
    failure = next(filter(None, failures), None)
    if failure is None:
        return [each for each in conditions if each["type"] != "ReplicaFailure"]
    condition = new_condition("ReplicaFailure", True, failure["reason"], failure["message"])
    return with_condition(conditions, condition, now)


def progress_deadline(deployment: Object, status: Object) -> datetime | None:
    """Return the time at which a rollout without progress has failed."""
    condition = find_condition(status.get("conditions"), "Progressing")
    seconds = deployment["spec"].get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE)
    if condition is None or condition["reason"] != REPLICA_SET_UPDATED or seconds == NO_PROGRESS_DEADLINE:
        return None
    return parse_time(condition.get("lastUpdateTime") or condition["lastTransitionTime"]) + timedelta(seconds=seconds)


def install(manager: Manager) -> None:
    deployments = manager.informer(DEPLOYMENTS, indexers={"namespace": own_namespace})
    sets = manager.informer(REPLICA_SETS, indexers={**owned_pods.OWNER_INDEXERS, "uid": lambda each: [uid_of(each)]})
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = DeploymentReconciler(manager.client, manager.events, manager.now, deployments, sets, pods)
    controller = manager.controller("deployments", reconciler.reconcile)

    def owning_deployments(pod: Object) -> Iterable[str]:
        """Yield the keys of Deployments that wait for old pods to terminate."""
        for uid in owner_uid(pod):
            for replica_set in sets.store.by("uid", uid):
                yield from controller_key(DEPLOYMENTS)(replica_set)

    controller.watch(deployments)
    controller.watch(sets, owned_pods.matching_owner_keys(deployments, DEPLOYMENTS))
    controller.watch(pods, owning_deployments, when=lambda _, new: new is None)
