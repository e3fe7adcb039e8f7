"""CSINodes: which storage drivers a virtual node has, so that the virtual scheduler counts volumes as it should."""

from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference, value_at
from tapestry.kube.resources import CSI_NODES
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.context import SyncContext
from tapestry.syncer.translate.nodes import sanitized_drivers


@dataclass(frozen=True)
class CsiNodeReconciler:
    """Keeps one virtual CSINode beside each virtual Node; keyed by their name."""

    context: SyncContext

    async def reconcile(self, name: str) -> None:
        site = self.context
        node, existing = site.virtual_nodes.store.get(name), site.virtual_csi_nodes.store.get(name)
        is_there = node is not None and not is_deleting(node)
        if is_there and not site.csi_nodes.synced.is_set():
            return
        below = self.physical_csi_node(node) if node is not None and is_there else None
        if node is not None and below is not None:
            await site.virtual_client.converge(CSI_NODES, existing, csi_node(below, node, site.binding_uid))
        elif existing is not None:
            await site.virtual_client.delete_if_exists(CSI_NODES, existing)

    def physical_csi_node(self, node: Object) -> Object | None:
        return next((self.context.csi_nodes.store.get(name) for name in physical_node_of(node)), None)


def csi_node(source: Object, node: Object, binding_uid: str) -> Object:
    """The CSINode of a virtual node; it goes with the node that owns it."""
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
