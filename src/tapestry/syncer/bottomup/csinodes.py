"""CSINodes: which storage drivers a virtual node has, so that the virtual scheduler counts volumes as it should."""

from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, owner_reference, value_at
from tapestry.syncer.site import CSI_NODES, Site


@dataclass(frozen=True)
class CsiNodes:
    """Keeps one virtual CSINode beside each virtual Node; keyed by the physical node's name."""

    site: Site

    async def reconcile(self, name: str) -> None:
        site = self.site
        node = site.virtual_node_of(name)
        if node is None or is_deleting(node) or not site.csi_nodes.synced.is_set():
            return
        existing = site.virtual_csi_nodes.store.get(name_of(node))
        if existing is not None and labels_of(existing).get(keys.CLUSTER_BINDING_UID) != site.binding_uid:
            return  # somebody else's
        below = site.csi_nodes.store.get(name)
        if below is None:
            if existing is not None:
                await self.remove(existing)
            return
        await site.virtual.converge(CSI_NODES, existing, csi_node(below, node, site.binding_uid))

    async def remove(self, existing: Object) -> None:
        try:
            await self.site.virtual.delete(CSI_NODES, existing)
        except NotFound:
            return


def csi_node(below: Object, node: Object, binding_uid: str) -> Object:
    """The CSINode of a virtual node; it goes with the node that owns it."""
    return {
        "apiVersion": CSI_NODES.api_version,
        "kind": CSI_NODES.kind,
        "metadata": {
            "name": name_of(node),
            "labels": {keys.MANAGED_BY: keys.TAPESTRY, keys.CLUSTER_BINDING_UID: binding_uid},
            "annotations": {keys.PHYSICAL_NODE_NAME: name_of(below)},
            "ownerReferences": [
                owner_reference({"apiVersion": "v1", "kind": "Node", **node}, controller=False, block_deletion=False)
            ],
        },
        "spec": {"drivers": value_at(below, "spec", "drivers", default=[])},
    }
