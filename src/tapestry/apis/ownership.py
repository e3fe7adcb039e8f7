"""Deletion of the objects that a binding owns in a physical cluster.

Each of these objects belongs to one binding of one virtual cluster and carries the two labels of
`Binding.owner_labels`.  An object without both labels is foreign and never deleted.  The syncer deletes owned objects
when it unbinds.  After a forced unjoin, the manager deletes them once the cluster is reachable again.
"""

from typing import Protocol

from tapestry.apis import keys
from tapestry.apis.permissions import SYNCER_IN_PHYSICAL, SYNCER_VOLUMES
from tapestry.kube.errors import Conflict, Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.kube.resources import PODS, Resource

OWNED_RESOURCES = tuple(
    dict.fromkeys(rule.resource for rule in (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES) if "delete" in rule.verbs)
)
"""Resources that a syncer may delete in the physical cluster, pods before the objects that they use."""
MAX_GRACE_SECONDS = 25
"""Maximum grace period of pods that are deleted, in seconds.

When two clusters and a kubelet have each taken their time, also pods that ignore SIGTERM are gone within 30 seconds.
"""


class DeletionClient(Protocol):
    """The client methods that deletion needs.  This package must not depend on `tapestry.client`."""

    async def list(self, resource: Resource, namespace: str | None = None, *, labels: str = "") -> list[Object]: ...

    async def delete(self, resource: Resource, target: Object, *, grace_seconds: int | None = None) -> Object: ...


def owner_selector(virtual_cluster: str, binding_uid: str) -> str:
    return f"{keys.VIRTUAL_CLUSTER}={virtual_cluster},{keys.CLUSTER_BINDING_UID}={binding_uid}"


async def delete_owned(client: DeletionClient, namespace: str, labels: str) -> list[str]:
    """Delete the objects that `labels` select, in the mount namespace and among cluster-scoped resources.

    Return the objects found, as in `Pod leased/web`; an empty list means that none are left.  An object that cannot be
    deleted does not stop the others.  The first error is raised at the end.
    """
    deleted: list[str] = []
    errors: list[KubeError] = []
    for resource in OWNED_RESOURCES:
        for obj in await selected_objects(client, resource, namespace if resource.namespaced else None, labels):
            deleted.append(f"{resource.kind} {key_of(obj)}")
            try:
                await delete_object(client, resource, obj)
            except KubeError as error:
                errors.append(error)
    if errors:
        raise errors[0]
    return deleted


async def selected_objects(
    client: DeletionClient, resource: Resource, namespace: str | None, labels: str
) -> list[Object]:
    """Return the objects that `labels` select, or none if the resource is forbidden or not served."""
    try:
        return await client.list(resource, namespace, labels=labels)
    except (Forbidden, NotFound):
        return []


async def delete_object(client: DeletionClient, resource: Resource, obj: Object) -> None:
    """Delete an object as it was read.  If it changed meanwhile, leave it for the next call.

    A terminating pod is deleted again if its remaining grace period is too long.
    """
    if is_ending_in_time(obj) if resource is PODS else is_deleting(obj):
        return
    try:
        await client.delete(resource, obj, grace_seconds=capped_grace_seconds(obj) if resource is PODS else None)
    except (NotFound, Conflict):
        return


def capped_grace_seconds(pod: Object) -> int:
    """Return the grace period for deleting a pod, in seconds."""
    return min(
        int(value_at(pod, "spec", "terminationGracePeriodSeconds", default=MAX_GRACE_SECONDS)), MAX_GRACE_SECONDS
    )


def is_ending_in_time(pod: Object) -> bool:
    """Return whether the pod is terminating with a grace period within `capped_grace_seconds`."""
    return is_deleting(pod) and (pod["metadata"].get("deletionGracePeriodSeconds") or 0) <= capped_grace_seconds(pod)
