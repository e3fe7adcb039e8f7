"""Controller that creates the claims of ephemeral volumes. The garbage collector deletes them with their pod."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.controller import controller_key
from tapestry.controller.events import Recorder
from tapestry.kube.errors import AlreadyExists, ApiError
from tapestry.kube.objects import Object, is_deleting, is_owned_by, key_of, name_of, owned_object, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS

CONFLICT_INTERVAL = 60.0
"""Seconds until a name that another claim has is tried again."""


@dataclass(frozen=True)
class EphemeralVolumeReconciler:
    """Create a claim for each ephemeral volume of a pod."""

    client: Client
    events: Recorder
    pods: Informer
    claim: Callable[[str], Object | None]

    async def reconcile(self, key: str) -> Result | None:
        pod = self.pods.store.get(key)
        if pod is None or is_deleting(pod) or is_pod_terminal(pod):
            return None
        has_conflict = False
        for desired in ephemeral_claims(pod):
            claim = self.claim(key_of(desired))
            if claim is None:
                has_conflict |= not await self.create(pod, desired)
            elif not is_owned_by(claim, pod):
                has_conflict = True
                message = f"PVC {key_of(claim)} was not created for pod {key} (pod is not owner)"
                self.events.warning(pod, "FailedBinding", f"ephemeral volume: {message}")
        return Result(requeue_after=CONFLICT_INTERVAL) if has_conflict else None

    async def create(self, pod: Object, claim: Object) -> bool:
        """Create the claim. Return False if the name exists: the cache lags, or another claim has it."""
        try:
            await self.client.create(PERSISTENT_VOLUME_CLAIMS, claim)
        except AlreadyExists:
            return False
        except ApiError as error:
            self.events.warning(pod, "FailedBinding", f"ephemeral volume: create PVC {key_of(claim)}: {error}")
            raise
        return True


def ephemeral_claims(pod: Object) -> Iterable[Object]:
    """Yield the claims of a pod's ephemeral volumes, owned by the pod."""
    for volume in pod["spec"].get("volumes") or ():
        template = value_at(volume, "ephemeral", "volumeClaimTemplate")
        if template is None:
            continue
        claim = owned_object(
            pod, PERSISTENT_VOLUME_CLAIMS, {"spec": template["spec"]}, name=f"{name_of(pod)}-{volume['name']}"
        )
        given = template.get("metadata") or {}
        copied = {each: given[each] for each in ("labels", "annotations") if given.get(each)}
        yield {**claim, "metadata": {**claim["metadata"], **copied}}


def pod_key(pod: Object) -> Iterable[str]:
    """Return the key of a pod with ephemeral volumes."""
    has_claims = any("ephemeral" in each for each in pod["spec"].get("volumes") or ())
    return (key_of(pod),) if has_claims else ()


def install(manager: Manager) -> None:
    """Add the controller to `manager`."""
    pods, claims = manager.informer(PODS), manager.informer(PERSISTENT_VOLUME_CLAIMS)
    events = Recorder(manager.client, "ephemeral_volume", manager.identity, manager.now)
    manager.run_while_leading("ephemeral volume events", events.run)
    reconciler = EphemeralVolumeReconciler(manager.client, events, pods, claims.store.get)
    controller = manager.controller("ephemeralvolumes", reconciler.reconcile)
    controller.watch(pods, pod_key, when=lambda old, _: old is None)
    controller.watch(claims, controller_key(PODS), when=lambda _, new: new is None)
