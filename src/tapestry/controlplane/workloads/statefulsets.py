"""StatefulSets: pods with a number, a name and volumes of their own.

Which of them come and go is decided in `ordinals`; here it is done, and told.
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
"""Seconds until what stands in the way is looked at again."""


@dataclass(frozen=True)
class StatefulSetReconciler:
    """Keeps the pods of each StatefulSet."""

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
        found = owned_pods.candidates(self.revisions, stateful_set)
        kept = await controller_revisions.claim_revisions(self.client, STATEFUL_SETS, stateful_set, selector, found)
        found = [
            pod
            for pod in owned_pods.candidates(self.pods, stateful_set)
            if statefulset_steps.ordinal_of(stateful_set, pod) is not None
            or owned_pods.is_controlled_by(pod, stateful_set)
        ]
        pods = await owned_pods.claim_objects(self.client, STATEFUL_SETS, stateful_set, selector, found, PODS)
        update = await controller_revisions.ensure_current_revision(self.client, STATEFUL_SETS, stateful_set, kept)
        if update is None:
            return Result(requeue_after=RETRY_INTERVAL)
        by_name = {name_of(each): each for each in (*kept, update)}
        said = value_at(stateful_set, "status", "currentRevision", default="")
        names = RevisionNames(said if said in by_name else name_of(update), name_of(update))
        numbered = {
            number: pod for pod in pods if (number := statefulset_steps.ordinal_of(stateful_set, pod)) is not None
        }
        failure: ApiError | None = None
        now = self.now()
        if not is_deleting(stateful_set):
            try:
                await self.apply_step(stateful_set, numbered, names, by_name, now)
            except Conflict:
                raise
            except ApiError as error:
                failure = error
        await self.update_status(
            stateful_set, statefulset_steps.stateful_set_status(stateful_set, list(numbered.values()), names, now)
        )
        live = {*map(statefulset_steps.revision_of, pods), names.current, names.update}
        _, others = controller_revisions.split_revisions(stateful_set, kept)
        await controller_revisions.delete_revisions(
            self.client, controller_revisions.surplus_revisions(stateful_set, others, live)
        )
        if failure is not None:
            raise failure
        return owned_pods.requeue_when_available(
            numbered.values(), statefulset_steps.stateful_set_min_ready(stateful_set), now
        )

    async def apply_step(
        self,
        stateful_set: Object,
        pods: Mapping[int, Object],
        names: RevisionNames,
        by_name: Mapping[str, Object],
        now: datetime,
    ) -> None:
        for number, pod in pods.items():
            await self.restore_identity(stateful_set, number, pod)
        step = statefulset_steps.next_stateful_step(stateful_set, pods, names, now)
        for pod in step.to_delete:
            await self.client.delete_if_exists(PODS, pod)
            message = f"delete Pod {name_of(pod)} in StatefulSet {name_of(stateful_set)} successful"
            self.events.normal(stateful_set, "SuccessfulDelete", message)
        for number in step.to_create:
            revision = statefulset_steps.revision_for(stateful_set, number, names)
            template = controller_revisions.template_in(by_name[revision])
            await self.create_pod(
                stateful_set, statefulset_steps.stateful_pod(stateful_set, template, number, revision)
            )

    async def create_pod(self, stateful_set: Object, pod: Object) -> None:
        owner, name = name_of(stateful_set), name_of(pod)
        if not await self.ensure_claims(stateful_set, name):
            return  # the end of the old claim brings us back
        try:
            made = await owned_pods.create_pod(self.client, pod, stateful_set)
        except ApiError as error:
            message = f"create Pod {name} in StatefulSet {owner} failed error: {error.message}"
            self.events.warning(stateful_set, "FailedCreate", message)
            raise
        if made is not None:
            self.events.normal(stateful_set, "SuccessfulCreate", f"create Pod {name} in StatefulSet {owner} successful")

    async def ensure_claims(self, stateful_set: Object, pod_name: str) -> bool:
        """See that the pod's claims are there; whether they are there to stay."""
        stay = True
        for wanted in statefulset_steps.claims_of(stateful_set, pod_name):
            held = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(wanted)}")
            if held is None:
                owners = statefulset_steps.claim_owner_references(stateful_set, wanted, None, is_retained=True)
                metadata = {**wanted["metadata"], **({"ownerReferences": owners} if owners else {})}
                try:
                    held = await self.client.create(PERSISTENT_VOLUME_CLAIMS, {**wanted, "metadata": metadata})
                except AlreadyExists:
                    held = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name_of(wanted), namespace_of(stateful_set))
                else:
                    message = (
                        f"create Claim {name_of(wanted)} Pod {pod_name} in StatefulSet {name_of(stateful_set)} success"
                    )
                    self.events.normal(stateful_set, "SuccessfulCreate", message)
            stay = stay and not is_deleting(held) and not is_owned_by_other_pod(held, pod_name)
        return stay

    async def restore_identity(self, stateful_set: Object, ordinal: int, pod: Object) -> None:
        """Give a pod back what makes it this one, and its claims to whom they go with."""
        wanted = statefulset_steps.identity_labels(name_of(pod), ordinal)
        if not is_deleting(pod) and not wanted.items() <= labels_of(pod).items():
            await self.client.patch(PODS, pod, {"metadata": {"labels": wanted}})
        stays = ordinal in statefulset_steps.ordinals_of(stateful_set)
        for each in statefulset_steps.claims_of(stateful_set, name_of(pod)):
            held = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(each)}")
            if held is None and not stays:  # it has to know with whom it goes before the pod does
                held = await self.client.find(PERSISTENT_VOLUME_CLAIMS, name_of(each), namespace_of(each))
            if held is None or is_deleting(held):
                continue
            owners = statefulset_steps.claim_owner_references(stateful_set, held, pod, is_retained=stays)
            if owners != (held["metadata"].get("ownerReferences") or []):
                patch = {"metadata": {"ownerReferences": owners or None}}
                await self.client.patch(PERSISTENT_VOLUME_CLAIMS, held, patch)

    async def update_status(self, stateful_set: Object, status: Object) -> None:
        if patch := merge_patch(stateful_set.get("status") or {}, status):
            try:
                await self.client.patch(STATEFUL_SETS, stateful_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def is_owned_by_other_pod(claim: Object, pod_name: str) -> bool:
    """Whether the claim goes with a pod of that name that was there before: this one must not have it."""
    return any(
        each["kind"] == PODS.kind and each["name"] == pod_name
        for each in claim["metadata"].get("ownerReferences") or ()
    )


def install(manager: Manager) -> None:
    sets = manager.informer(STATEFUL_SETS, indexers={"namespace": own_namespace})
    pods = manager.informer(PODS, indexers=owned_pods.OWNER_INDEXERS)
    claims = manager.informer(PERSISTENT_VOLUME_CLAIMS)
    kept = manager.informer(CONTROLLER_REVISIONS, indexers=owned_pods.OWNER_INDEXERS)
    reconciler = StatefulSetReconciler(manager.client, manager.events, manager.now, sets, pods, claims, kept)
    controller = manager.controller("statefulsets", reconciler.reconcile)

    def waits_for(claim: Object) -> Iterable[str]:
        """Sets whose pods a claim stands in the way of."""
        space, name = namespace_of(claim) or "", name_of(claim)
        return [
            f"{space}/{name_of(each)}"
            for each in sets.store.by("namespace", space)
            if any(name.startswith(f"{name_of(of)}-{name_of(each)}-") for of in statefulset_steps.claim_templates(each))
        ]

    controller.watch(sets)
    controller.watch(pods, matching_owner_keys(sets, STATEFUL_SETS), after=owned_pods.BATCH_INTERVAL)
    controller.watch(claims, waits_for, when=lambda _, new: new is None)
