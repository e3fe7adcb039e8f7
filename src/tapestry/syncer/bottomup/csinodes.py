"""Reconciler of CSINodes, from which the virtual scheduler learns the storage drivers of a node."""

from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference, value_at
from tapestry.kube.resources import CSI_NODES
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import Caches
from tapestry.syncer.identity import Identity
from tapestry.syncer.translate.nodes import sanitized_drivers


@dataclass(frozen=True)
class CsiNodeReconciler:
    """Keep one virtual CSINode beside each virtual Node; keyed by their common name."""

    identity: Identity
    caches: Caches
    client: Client

    async def reconcile(self, name: str) -> None:
        node, existing = self.caches.virtual_nodes.store.get(name), self.caches.virtual_csi_nodes.store.get(name)
        exists = node is not None and not is_deleting(node)
        if exists and not self.caches.csi_nodes.synced.is_set():
            return
        physical = self.physical_csi_node(node) if node is not None and exists else None
        if node is not None and physical is not None:
            await self.client.converge(CSI_NODES, existing, csi_node(physical, node, self.identity.binding_uid))
        elif existing is not None:
            await self.client.delete_if_exists(CSI_NODES, existing)

    def physical_csi_node(self, node: Object) -> Object | None:
        return next((self.caches.csi_nodes.store.get(name) for name in physical_node_of(node)), None)


def csi_node(source: Object, node: Object, binding_uid: str) -> Object:
    """Return the CSINode of a virtual node, owned by that node."""
    return {
        "apiVersion": CSI_NODES.api_version,
        "kind": CSI_NODES.kind,
        "metadata": {
            "name": name_of(node),
            "labels": {keys.MANAGED_BY: keys.TAPESTRY, keys.CLUSTER_BINDING_UID: binding_uid},
            "annotations": {keys.PHYSICAL_NODE_NAME: name_of(source)},
            "ownerReferences": [
                owner_reference({"apiVersion": "v1", "kind": "Node", **node}, controller=False, block_deletion=False)
            ],
        },
        "spec": {"drivers": sanitized_drivers(value_at(source, "spec", "drivers"))},
    }
