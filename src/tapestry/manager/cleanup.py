"""The end of a binding: what ran for it goes, and when its cluster is given up by force, so does what stood for it.

Nothing here goes by a cache: what is not there has been asked for.  Each function does what can be done now, and says
whether that was all.
"""

from collections.abc import Callable, Sequence

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, uid_of, value_at
from tapestry.kube.resources import DEPLOYMENTS, NODES, PODS
from tapestry.manager.syncers import SyncerDeployer

MAX_NAMED_PODS = 20
"""Pods that an event names; it has to be short."""


async def remove_syncer(deployer: SyncerDeployer, binding: Object) -> bool:
    """Remove the Deployment, and once it is gone everything else that names the binding; roles of all syncers stay."""
    found = await deployer.live_objects(binding)
    deployments = [(resource, obj) for resource, obj in found if resource is DEPLOYMENTS]
    for resource, obj in deployments or found:
        if not is_deleting(obj):
            await deployer.remove(resource, obj)
    return not found


async def remove_virtual_nodes(client: Client, binding: Object, on_pods: Callable[[Sequence[Object]], None]) -> bool:
    """Remove the binding's virtual nodes and, before them, every pod there, without grace and whatever holds it.

    `on_pods` is told of the pods before they go.
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
    """What may still be in the physical cluster, and how to find it there."""
    named = ", ".join(key_of(pod) for pod in pods[:MAX_NAMED_PODS])
    more = f" and {len(pods) - MAX_NAMED_PODS} more" if len(pods) > MAX_NAMED_PODS else ""
    twins = f"twins of the pods {named}{more}" if pods else "what was made for its pods"
    mount = value_at(binding, "spec", "mountNamespace", default="?")
    selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
    return f"in namespace {mount} below may be left: {twins}; look for objects labelled {selector}"
