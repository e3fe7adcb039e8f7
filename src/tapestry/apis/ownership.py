"""What is ours in a physical cluster, and how it is removed.

Each object there belongs to one binding of one virtual cluster and says so in two labels, `Binding.owner_labels`;
without both of them it is foreign.  Whoever ends a binding removes what carries them, and nothing else: its syncer as
it unbinds or, where the cluster was left by force, the manager when it is back.
"""

from typing import Protocol

from tapestry.apis import keys
from tapestry.apis.permissions import SYNCER_IN_PHYSICAL, SYNCER_VOLUMES
from tapestry.kube.errors import Conflict, Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.kube.resources import PODS, Resource

OWNED_RESOURCES = tuple(
    dict.fromkeys(right.resource for right in (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES) if "delete" in right.verbs)
)
"""Every kind that crosses, pods before what they use: what a syncer makes below it may delete there, and no more."""
MAX_GRACE_SECONDS = 30
"""Seconds that a pod gets to end, whatever it asks for, once it has to go."""


class DeletionClient(Protocol):
    """What removal needs of a client: this package knows no door to a cluster."""

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[Object]: ...

    async def delete(self, resource: Resource, target: Object, *, grace_seconds: int | None = None) -> Object: ...


def owner_selector(virtual_cluster: str, binding_uid: str) -> str:
    """What selects everything that is provably this binding's."""
    return f"{keys.VIRTUAL_CLUSTER}={virtual_cluster},{keys.CLUSTER_BINDING_UID}={binding_uid}"


async def delete_owned(client: DeletionClient, namespace: str, labels: str) -> list[str]:
    """Remove what `labels` select, in the mount namespace and beyond all namespaces.

    Returns what there was, as in `Pod leased/web`: nothing is left once a call returns nothing.  An object whose
    removal is refused keeps no other; the first such error is raised in the end.
    """
    found: list[str] = []
    refused: list[KubeError] = []
    for resource in OWNED_RESOURCES:
        for obj in await selected_objects(client, resource, namespace if resource.namespaced else None, labels):
            found.append(f"{resource.kind} {key_of(obj)}")
            try:
                await delete_object(client, resource, obj)
            except KubeError as error:
                refused.append(error)
    if refused:
        raise refused[0]
    return found


async def selected_objects(
    client: DeletionClient, resource: Resource, namespace: str | None, labels: str
) -> list[Object]:
    """The objects that `labels` select; of a kind that we may not even see, or that nobody knows, we made none."""
    try:
        return await client.list(resource, namespace, labels=labels)
    except (Forbidden, NotFound):
        return []


async def delete_object(client: DeletionClient, resource: Resource, obj: Object) -> None:
    """Delete an object as it was read; one that changed meanwhile is for the next look.

    A pod that is being deleted is deleted again where it would get more time than it may have.
    """
    if is_ending_in_time(obj) if resource is PODS else is_deleting(obj):
        return
    try:
        await client.delete(resource, obj, grace_seconds=capped_grace_seconds(obj) if resource is PODS else None)
    except (NotFound, Conflict):
        return


def capped_grace_seconds(pod: Object) -> int:
    """Seconds that a pod gets to end."""
    return min(
        int(value_at(pod, "spec", "terminationGracePeriodSeconds", default=MAX_GRACE_SECONDS)), MAX_GRACE_SECONDS
    )


def is_ending_in_time(pod: Object) -> bool:
    """Whether the pod is being deleted, and with no more time to end than `grace_of` gives it."""
    return is_deleting(pod) and (pod["metadata"].get("deletionGracePeriodSeconds") or 0) <= capped_grace_seconds(pod)
