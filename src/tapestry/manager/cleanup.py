"""Deletion of a binding's syncer and, if forced, of its virtual nodes and pods.

These functions read from the server, never from caches.  Each does what is possible now and returns whether it is done.
"""

from collections.abc import Callable, Sequence

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, uid_of, value_at
from tapestry.kube.resources import DEPLOYMENTS, NODES, PODS
from tapestry.manager.syncers import SyncerDeployer

MAX_NAMED_PODS = 20
"""Maximum number of pods that an event names."""


async def remove_syncer(deployer: SyncerDeployer, binding: Object) -> bool:
    """Delete the Deployment, and after it all other objects of the binding's syncer.  Shared roles stay."""
    objects = await deployer.live_objects(binding)
    deployments = [(resource, obj) for resource, obj in objects if resource is DEPLOYMENTS]
    for resource, obj in deployments or objects:
        if not is_deleting(obj):
            await deployer.remove(resource, obj)
    return not objects


async def remove_virtual_nodes(client: Client, binding: Object, on_pods: Callable[[Sequence[Object]], None]) -> bool:
    """Delete the binding's virtual nodes and their pods, without a grace period.

    `on_pods` is called with the pods before they are deleted.
    """
    nodes = await virtual_nodes(client, binding)
    pods = [pod for node in nodes for pod in await client.list(PODS, fields=f"spec.nodeName={name_of(node)}")]
    if pods:
        on_pods(pods)
    for pod in pods:
        if not is_deleting(pod) or value_at(pod, "metadata", "deletionGracePeriodSeconds"):
            await client.delete_if_exists(PODS, pod, grace_seconds=0)
    for node in nodes:
        await client.delete_if_exists(NODES, node, grace_seconds=0)
    return not nodes or not await virtual_nodes(client, binding)


async def virtual_nodes(client: Client, binding: Object) -> list[Object]:
    return await client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")


def leftover_message(binding: Object, pods: Sequence[Object]) -> str:
    """Describe the objects that may remain in the physical cluster, and how to find them."""
    named = ", ".join(key_of(pod) for pod in pods[:MAX_NAMED_PODS])
    more = f" and {len(pods) - MAX_NAMED_PODS} more" if len(pods) > MAX_NAMED_PODS else ""
    twins = f"twins of the pods {named}{more}" if pods else "copies for its pods"
    mount = value_at(binding, "spec", "mountNamespace", default="?")
    selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
    return (
        f"namespace {mount} of the physical cluster may still contain {twins}; find objects with the label {selector}"
    )
