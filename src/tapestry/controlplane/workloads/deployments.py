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
from tapestry.controlplane.workloads import members, rollouts
from tapestry.controlplane.workloads.members import owner_uid
from tapestry.controlplane.workloads.rollouts import DESIRED, HASH, LIMIT, PAST, REVISION
from tapestry.kube.conditions import condition, find, with_condition
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
from tapestry.kube.pods import is_over
from tapestry.kube.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from tapestry.kube.selectors import label_selector
from tapestry.kube.times import parse_time, timestamp

UPDATED, AVAILABLE, PAUSED = "ReplicaSetUpdated", "NewReplicaSetAvailable", "DeploymentPaused"
"""Reasons of the condition that says how a rollout comes along."""
DEADLINE = 600
UNLIMITED = 2**31 - 1
"""A deadline for progress that stands for none."""


@dataclass(frozen=True)
class Deployments:
    """Keeps the ReplicaSets of each Deployment."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    deployments: Informer
    sets: Informer
    pods: Informer

    async def reconcile(self, key: str) -> Result | None:
        deployment = self.deployments.store.get(key)
        if deployment is None:
            return None
        selector = label_selector(value_at(deployment, "spec", "selector"))
        candidates = members.candidates(self.sets, deployment)
        sets = await members.claimed(self.client, DEPLOYMENTS, deployment, selector, candidates, REPLICA_SETS)
        sets = [each for each in sets if not is_deleting(each)]
        new, old = rollouts.split(deployment, sets)
        if is_deleting(deployment):
            return await self.tell(deployment, new, old)
        if new is None and not deployment["spec"].get("paused"):
            made = await self.make(deployment, old)
            return None if made else Result(requeue_after=1)  # it comes by the watch
        if new is not None:
            new = await self.number(deployment, new, old)
        step = rollouts.next_step(deployment, new, old, sum(map(self.running_pods, old)))
        for each in [*([new] if new is not None else []), *old]:
            if uid_of(each) in step.sizes:
                await self.scale(deployment, each, step.sizes[uid_of(each)])
        for each in step.obsolete:
            await self.client.remove(REPLICA_SETS, each)
        return await self.tell(deployment, new, old)

    def running_pods(self, replica_set: Object) -> int:
        pods = self.pods.store.by("owner", uid_of(replica_set))
        return sum(not is_over(pod) for pod in pods)

    # -- ReplicaSets

    async def make(self, deployment: Object, old: Sequence[Object]) -> bool:
        """A ReplicaSet for the present template; whether nobody else has its name."""
        collisions = value_at(deployment, "status", "collisionCount", default=0)
        content = rollouts.new_set(deployment, collisions)
        revision = str(max(map(rollouts.revision_of, old), default=0) + 1)
        bounds = rollouts.bounds_of(deployment)
        said = {REVISION: revision, DESIRED: str(bounds.replicas), LIMIT: str(bounds.most)}
        made = owned_object(deployment, REPLICA_SETS, {"spec": content["spec"]}, name=set_name(deployment, content))
        metadata = {**content["metadata"], **made["metadata"]}
        metadata["annotations"] = {**content["metadata"]["annotations"], **said}
        try:
            await self.client.create(REPLICA_SETS, {**made, "metadata": metadata})
        except AlreadyExists:
            held = await self.client.get(REPLICA_SETS, name_of(made), namespace_of(made))
            if not members.is_of(held, deployment) or not rollouts.is_for(held, deployment):
                patch = {"status": {"collisionCount": collisions + 1}}
                await self.client.patch(DEPLOYMENTS, deployment, patch, subresource="status")
                return False
        return True

    async def number(self, deployment: Object, new: Object, old: Sequence[Object]) -> Object:
        """See that the new ReplicaSet has the highest number, and the Deployment says which."""
        highest = max(map(rollouts.revision_of, old), default=0)
        revision = max(rollouts.revision_of(new), highest + 1)
        wanted = {**rollouts.travelling(annotations_of(deployment)), REVISION: str(revision)}
        if before := rollouts.revision_of(new) if rollouts.revision_of(new) != revision else 0:
            wanted[PAST] = ",".join(filter(None, (annotations_of(new).get(PAST), str(before))))
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
        bounds, before = rollouts.bounds_of(deployment), rollouts.size_of(replica_set)
        said = {DESIRED: str(bounds.replicas), LIMIT: str(bounds.most)}
        if size == before and all(annotations_of(replica_set).get(key) == value for key, value in said.items()):
            return
        patch = {"metadata": {"annotations": said}, "spec": {"replicas": size}}
        await self.client.patch(REPLICA_SETS, replica_set, patch)
        if size != before:
            way = "up" if size > before else "down"
            message = f"Scaled {way} replica set {name_of(replica_set)} from {before} to {size}"
            self.events.normal(deployment, "ScalingReplicaSet", message)

    # -- telling

    async def tell(self, deployment: Object, new: Object | None, old: Sequence[Object]) -> Result | None:
        status = status_of(deployment, new, old, self.now())
        before = deployment.get("status") or {}
        if patch := merge_patch(
            before, {**({"collisionCount": before["collisionCount"]} if "collisionCount" in before else {}), **status}
        ):
            await self.client.patch(DEPLOYMENTS, deployment, {"status": patch}, subresource="status")
        due = deadline_of(deployment, status)
        return Result(requeue_at=due) if due is not None else None


def set_name(deployment: Object, content: Object) -> str:
    return f"{name_of(deployment)}-{content['metadata']['labels'][HASH]}"


def status_of(deployment: Object, new: Object | None, old: Sequence[Object], now: datetime) -> Object:
    every = [*([new] if new is not None else []), *old]

    def counted(field: str, sets: Iterable[Object] = every) -> int:
        return sum(value_at(each, "status", field, default=0) for each in sets)

    replicas = deployment["spec"].get("replicas", 1)
    counts = {
        "replicas": counted("replicas"),
        "updatedReplicas": counted("replicas", [new] if new is not None else []),
        "readyReplicas": counted("readyReplicas"),
        "availableReplicas": counted("availableReplicas"),
        "unavailableReplicas": max(max(rollouts.total(every), replicas) - counted("availableReplicas"), 0),
    }
    found: Object = {key: count for key, count in counts.items() if count}
    found["observedGeneration"] = deployment["metadata"].get("generation", 0)
    conditions = value_at(deployment, "status", "conditions", default=[])
    conditions = with_condition(conditions, availability(deployment, counts["availableReplicas"]), now)
    conditions = progressed(deployment, new, counts, conditions, now)
    found["conditions"] = with_failure(conditions, every, now)
    return found


def availability(deployment: Object, available: int) -> Object:
    if available >= rollouts.bounds_of(deployment).least:
        message = "Deployment has minimum availability."
        return condition("Available", True, "MinimumReplicasAvailable", message)
    return condition("Available", False, "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")


def progressed(
    deployment: Object, new: Object | None, counts: Object, conditions: list[Object], now: datetime
) -> list[Object]:
    """The condition that says whether the rollout comes along, and since when it last did."""
    if deployment["spec"].get("progressDeadlineSeconds", DEADLINE) == UNLIMITED:
        return [each for each in conditions if each["type"] != "Progressing"]
    before = find(conditions, "Progressing") or {}
    if deployment["spec"].get("paused"):
        paused = condition("Progressing", None, PAUSED, "Deployment is paused")
        return with_update(conditions, paused, now) if before.get("reason") != PAUSED else conditions
    name = name_of(new) if new is not None else ""
    done = condition("Progressing", True, AVAILABLE, f'ReplicaSet "{name}" has successfully progressed.')
    if before.get("message") == done["message"] and counts["updatedReplicas"] == counts["replicas"]:
        return conditions  # it was done, and what becomes of its pods later is no part of it
    replicas = deployment["spec"].get("replicas", 1)
    if counts["updatedReplicas"] == counts["replicas"] == counts["availableReplicas"] == replicas:
        return with_update(conditions, done, now)
    if before.get("reason") in (None, PAUSED, AVAILABLE) or moves(deployment, counts):
        moving = condition("Progressing", True, UPDATED, f'ReplicaSet "{name}" is progressing.')
        return with_update(conditions, moving, now)
    due = deadline_of(deployment, {"conditions": conditions})
    if due is not None and due <= now:
        message = f'ReplicaSet "{name}" has timed out progressing.'
        return with_update(conditions, condition("Progressing", False, "ProgressDeadlineExceeded", message), now)
    return conditions


def moves(deployment: Object, counts: Object) -> bool:
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


def with_failure(conditions: list[Object], sets: Iterable[Object], now: datetime) -> list[Object]:
    """What keeps a ReplicaSet from making pods, as the Deployment's own condition."""
    failures = (find(value_at(each, "status", "conditions"), "ReplicaFailure") for each in sets)
    failure = next(filter(None, failures), None)
    if failure is None:
        return [each for each in conditions if each["type"] != "ReplicaFailure"]
    said = condition("ReplicaFailure", True, failure["reason"], failure["message"])
    return with_condition(conditions, said, now)


def deadline_of(deployment: Object, status: Object) -> datetime | None:
    """When a rollout that does not come along has failed."""
    found = find(status.get("conditions"), "Progressing")
    seconds = deployment["spec"].get("progressDeadlineSeconds", DEADLINE)
    if found is None or found["reason"] != UPDATED or seconds == UNLIMITED:
        return None
    return parse_time(found.get("lastUpdateTime") or found["lastTransitionTime"]) + timedelta(seconds=seconds)


def install(manager: Manager) -> None:
    deployments = manager.informer(DEPLOYMENTS, indexers={"namespace": own_namespace})
    sets = manager.informer(REPLICA_SETS, indexers={**members.BY_OWNER, "uid": lambda each: [uid_of(each)]})
    pods = manager.informer(PODS, indexers=members.BY_OWNER)
    reconciler = Deployments(manager.client, manager.events, manager.now, deployments, sets, pods)
    controller = manager.controller("deployments", reconciler.reconcile)

    def waits_for_pods(pod: Object) -> Iterable[str]:
        """Deployments that wait for old pods to end."""
        for uid in owner_uid(pod):
            for replica_set in sets.store.by("uid", uid):
                yield from controller_key(DEPLOYMENTS)(replica_set)

    controller.watch(deployments)
    controller.watch(sets, members.keepers_among(deployments, DEPLOYMENTS))
    controller.watch(pods, waits_for_pods, when=lambda _, new: new is None)
