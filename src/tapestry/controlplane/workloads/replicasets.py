"""ReplicaSet controller, which also runs ReplicationControllers."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.events import Recorder
from tapestry.controller.store import Indexer
from tapestry.controlplane.workloads import owned_pods
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.errors import ApiError, Conflict, NotFound
from tapestry.kube.objects import Object, controller_of, is_deleting, labels_of, name_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, Resource

WORKERS = 8
INITIAL_BATCH_SIZE, MAX_BATCH_SIZE = 1, 64
"""Size of the first and the largest batch of pods to create. Batches double after each success."""


@dataclass(frozen=True)
class ReplicaSetReconciler:
    """Create and delete the pods of each ReplicaSet."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    sets: Informer
    pods: Informer
    deleted_pods: owned_pods.DeletedPods
    resource: Resource = REPLICA_SETS

    async def reconcile(self, key: str) -> Result | None:
        replica_set = self.sets.store.get(key)
        if replica_set is None:
            return None
        selector = owned_pods.selector_of(replica_set)
        candidates = owned_pods.candidates(self.pods, replica_set)
        pods = await owned_pods.claim_objects(self.client, self.resource, replica_set, selector, candidates, PODS)
        active = [pod for pod in pods if owned_pods.is_active(pod)]
        failure: ApiError | None = None
        if not is_deleting(replica_set):
            try:
                active = await self.scale(replica_set, active, self.deleted_pods.name_check(replica_set, pods))
            except Conflict:
                raise
            except ApiError as error:
                failure = error
        now = self.now()  # once, so that status and requeue time agree
        await self.update_status(replica_set, active, failure, now)
        if failure is not None:
            raise failure
        return owned_pods.requeue_when_available(active, owned_pods.min_ready_time(replica_set), now)

    async def scale(self, replica_set: Object, active: list[Object], is_free: owned_pods.IsFree) -> list[Object]:
        """Create missing pods or delete surplus ones. Return the known pods that remain."""
        missing = value_at(replica_set, "spec", "replicas", default=1) - len(active)
        if missing > 0:
            await self.create_pods(replica_set, min(missing, owned_pods.BURST_REPLICAS), is_free)
        if missing >= 0:
            return active
        in_order = owned_pods.deletion_order(active, self.sibling_pods(replica_set))
        for pod in in_order[:-missing]:
            await self.client.delete_if_exists(PODS, pod)
            self.events.normal(replica_set, "SuccessfulDelete", f"Deleted pod: {name_of(pod)}")
        return in_order[-missing:]

    async def create_pods(self, replica_set: Object, missing: int, is_free: owned_pods.IsFree) -> None:
        names, size = owned_pods.pod_names(replica_set, is_free), INITIAL_BATCH_SIZE
        while missing > 0:
            async with asyncio.TaskGroup() as group:
                batch = [
                    group.create_task(self.create_pod(replica_set, next(names))) for _ in range(min(size, missing))
                ]
            results = [each.result() for each in batch]
            if failures := [each for each in results if isinstance(each, ApiError)]:
                raise failures[0]
            missing -= results.count(True)
            size = min(2 * size, MAX_BATCH_SIZE)

    async def create_pod(self, replica_set: Object, name: str) -> bool | ApiError:
        """Return whether a pod of that name now belongs to the ReplicaSet, or the error of its creation."""
        pod = owned_pods.pod_from_template(value_at(replica_set, "spec", "template"), replica_set, name)
        try:
            created = await owned_pods.create_pod(self.client, pod, replica_set)
        except ApiError as error:
            self.events.warning(replica_set, "FailedCreate", f"Error creating: {error.message}")
            return error
        if created is not None:
            self.events.normal(replica_set, "SuccessfulCreate", f"Created pod: {name}")
        return created is not None

    def sibling_pods(self, replica_set: Object) -> Iterable[Object]:
        """Return the pods of other ReplicaSets of the same owner."""
        owner = controller_of(replica_set)
        if owner is None:
            return []
        sets = [each for each in self.sets.store.by("owner", owner["uid"]) if name_of(each) != name_of(replica_set)]
        return [pod for each in sets for pod in self.pods.store.by("owner", each["metadata"]["uid"])]

    async def update_status(
        self, replica_set: Object, active: Sequence[Object], failure: ApiError | None, now: datetime
    ) -> None:
        status = replica_set_status(replica_set, active, failure, now)
        patch = merge_patch(replica_set.get("status") or {}, status)
        if patch:
            try:
                await self.client.patch(self.resource, replica_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def replica_set_status(
    replica_set: Object, active: Sequence[Object], failure: ApiError | None, now: datetime
) -> Object:
    template = labels_of(value_at(replica_set, "spec", "template"))
    min_ready = owned_pods.min_ready_time(replica_set)
    counts = {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(template.items() <= labels_of(pod).items() for pod in active),
        "readyReplicas": sum(map(owned_pods.is_ready, active)),
        "availableReplicas": sum(owned_pods.is_available(pod, min_ready, now) for pod in active),
    }
    conditions = [
        each for each in value_at(replica_set, "status", "conditions", default=()) if each["type"] != "ReplicaFailure"
    ]
    if failure is not None:
        condition = new_condition("ReplicaFailure", True, "FailedCreate", failure.message)
        conditions = with_condition(value_at(replica_set, "status", "conditions", default=[]), condition, now)
    return {
        **{key: count for key, count in counts.items() if count or key == "replicas"},
        "observedGeneration": replica_set["metadata"].get("generation", 0),
        **({"conditions": conditions} if conditions else {}),
    }


def installer(resource: Resource, name: str) -> Callable[[Manager], None]:
    """Return an install function for ReplicaSets or ReplicationControllers, which behave the same."""

    def install(manager: Manager) -> None:
        indexers: dict[str, Indexer] = {"owner": owned_pods.owner_uid, "namespace": own_namespace}
        sets, pods = (
            manager.informer(resource, indexers=indexers),
            manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS),
        )
        reconciler = ReplicaSetReconciler(
            manager.client, manager.events, manager.now, sets, pods, owned_pods.DeletedPods(pods), resource
        )
        controller = manager.controller(name, reconciler.reconcile, workers=WORKERS)
        controller.watch(sets)
        controller.watch(pods, owned_pods.matching_owner_keys(sets, resource), after=owned_pods.BATCH_INTERVAL)

    return install


install = installer(REPLICA_SETS, "replicasets")
install_replication_controllers = installer(REPLICATION_CONTROLLERS, "replicationcontrollers")
