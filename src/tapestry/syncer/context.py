"""Shared context of a syncer's reconcilers: one binding, its two clusters, their clients and caches."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, ClusterBindingSpec, binding_of
from tapestry.apis.mount_labels import enforced_level, stricter_level
from tapestry.apis.names import physical_name, virtual_cluster_label, virtual_node_name
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import Object, is_deleting, key_of, split_key, uid_of, value_at
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.quantity import ResourceList
from tapestry.kube.resources import CSI_NODES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import parse_time
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
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import LeaseRules, PolicySide
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.policies import build_rules, parsed_policies
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.views import ForeignPod, PhysicalPod, Twin, VirtualPod
from tapestry.syncer.virtual_nodes import Endpoint

CACHE_LAG_SECONDS = 1.0
"""Seconds that a cache may lag behind a live read or our own write."""
SHORTAGE_TTL = timedelta(minutes=10)


@dataclass(slots=True)
class Partition:
    """Start of the current partition; None while the physical cluster is reachable."""

    since: datetime | None = None


@dataclass(slots=True)
class ClusterIdentity:
    """UID of the physical cluster's kube-system namespace; None until it has been read."""

    uid: str | None = None


@dataclass(slots=True)
class PriorityClassState:
    """Backoff while the PriorityClass of twins is missing in the physical cluster."""

    missing_message: str | None = None
    """Error message about the missing PriorityClass."""
    retry_at: datetime | None = None
    """Time before which no twin is created for that reason."""
    backoff: timedelta = timedelta()
    """Length of the last wait."""


@dataclass(slots=True)
class KubeletState:
    """Endpoint of the kubelet that serves our virtual nodes, if there is one."""

    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Resources that a physical node turned out not to have."""

    amounts: ResourceList
    until: datetime
    pods: frozenset[str]
    """UIDs of the pods that did not fit."""


T = TypeVar("T")


class IdentityMemo:
    """Last value computed under each key. Cached objects are never modified, so the same ones give the same value."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[object, ...], Any]] = {}

    def get(self, key: str, sources: tuple[object, ...], compute: Callable[[], T]) -> T:
        """Return `compute()`, or the known value if `sources` are the same objects as last time.

        A new value that equals the known one is not returned; the known object is. Our own status writes change the
        sources every second, and callers need not recompute what they derived from the value.
        """
        known = self._last.get(key)
        if known is None or list(map(id, known[0])) != list(map(id, sources)):
            computed = compute()
            known = self._last[key] = (sources, known[1] if known is not None and known[1] == computed else computed)
        value: T = known[1]
        return value


@dataclass(frozen=True)
class SyncContext:
    """State of one binding. Virtual caches are filled before work begins; physical ones when the cluster responds."""

    config: SyncerConfig
    manager: Manager
    binding_name: str
    binding_uid: str
    node_prefix: str
    """Prefix of the names of our virtual nodes."""
    virtual_cluster_uid: str
    physical_client: Client
    """Fenced like the manager's own client."""
    physical_read_client: Client
    read_transport: SwitchableTransport
    write_transport: SwitchableTransport
    bindings: Informer
    secrets: Informer
    operator_policies: Informer
    virtual_nodes: Informer
    virtual_pods: Informer[VirtualPod]
    virtual_csi_nodes: Informer
    placeholders: Informer
    owner_policies: Informer
    physical_nodes: Informer
    physical_pods: Informer[PhysicalPod]
    csi_nodes: Informer
    mount_namespaces: Informer
    connection_key: Object
    """Spec fields that the informers were created for."""
    partition: Partition = field(default_factory=Partition)
    cluster_identity: ClusterIdentity = field(default_factory=ClusterIdentity)
    priority_class_state: PriorityClassState = field(default_factory=PriorityClassState)
    kubelet: KubeletState = field(default_factory=KubeletState)
    shortages: dict[str, Shortage] = field(default_factory=dict)
    """Keyed by physical node."""
    pending_disruptions: dict[str, Object] = field(default_factory=dict)
    """Patches that mark reclaimed pods, by the UID of their twin, until the virtual cluster is reachable."""
    ledger: Ledger = field(default_factory=Ledger)
    """Amounts that our twins hold of each virtual node's lease."""
    pending_resizes: dict[str, Object] = field(default_factory=dict)
    """Conditions that explain why a resize is not applied to the twin, by the UID of the pod."""
    memo: IdentityMemo = field(default_factory=IdentityMemo)
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the binding's connection fields change: the process must build a new context."""

    def __post_init__(self) -> None:
        for each in fields(self):
            informer = getattr(self, each.name)
            if isinstance(informer, Informer):
                informer.with_name(each.name)

    @cached_property
    def virtual_cluster(self) -> str:
        """UID of the virtual cluster as a label value."""
        return virtual_cluster_label(self.virtual_cluster_uid)

    @property
    def mount_namespace(self) -> str:
        return self.connection_key["mountNamespace"] or ""

    @property
    def virtual_client(self) -> Client:
        return self.manager.client

    def now(self) -> datetime:
        return self.manager.now()

    def last_seen(self) -> datetime | None:
        """Return the time of the last response, or before we are connected the one in the binding's status."""
        if self.read_transport.is_connected:
            return self.now() - timedelta(seconds=self.read_transport.seconds_since_response())
        last = value_at(self.binding_object(), "status", "lastSeen")
        return parse_time(last) if last else None

    def binding_object(self) -> Object | None:
        obj = self.bindings.store.get(self.binding_name)
        return obj if obj is not None and obj["metadata"]["uid"] == self.binding_uid else None

    def binding(self) -> Binding | None:
        """Return the current binding; None if it is deleted or another object has its name. Raises InvalidSpec."""
        obj, mount = self.binding_object(), self.mount_namespace_object()
        return self.memo.get("binding", (obj, mount), lambda: self.effective_binding(obj, mount)) if obj else None

    def effective_binding(self, obj: Object, mount: Object | None) -> Binding:
        """Return the binding with the stricter Pod Security level of its own and the owner's."""
        binding = binding_of(obj, self.virtual_cluster_uid)
        level = stricter_level(binding.spec.pod_security, enforced_level(mount))
        return (
            binding
            if level == binding.spec.pod_security
            else replace(binding, spec=with_pod_security(binding.spec, level))
        )

    def mount_namespace_object(self) -> Object | None:
        return self.mount_namespaces.store.get(self.mount_namespace)

    @property
    def is_unbinding(self) -> bool:
        obj = self.binding_object()
        return obj is None or is_deleting(obj)

    @property
    def is_physical_synced(self) -> bool:
        """True once the physical caches are filled. Before that, a missing object may still exist."""
        return all(informer.synced.is_set() for informer in self.lease_informers)

    @property
    def lease_informers(self) -> tuple[Informer[Any], ...]:
        """The physical caches that leases are computed from."""
        return self.physical_nodes, self.physical_pods, self.mount_namespaces, self.owner_policies

    def lease_rules(self, binding: Binding) -> LeaseRules:
        """Return the rules that apply to every node of the binding."""
        operator_objects, owner_objects = self.operator_policies.store.list(), self.owner_policies.store.list()
        mount = self.mount_namespace_object()

        def compute() -> LeaseRules:
            zone = self.config.time_zone
            operator, owner = (
                parsed_policies(operator_objects, PolicySide.OPERATOR, binding, zone),
                parsed_policies(owner_objects, PolicySide.OWNER, binding, zone),
            )
            return build_rules(binding, operator, owner, mount, timedelta(seconds=self.config.warning_seconds))

        return self.memo.get("rules", (binding, mount, *operator_objects, *owner_objects), compute)

    def foreign_pods(self, node: str) -> Iterator[ForeignPod]:
        """Yield the foreign pods on a physical node."""
        return (pod for pod in self.physical_pods.store.by("node", node) if isinstance(pod, ForeignPod))

    def shortage(self, node: str) -> Shortage | None:
        """Return the recorded shortage of a physical node unless it has expired."""
        found = self.shortages.get(node)
        return found if found is not None and found.until > self.now() else None

    def record_shortage(self, node: str, pod: VirtualPod) -> None:
        """Lease less of a node by the pod's requests, until a foreign pod changes there or the record expires."""
        known = self.shortage(node) or Shortage(ResourceList(), self.now(), frozenset())
        if pod.uid not in known.pods:
            total, pods = known.amounts + effective_requests(pod.object), known.pods | {pod.uid}
            self.shortages[node] = Shortage(total, self.now() + SHORTAGE_TTL, pods)

    def twin_key(self, key: str) -> str:
        """Return the key of the twin of the virtual pod under `key`."""
        namespace, name = key.split("/")
        twin, mount = physical_name(self.virtual_cluster, self.binding_uid, namespace, name), self.mount_namespace
        return f"{mount}/{twin}" if mount else twin

    def twin_of(self, key: str) -> Twin | None:
        """Return the cached twin under the name for `key`; it may belong to an earlier pod of that name."""
        found = self.physical_pods.store.get(self.twin_key(key))
        return found if isinstance(found, Twin) else None

    async def live_pod(self, key: str) -> Object | None:
        """Read the virtual pod under `key` from its API server."""
        namespace, name = key.split("/")
        return await self.virtual_client.find(PODS, name, namespace)

    async def live_twin(self, key: str) -> Object | None:
        """Read any pod with the name of the twin of `key` from its API server."""
        namespace, name = split_key(self.twin_key(key))
        return await self.physical_client.find(PODS, name, namespace)

    def pod_on_our_nodes(self, key: str) -> Object | None:
        """Return the virtual pod under `key` if it is bound to one of our nodes."""
        pod = self.virtual_pods.store.get(key)
        return pod.object if pod is not None and pod.node in self.virtual_nodes.store else None

    def twin_of_pod(self, pod: Object) -> Object | None:
        """Return the cached twin that was created for this very pod."""
        twin = self.twin_of(key_of(pod))
        return twin.object if twin is not None and virtual_uid(twin.object) == uid_of(pod) else None

    def virtual_node_of(self, node: str) -> Object | None:
        found = self.virtual_nodes.store.by("physical", node)
        return found[0] if found else None

    def pods_on(self, virtual_node: str) -> list[VirtualPod]:
        return list(self.virtual_pods.store.by("node", virtual_node))


def build_context(
    config: SyncerConfig,
    manager: Manager,
    binding: Object,
    virtual_cluster_uid: str,
    transports: tuple[SwitchableTransport, SwitchableTransport],
) -> SyncContext:
    """Build the context of a binding that was read live. The informers start with the manager."""
    reads, writes = transports
    manager.on_loss(writes.abort)
    read_client = Client(reads, identity=manager.identity)
    name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
    prefix = virtual_node_name(binding["spec"]["clusterID"], "")
    secret, mount = binding["spec"]["secretRef"], value_at(binding, "spec", "mountNamespace", default="")

    def physical_informer(resource: Resource, transform: Transform = slim, fields: str = "") -> Informer:
        return manager.add_optional_informer(Informer(read_client, resource, transform=transform, fields=fields))

    owner_policies = physical_informer(POLICIES, with_changed_at).allow_missing()
    return SyncContext(
        config=config,
        manager=manager,
        binding_name=name,
        binding_uid=uid,
        node_prefix=prefix,
        virtual_cluster_uid=virtual_cluster_uid,
        physical_client=Client(
            writes,
            fence=manager.elector.fence if manager.elector else None,
            audit=manager.audit,
            identity=manager.identity,
        ),
        physical_read_client=read_client,
        read_transport=reads,
        write_transport=writes,
        bindings=manager.informer(CLUSTER_BINDINGS, fields=f"metadata.name={name}"),
        secrets=manager.informer(SECRETS, namespace=secret["namespace"], fields=f"metadata.name={secret['name']}"),
        operator_policies=manager.informer(POLICIES, transform=with_changed_at).with_managed_fields(),
        virtual_nodes=manager.informer(
            NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid}", indexers={"physical": physical_node_of}
        ),
        virtual_pods=manager.informer(
            PODS,
            fields="spec.nodeName!=",
            keep=lambda pod: pod["spec"]["nodeName"].startswith(prefix) and not is_placeholder(pod),
            transform=virtual_pod,
            indexers={
                "node": lambda pod: [pod.node],
                "refers": lambda pod: reference_keys(pod.object),
                "namespace": lambda pod: dependency_namespace(pod.object),
            },
        ),
        virtual_csi_nodes=manager.informer(CSI_NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid}"),
        placeholders=manager.informer(
            PODS,
            namespace=keys.HOST_PORTS_NAMESPACE,
            labels=f"{keys.HOST_PORTS},{keys.CLUSTER_BINDING_UID}={uid}",
            indexers={"node": pod_node_name},
        ),
        owner_policies=owner_policies.with_managed_fields(),
        physical_nodes=physical_informer(NODES, reduced_physical_node),
        physical_pods=manager.add_optional_informer(
            Informer(
                read_client,
                PODS,
                transform=physical_pod_transform(uid, virtual_cluster_uid),
                indexers={"node": foreign_pod_node},
            )
        ),
        csi_nodes=physical_informer(CSI_NODES),
        mount_namespaces=physical_informer(NAMESPACES, fields=f"metadata.name={mount}"),
        connection_key=connection_key_of(binding),
    )


def with_pod_security(spec: ClusterBindingSpec, level: str) -> ClusterBindingSpec:
    return structs.replace(spec, pod_security=level)


def connection_key_of(binding: Object) -> Object:
    """Return the spec fields that a context is built on; when they change, a new context is needed."""
    return {field: binding["spec"].get(field) for field in ("secretRef", "mountNamespace")}
