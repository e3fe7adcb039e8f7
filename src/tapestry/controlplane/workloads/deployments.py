"""Deployments: one ReplicaSet after another, without a moment in which nothing works.

What is to be done is decided in `rollouts`; here it is done, and told.
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
"""Reasons of the condition that says how a rollout comes along."""
DEFAULT_PROGRESS_DEADLINE = 600
NO_PROGRESS_DEADLINE = 2**31 - 1
"""A deadline for progress that stands for none."""


@dataclass(frozen=True)
class DeploymentReconciler:
    """Keeps the ReplicaSets of each Deployment."""

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
            made = await self.create_replica_set(deployment, old)
            return None if made else Result(requeue_after=1)  # it comes by the watch
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
        """A ReplicaSet for the present template; whether nobody else has its name."""
        collisions = value_at(deployment, "status", "collisionCount", default=0)
        content = rollouts.new_replica_set(deployment, collisions)
        revision = str(max(map(rollouts.revision_of, old), default=0) + 1)
        bounds = rollouts.bounds_of(deployment)
        said = {REVISION: revision, DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        made = owned_object(
            deployment, REPLICA_SETS, {"spec": content["spec"]}, name=replica_set_name(deployment, content)
        )
        metadata = {**content["metadata"], **made["metadata"]}
        metadata["annotations"] = {**content["metadata"]["annotations"], **said}
        try:
            await self.client.create(REPLICA_SETS, {**made, "metadata": metadata})
        except AlreadyExists:
            held = await self.client.get(REPLICA_SETS, name_of(made), namespace_of(made))
            if not owned_pods.is_controlled_by(held, deployment) or not rollouts.has_template_of(held, deployment):
                patch = {"status": {"collisionCount": collisions + 1}}
                await self.client.patch(DEPLOYMENTS, deployment, patch, subresource="status")
                return False
        return True

    async def update_revision(self, deployment: Object, new: Object, old: Sequence[Object]) -> Object:
        """See that the new ReplicaSet has the highest number, and the Deployment says which."""
        highest = max(map(rollouts.revision_of, old), default=0)
        revision = max(rollouts.revision_of(new), highest + 1)
        wanted = {**rollouts.propagated_annotations(annotations_of(deployment)), REVISION: str(revision)}
        if before := rollouts.revision_of(new) if rollouts.revision_of(new) != revision else 0:
            wanted[REVISION_HISTORY] = ",".join(filter(None, (annotations_of(new).get(REVISION_HISTORY), str(before))))
        patience = deployment["spec"].get("minReadySeconds", 0)
        patch: Object = {}
        if missing := {key: value for key, value in wanted.items() if annotations_of(new).get(key) != value}:
            patch["metadata"] = {"annotations": missing}
        if new["spec"].get("minReadySeconds", 0) != patience:
            patch["spec"] = {"minReadySeconds": patience}
        if patch:
            new = await self.client.patch(REPLICA_SETS, new, patch)
        if annotations_of(deployment).get(REVISION) != str(revision):
            await self.client.patch(DEPLOYMENTS, deployment, {"metadata": {"annotations": {REVISION: str(revision)}}})
        return new

    async def scale(self, deployment: Object, replica_set: Object, size: int) -> None:
        bounds, before = rollouts.bounds_of(deployment), rollouts.spec_replicas(replica_set)
        said = {DESIRED_REPLICAS: str(bounds.replicas), MAX_REPLICAS: str(bounds.max_replicas)}
        if size == before and all(annotations_of(replica_set).get(key) == value for key, value in said.items()):
            return
        patch = {"metadata": {"annotations": said}, "spec": {"replicas": size}}
        await self.client.patch(REPLICA_SETS, replica_set, patch)
        if size != before:
            way = "up" if size > before else "down"
            message = f"Scaled {way} replica set {name_of(replica_set)} from {before} to {size}"
            self.events.normal(deployment, "ScalingReplicaSet", message)

    # -- telling

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
    every = [*([new] if new is not None else []), *old]

    def counted(field: str, sets: Iterable[Object] = every) -> int:
        return sum(value_at(each, "status", field, default=0) for each in sets)

    replicas = deployment["spec"].get("replicas", 1)
    counts = {
        "replicas": counted("replicas"),
        "updatedReplicas": counted("replicas", [new] if new is not None else []),
        "readyReplicas": counted("readyReplicas"),
        "availableReplicas": counted("availableReplicas"),
        "unavailableReplicas": max(max(rollouts.total_replicas(every), replicas) - counted("availableReplicas"), 0),
    }
    found: Object = {key: count for key, count in counts.items() if count}
    found["observedGeneration"] = deployment["metadata"].get("generation", 0)
    conditions = value_at(deployment, "status", "conditions", default=[])
    conditions = with_condition(conditions, available_condition(deployment, counts["availableReplicas"]), now)
    conditions = progress_conditions(deployment, new, counts, conditions, now)
    found["conditions"] = with_replica_failure(conditions, every, now)
    return found


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
    """The condition that says whether the rollout comes along, and since when it last did."""
    if deployment["spec"].get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE) == NO_PROGRESS_DEADLINE:
        return [each for each in conditions if each["type"] != "Progressing"]
    before = find_condition(conditions, "Progressing") or {}
    if deployment["spec"].get("paused"):
        paused = new_condition("Progressing", None, DEPLOYMENT_PAUSED, "Deployment is paused")
        return with_update(conditions, paused, now) if before.get("reason") != DEPLOYMENT_PAUSED else conditions
    name = name_of(new) if new is not None else ""
    done = new_condition(
        "Progressing", True, NEW_REPLICA_SET_AVAILABLE, f'ReplicaSet "{name}" has successfully progressed.'
    )
    if before.get("message") == done["message"] and counts["updatedReplicas"] == counts["replicas"]:
        return conditions  # it was done, and what becomes of its pods later is no part of it
    replicas = deployment["spec"].get("replicas", 1)
    if counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == replicas:
        return with_update(conditions, done, now)
    if before.get("reason") in (None, DEPLOYMENT_PAUSED, NEW_REPLICA_SET_AVAILABLE) or has_progressed(
        deployment, counts
    ):
        moving = new_condition("Progressing", True, REPLICA_SET_UPDATED, f'ReplicaSet "{name}" is progressing.')
        return with_update(conditions, moving, now)
    due = progress_deadline(deployment, {"conditions": conditions})
    if due is not None and due <= now:
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return with_update(conditions, new_condition("Progressing", False, "ProgressDeadlineExceeded", message), now)
    return conditions


def has_progressed(deployment: Object, counts: Object) -> bool:
    """Whether more of the new is there, or less of the old, or more works, than last time."""
    before = deployment.get("status") or {}

    def was(field: str) -> int:
        count: int = before.get(field, 0)
        return count

    return bool(
        counts["updatedReplicas"] > was("updatedReplicas")
        or counts["replicas"] - counts["updatedReplicas"] < was("replicas") - was("updatedReplicas")
        or counts["readyReplicas"] > was("readyReplicas")
        or counts["availableReplicas"] > was("availableReplicas")
    )


def with_update(conditions: list[Object], new: Object, now: datetime) -> list[Object]:
    return with_condition(conditions, {**new, "lastUpdateTime": timestamp(now)}, now)


def with_replica_failure(conditions: list[Object], sets: Iterable[Object], now: datetime) -> list[Object]:
    """What keeps a ReplicaSet from making pods, as the Deployment's own condition."""
    failures = (find_condition(value_at(each, "status", "conditions"), "ReplicaFailure") for each in sets)
    failure = next(filter(None, failures), None)
    if failure is None:
        return [each for each in conditions if each["type"] != "ReplicaFailure"]
    said = new_condition("ReplicaFailure", True, failure["reason"], failure["message"])
    return with_condition(conditions, said, now)


def progress_deadline(deployment: Object, status: Object) -> datetime | None:
    """When a rollout that does not come along has failed."""
    found = find_condition(status.get("conditions"), "Progressing")
    seconds = deployment["spec"].get("progressDeadlineSeconds", DEFAULT_PROGRESS_DEADLINE)
    if found is None or found["reason"] != REPLICA_SET_UPDATED or seconds == NO_PROGRESS_DEADLINE:
        return None
    return parse_time(found.get("lastUpdateTime") or found["lastTransitionTime"]) + timedelta(seconds=seconds)


def install(manager: Manager) -> None:
    deployments = manager.informer(DEPLOYMENTS, indexers={"namespace": own_namespace})
    sets = manager.informer(REPLICA_SETS, indexers={**owned_pods.OWNER_INDEXERS, "uid": lambda each: [uid_of(each)]})
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = DeploymentReconciler(manager.client, manager.events, manager.now, deployments, sets, pods)
    controller = manager.controller("deployments", reconciler.reconcile)

    def waits_for_pods(pod: Object) -> Iterable[str]:
        """Deployments that wait for old pods to end."""
        for uid in owner_uid(pod):
            for replica_set in sets.store.by("uid", uid):
                yield from controller_key(DEPLOYMENTS)(replica_set)

    controller.watch(deployments)
    controller.watch(sets, owned_pods.matching_owner_keys(deployments, DEPLOYMENTS))
    controller.watch(pods, waits_for_pods, when=lambda _, new: new is None)
