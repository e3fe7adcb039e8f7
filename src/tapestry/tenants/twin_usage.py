"""Usage of the pods of a syncer, from the metrics of their twins. A separate module, because it needs no plane."""

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.objects import Object
from tapestry.nodeproxy.usage import UsageSource
from tapestry.syncer.components import Syncer


def usage_source(parts: Syncer, physical: Client) -> UsageSource:
    """Return access to the usage of the pods on our virtual nodes; `physical` is a client of the physical cluster."""
    caches, identity = parts.caches, parts.identity

    def pods_on(node: str) -> list[Object]:
        return [pod.object for pod in caches.pods_on(node)]

    return UsageSource(
        node=caches.virtual_nodes.store.get,
        pods=pods_on,
        twin=caches.twin_of_pod,
        physical=physical,
        namespace=identity.mount_namespace,
        selector=f"{keys.CLUSTER_BINDING_UID}={identity.binding_uid}",
    )
