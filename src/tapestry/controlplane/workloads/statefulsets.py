"""StatefulSet controller: pods with an ordinal, a stable name and their own volumes.

`statefulset_steps` decides which pods to create and delete. This module executes the steps and updates the status.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import own_namespace
from tapestry.controller.events import Recorder
from tapestry.controlplane.workloads import controller_revisions, owned_pods, statefulset_steps
from tapestry.controlplane.workloads.owned_pods import matching_owner_keys
from tapestry.controlplane.workloads.statefulset_steps import RevisionNames
from tapestry.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, namespace_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS

RETRY_INTERVAL = 1.0
"""Seconds until a name collision is retried."""


@dataclass(frozen=True)
class StatefulSetReconciler:
    """Create and delete the pods of each StatefulSet."""

    client: Client
    events: Recorder
    now: Callable[[], datetime]
    sets: Informer
    pods: Informer
    claims: Informer
    revisions: Informer

    async def reconcile(self, key: str) -> Result | None:
        stateful_set = self.sets.store.get(key)
        if stateful_set is None:
            return None
        selector = owned_pods.selector_of(stateful_set)
        candidates = owned_pods.candidates(self.revisions, stateful_set)
        revisions = await controller_revisions.claim_revisions(
            self.client, STATEFUL_SETS, stateful_set, selector, candidates
        )
        candidates = [
            pod
            for pod in owned_pods.candidates(self.pods, stateful_set)
            if statefulset_steps.ordinal_of(stateful_set, pod) is not None
            or owned_pods.is_controlled_by(pod, stateful_set)
        ]
        pods = await owned_pods.claim_objects(self.client, STATEFUL_SETS, stateful_set, selector, candidates, PODS)
        update = await controller_revisions.ensure_current_revision(self.client, STATEFUL_SETS, stateful_set, revisions)
        if update is None:
            return Result(requeue_after=RETRY_INTERVAL)
        by_name = {name_of(each): each for each in (*revisions, update)}
        current = value_at(stateful_set, "status", "currentRevision", default="")
        names = RevisionNames(current if current in by_name else name_of(update), name_of(update))
        by_ordinal = {
            ordinal: pod for pod in pods if (ordinal := statefulset_steps.ordinal_of(stateful_set, pod)) is not None
        }
        failure: ApiError | None = None
        now = self.now()
        if not is_deleting(stateful_set):
            try:
                await self.apply_step(stateful_set, by_ordinal, names, by_name, now)
            except Conflict:
                raise
            except ApiError as error:
                failure = error
        await self.update_status(
            stateful_set, statefulset_steps.stateful_set_status(stateful_set, list(by_ordinal.values()), names, now)
        )
        live = {*map(statefulset_steps.revision_of, pods), names.current, names.update}
        _, others = controller_revisions.split_revisions(stateful_set, revisions)
        await controller_revisions.delete_revisions(
            self.client, controller_revisions.surplus_revisions(stateful_set, others, live)
        )
        if failure is not None:
            raise failure
        return owned_pods.requeue_when_available(by_ordinal.values(), owned_pods.min_ready_time(stateful_set), now)

    async def apply_step(
        self,
        stateful_set: Object,
        pods: Mapping[int, Object],
        names: RevisionNames,
        by_name: Mapping[str, Object],
        now: datetime,
    ) -> None:
        for ordinal, pod in pods.items():
            await self.restore_identity(stateful_set, ordinal, pod)
        step = statefulset_steps.next_stateful_step(stateful_set, pods, names, now)
        for pod in step.to_delete:
            await self.client.delete_if_exists(PODS, pod)
            message = f"delete Pod {name_of(pod)} in StatefulSet {name_of(stateful_set)} successful"
            self.events.normal(stateful_set, "SuccessfulDelete", message)
        for ordinal in step.to_create:
            revision = statefulset_steps.revision_for(stateful_set, ordinal, names)
            template = controller_revisions.template_in(by_name[revision])
            await self.create_pod(
                stateful_set, statefulset_steps.stateful_pod(stateful_set, template, ordinal, revision)
            )

    async def create_pod(self, stateful_set: Object, pod: Object) -> None:
        owner, name = name_of(stateful_set), name_of(pod)
        if not await self.ensure_claims(stateful_set, name):
            return  # the deletion of the old claim triggers another reconcile
        try:
            created = await owned_pods.create_pod(self.client, pod, stateful_set)
        except ApiError as error:
            message = f"create Pod {name} in StatefulSet {owner} failed error: {error.message}"
            self.events.warning(stateful_set, "FailedCreate", message)
            raise
        if created is not None:
            self.events.normal(stateful_set, "SuccessfulCreate", f"create Pod {name} in StatefulSet {owner} successful")

    async def ensure_claims(self, stateful_set: Object, pod_name: str) -> bool:
        """Create the missing claims of a pod. Return whether the pod may use all of them."""
        are_usable = True
        for desired in statefulset_steps.claims_of(stateful_set, pod_name):
            claim = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(desired)}")
            if claim is None:
                owners = statefulset_steps.claim_owner_references(stateful_set, desired, None, is_retained=True)
                metadata = {**desired["metadata"], **({"ownerReferences": owners} if owners else {})}
                try:
                    claim = await self.client.create(PERSISTENT_VOLUME_CLAIMS, {**desired, "metadata": metadata})
                except AlreadyExists:
                    claim = await self.client.get(
                        PERSISTENT_VOLUME_CLAIMS, name_of(desired), namespace_of(stateful_set)
                    )
                else:
                    message = (
                        f"create Claim {name_of(desired)} Pod {pod_name} in StatefulSet {name_of(stateful_set)} success"
                    )
                    self.events.normal(stateful_set, "SuccessfulCreate", message)
            are_usable = are_usable and not is_deleting(claim) and not is_owned_by_other_pod(claim, pod_name)
        return are_usable

    async def restore_identity(self, stateful_set: Object, ordinal: int, pod: Object) -> None:
        """Restore the identity labels of a pod, and the owner references of its claims."""
        labels = statefulset_steps.identity_labels(name_of(pod), ordinal)
        if not is_deleting(pod) and not labels.items() <= labels_of(pod).items():
            await self.client.patch(PODS, pod, {"metadata": {"labels": labels}})
        is_retained = ordinal in statefulset_steps.ordinals_of(stateful_set)
        for each in statefulset_steps.claims_of(stateful_set, name_of(pod)):
            claim = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(each)}")
            if claim is None and not is_retained:  # set its owner before the pod is deleted
                claim = await self.client.find(PERSISTENT_VOLUME_CLAIMS, name_of(each), namespace_of(each))
            if claim is None or is_deleting(claim):
                continue
            owners = statefulset_steps.claim_owner_references(stateful_set, claim, pod, is_retained=is_retained)
            if owners != (claim["metadata"].get("ownerReferences") or []):
                patch = {"metadata": {"ownerReferences": owners or None}}
                await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch)

    async def update_status(self, stateful_set: Object, status: Object) -> None:
        if patch := merge_patch(stateful_set.get("status") or {}, status):
            try:
                await self.client.patch(STATEFUL_SETS, stateful_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def is_owned_by_other_pod(claim: Object, pod_name: str) -> bool:
    """Return whether the claim belongs to a previous pod of that name and will be deleted with it."""
    return any(
        each["kind"] == PODS.kind and each["name"] == pod_name
        for each in claim["metadata"].get("ownerReferences") or ()
    )


def install(manager: Manager) -> None:
    sets = manager.informer(STATEFUL_SETS, indexers={"namespace": own_namespace})
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    claims = manager.informer(PERSISTENT_VOLUME_CLAIMS)
    revisions = manager.informer(CONTROLLER_REVISIONS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = StatefulSetReconciler(manager.client, manager.events, manager.now, sets, pods, claims, revisions)
    controller = manager.controller("statefulsets", reconciler.reconcile)

    def waiting_sets(claim: Object) -> Iterable[str]:
        """Return the keys of StatefulSets whose pods wait for the deletion of a claim."""
        namespace, name = namespace_of(claim) or "", name_of(claim)
        return [
            f"{namespace}/{name_of(each)}"
            for each in sets.store.by("namespace", namespace)
            if any(
                name.startswith(f"{name_of(template)}-{name_of(each)}-")
                for template in statefulset_steps.claim_templates(each)
            )
        ]

    controller.watch(sets)
    controller.watch(pods, matching_owner_keys(sets, STATEFUL_SETS), after=owned_pods.BATCH_INTERVAL)
    controller.watch(claims, waiting_sets, when=lambda _, new: new is None)
