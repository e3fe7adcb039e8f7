"""CSINodes: which storage drivers a virtual node has, so that the virtual scheduler counts volumes as it should."""

from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference, value_at
from tapestry.kube.resources import CSI_NODES
from tapestry.syncer.projections import physical_node_of
from tapestry.syncer.site import Site
from tapestry.syncer.translate.nodes import drivers_in


@dataclass(frozen=True)
class CsiNodes:
    """Keeps one virtual CSINode beside each virtual Node; keyed by their name."""

    site: Site

    async def reconcile(self, name: str) -> None:
        site = self.site
        node, existing = site.virtual_nodes.store.get(name), site.virtual_csi_nodes.store.get(name)
        is_there = node is not None and not is_deleting(node)
        if is_there and not site.csi_nodes.synced.is_set():
            return
        below = self.below(node) if node is not None and is_there else None
        if node is not None and below is not None:
            await site.virtual.converge(CSI_NODES, existing, csi_node(below, node, site.binding_uid))
        elif existing is not None:
            await site.virtual.remove(CSI_NODES, existing)

    def below(self, node: Object) -> Object | None:
        return next((self.site.csi_nodes.store.get(name) for name in physical_node_of(node)), None)


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
        "spec": {"drivers": drivers_in(value_at(below, "spec", "drivers"))},
    }
