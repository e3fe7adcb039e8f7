"""Caches of a syncer: informers of both clusters, and lookups that combine them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import virtual_node_name
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.controller.informer import ObjectCache
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import Object, key_of, uid_of
from tapestry.kube.resources import CSI_NODES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.syncer.cache_transforms import (
    dependency_namespace,
    foreign_pod_node,
    is_placeholder,
    physical_node_of,
    physical_pod_transform,
    pod_node_name,
    reduced_physical_node,
    reference_keys,
    virtual_pod,
    with_changed_at,
)
from tapestry.syncer.identity import Identity
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.views import ForeignPod, PhysicalPod, Twin, VirtualPod

CACHE_LAG_SECONDS = 1.0
"""Seconds that a cache may lag behind a live read or our own write."""


@dataclass(frozen=True)
class Caches:
    """Informers by the objects they keep.

    The virtual ones are filled before work begins, the physical ones when the cluster responds.
    """

    identity: Identity
    bindings: ObjectCache
    operator_policies: ObjectCache
    virtual_nodes: ObjectCache
    virtual_pods: ObjectCache[VirtualPod]
    owner_policies: ObjectCache
    physical_nodes: ObjectCache
    physical_pods: ObjectCache[PhysicalPod]
    mount_namespaces: ObjectCache
    secrets: ObjectCache
    """The Secret with the kubeconfig; empty for a tenant, whose process has one connection for all."""
    virtual_csi_nodes: ObjectCache
    placeholders: ObjectCache
    csi_nodes: ObjectCache
    """These three are for the scheduler of the virtual cluster, and empty if it has none."""
    foreign_pods_on: Callable[[str], Iterator[ForeignPod]] | None = None
    """Return the foreign pods on a physical node, if they are not in `physical_pods`."""

    def __post_init__(self) -> None:
        for each in fields(self)[1:]:
            if isinstance(informer := getattr(self, each.name), Informer):
                informer.with_name(each.name)

    @property
    def lease_informers(self) -> tuple[ObjectCache[Any], ...]:
        """The physical caches that leases are computed from."""
        return self.physical_nodes, self.physical_pods, self.mount_namespaces, self.owner_policies

    @property
    def is_physical_synced(self) -> bool:
        """True once the physical caches are filled. Before that, a missing object may still exist."""
        return all(informer.synced.is_set() for informer in self.lease_informers)

    def virtual_node_of(self, node: str) -> Object | None:
        found = self.virtual_nodes.store.by("physical", node)
        return found[0] if found else None

    def pods_on(self, virtual_node: str) -> list[VirtualPod]:
        return list(self.virtual_pods.store.by("node", virtual_node))

    def pod_on_our_nodes(self, key: str) -> Object | None:
        """Return the virtual pod under `key` if it is bound to one of our nodes."""
        pod = self.virtual_pods.store.get(key)
        return pod.object if pod is not None and pod.node in self.virtual_nodes.store else None

    def twin_of(self, key: str) -> Twin | None:
        """Return the cached twin under the name for `key`; it may belong to an earlier pod of that name."""
        found = self.physical_pods.store.get(self.identity.twin_key(key))
        return found if isinstance(found, Twin) else None

    def twin_of_pod(self, pod: Object) -> Object | None:
        """Return the cached twin that was created for this very pod."""
        twin = self.twin_of(key_of(pod))
        return twin.object if twin is not None and virtual_uid(twin.object) == uid_of(pod) else None

    def is_our_pod(self, pod: Object) -> bool:
        """Return whether a pod is bound to one of our nodes, or is to be bound by the physical scheduler."""
        node = pod["spec"].get("nodeName", "")
        return node in self.virtual_nodes.store or (self.identity.schedules_on_host and not node)

    def foreign_pods(self, node: str) -> Iterator[ForeignPod]:
        """Yield the foreign pods on a physical node."""
        if self.foreign_pods_on is not None:
            return self.foreign_pods_on(node)
        return (pod for pod in self.physical_pods.store.by("node", node) if isinstance(pod, ForeignPod))


def build_caches(manager: Manager, read_client: Client, identity: Identity, binding: Object) -> Caches:
    """Build the caches for a binding that was read live; `read_client` is one of the physical cluster."""
    prefix, secret = virtual_node_name(binding["spec"]["clusterID"], ""), binding["spec"]["secretRef"]
    own = f"{keys.CLUSTER_BINDING_UID}={identity.binding_uid}"

    def physical_informer(resource: Resource, transform: Transform = slim, fields: str = "") -> Informer:
        return manager.add_optional_informer(Informer(read_client, resource, transform=transform, fields=fields))

    owner_policies = physical_informer(POLICIES, with_changed_at).allow_missing()
    return Caches(
        identity=identity,
        bindings=manager.informer(CLUSTER_BINDINGS, fields=f"metadata.name={identity.binding_name}"),
        secrets=manager.informer(SECRETS, namespace=secret["namespace"], fields=f"metadata.name={secret['name']}"),
        operator_policies=manager.informer(POLICIES, transform=with_changed_at).with_managed_fields(),
        virtual_nodes=manager.informer(NODES, labels=own, indexers={"physical": physical_node_of}),
        virtual_pods=manager.informer(
            PODS,
            fields="spec.nodeName!=",
            keep=lambda pod: pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod),
            transform=virtual_pod,
            indexers={
                "node": lambda pod: [pod.node],
                "refers": lambda pod: reference_keys(pod.object),
                "namespace": lambda pod: dependency_namespace(pod.object, identity.manager_namespace),
            },
        ),
        virtual_csi_nodes=manager.informer(CSI_NODES, labels=own),
        placeholders=manager.informer(
            PODS,
            namespace=keys.HOST_PORTS_NAMESPACE,
            labels=f"{keys.HOST_PORTS},{own}",
            indexers={"node": pod_node_name},
        ),
        owner_policies=owner_policies.with_managed_fields(),
        physical_nodes=physical_informer(NODES, reduced_physical_node),
        physical_pods=manager.add_optional_informer(
            Informer(
                read_client,
                PODS,
                transform=physical_pod_transform(identity.binding_uid, identity.virtual_cluster_uid),
                indexers={"node": foreign_pod_node},
            )
        ),
        csi_nodes=physical_informer(CSI_NODES),
        mount_namespaces=physical_informer(NAMESPACES, fields=f"metadata.name={identity.mount_namespace}"),
    )
