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
from tapestry.controlplane.workloads import members, ordinals, revisions
from tapestry.controlplane.workloads.members import keepers_among
from tapestry.controlplane.workloads.ordinals import Revisions
from tapestry.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, namespace_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS

LAG = 1.0
"""Seconds until what stands in the way is looked at again."""


@dataclass(frozen=True)
class StatefulSets:
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
        selector = members.selector_of(stateful_set)
        found = members.candidates(self.revisions, stateful_set)
        kept = await revisions.claimed(self.client, STATEFUL_SETS, stateful_set, selector, found)
        found = [
            pod
            for pod in members.candidates(self.pods, stateful_set)
            if ordinals.number_of(stateful_set, pod) is not None or members.is_of(pod, stateful_set)
        ]
        pods = await members.claimed(self.client, STATEFUL_SETS, stateful_set, selector, found, PODS)
        update = await revisions.current(self.client, STATEFUL_SETS, stateful_set, kept)
        if update is None:
            return Result(requeue_after=LAG)
        by_name = {name_of(each): each for each in (*kept, update)}
        said = value_at(stateful_set, "status", "currentRevision", default="")
        names = Revisions(said if said in by_name else name_of(update), name_of(update))
        numbered = {number: pod for pod in pods if (number := ordinals.number_of(stateful_set, pod)) is not None}
        failure: ApiError | None = None
        now = self.now()
        if not is_deleting(stateful_set):
            try:
                await self.act(stateful_set, numbered, names, by_name, now)
            except Conflict:
                raise
            except ApiError as error:
                failure = error
        await self.tell(stateful_set, ordinals.status_of(stateful_set, list(numbered.values()), names, now))
        live = {*map(ordinals.revision_of, pods), names.current, names.update}
        _, others = revisions.split(stateful_set, kept)
        await revisions.forget(self.client, revisions.obsolete(stateful_set, others, live))
        if failure is not None:
            raise failure
        return members.when_available(numbered.values(), ordinals.patience_of(stateful_set), now)

    async def act(
        self,
        stateful_set: Object,
        pods: Mapping[int, Object],
        names: Revisions,
        by_name: Mapping[str, Object],
        now: datetime,
    ) -> None:
        for number, pod in pods.items():
            await self.mend(stateful_set, number, pod)
        step = ordinals.next_step(stateful_set, pods, names, now)
        for pod in step.leave:
            await self.client.remove(PODS, pod)
            message = f"delete Pod {name_of(pod)} in StatefulSet {name_of(stateful_set)} successful"
            self.events.normal(stateful_set, "SuccessfulDelete", message)
        for number in step.make:
            revision = ordinals.revision_for(stateful_set, number, names)
            template = revisions.template_in(by_name[revision])
            await self.make(stateful_set, ordinals.pod_of(stateful_set, template, number, revision))

    async def make(self, stateful_set: Object, pod: Object) -> None:
        owner, name = name_of(stateful_set), name_of(pod)
        if not await self.claim(stateful_set, name):
            return  # the end of the old claim brings us back
        try:
            made = await members.create(self.client, pod, stateful_set)
        except ApiError as error:
            message = f"create Pod {name} in StatefulSet {owner} failed error: {error.message}"
            self.events.warning(stateful_set, "FailedCreate", message)
            raise
        if made is not None:
            self.events.normal(stateful_set, "SuccessfulCreate", f"create Pod {name} in StatefulSet {owner} successful")

    async def claim(self, stateful_set: Object, pod: str) -> bool:
        """See that the pod's claims are there; whether they are there to stay."""
        stay = True
        for wanted in ordinals.claims_of(stateful_set, pod):
            held = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(wanted)}")
            if held is None:
                owners = ordinals.owners_of_claim(stateful_set, wanted, None, stays=True)
                metadata = {**wanted["metadata"], **({"ownerReferences": owners} if owners else {})}
                try:
                    held = await self.client.create(PERSISTENT_VOLUME_CLAIMS, {**wanted, "metadata": metadata})
                except AlreadyExists:
                    held = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name_of(wanted), namespace_of(stateful_set))
                else:
                    message = f"create Claim {name_of(wanted)} Pod {pod} in StatefulSet {name_of(stateful_set)} success"
                    self.events.normal(stateful_set, "SuccessfulCreate", message)
            stay = stay and not is_deleting(held) and not goes_with_another(held, pod)
        return stay

    async def mend(self, stateful_set: Object, number: int, pod: Object) -> None:
        """Give a pod back what makes it this one, and its claims to whom they go with."""
        wanted = ordinals.identity(name_of(pod), number)
        if not is_deleting(pod) and not wanted.items() <= labels_of(pod).items():
            await self.client.patch(PODS, pod, {"metadata": {"labels": wanted}})
        stays = number in ordinals.numbers_of(stateful_set)
        for each in ordinals.claims_of(stateful_set, name_of(pod)):
            held = self.claims.store.get(f"{namespace_of(stateful_set)}/{name_of(each)}")
            if held is None and not stays:  # it has to know with whom it goes before the pod does
                held = await self.client.find(PERSISTENT_VOLUME_CLAIMS, name_of(each), namespace_of(each))
            if held is None or is_deleting(held):
                continue
            owners = ordinals.owners_of_claim(stateful_set, held, pod, stays=stays)
            if owners != (held["metadata"].get("ownerReferences") or []):
                patch = {"metadata": {"ownerReferences": owners or None}}
                await self.client.patch(PERSISTENT_VOLUME_CLAIMS, held, patch)

    async def tell(self, stateful_set: Object, status: Object) -> None:
        if patch := merge_patch(stateful_set.get("status") or {}, status):
            try:
                await self.client.patch(STATEFUL_SETS, stateful_set, {"status": patch}, subresource="status")
            except NotFound:
                return


def goes_with_another(claim: Object, pod: str) -> bool:
    """Whether the claim goes with a pod of that name that was there before: this one must not have it."""
    return any(
        each["kind"] == PODS.kind and each["name"] == pod for each in claim["metadata"].get("ownerReferences") or ()
    )


def install(manager: Manager) -> None:
    sets = manager.informer(STATEFUL_SETS, indexers={"namespace": own_namespace})
    pods = manager.informer(PODS, indexers=members.BY_OWNER)
    claims = manager.informer(PERSISTENT_VOLUME_CLAIMS)
    kept = manager.informer(CONTROLLER_REVISIONS, indexers=members.BY_OWNER)
    reconciler = StatefulSets(manager.client, manager.events, manager.now, sets, pods, claims, kept)
    controller = manager.controller("statefulsets", reconciler.reconcile)

    def waits_for(claim: Object) -> Iterable[str]:
        """Sets whose pods a claim stands in the way of."""
        space, name = namespace_of(claim) or "", name_of(claim)
        return [
            f"{space}/{name_of(each)}"
            for each in sets.store.by("namespace", space)
            if any(name.startswith(f"{name_of(of)}-{name_of(each)}-") for of in ordinals.templates_of(each))
        ]

    controller.watch(sets)
    controller.watch(pods, keepers_among(sets, STATEFUL_SETS), after=members.PAUSE)
    controller.watch(claims, waits_for, when=lambda _, new: new is None)
