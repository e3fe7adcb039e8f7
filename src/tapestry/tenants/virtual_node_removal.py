"""Removal of the virtual nodes of a tenant whose syncer has stopped, with what their pods say.

Nothing of these pods runs any more. They are marked as in a drain and keep existing, so that another tenant of the
plane may run them. Pods that were being deleted end.
"""

from datetime import datetime

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.kube.objects import Object, is_deleting, name_of, object_named
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.translate.pod_status import is_suspended, suspended_status_patch

REMOVED_MESSAGE = "the tenant of this plane was removed: the pod runs when the plane has another one"


async def remove_virtual_nodes(client: Client, binding_uid: str, now: datetime) -> None:
    """Delete the virtual nodes of a binding after marking their pods. The second call repeats what failed."""
    for node in await client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={binding_uid}"):
        for pod in await client.list(PODS, fields=f"spec.nodeName={name_of(node)}"):
            if is_deleting(pod):
                await client.delete_if_exists(PODS, pod, grace_seconds=0)
            elif not (is_pod_terminal(pod) or is_suspended(pod)):
                await mark(client, pod, now)
        await client.delete_if_exists(NODES, object_named(name_of(node)))


async def mark(client: Client, pod: Object, now: datetime) -> None:
    """Say in the status of a pod that it runs no more. Raises Conflict if the pod has changed."""
    patch = suspended_status_patch(virtual_pod(pod), now, REMOVED_MESSAGE)
    await client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
