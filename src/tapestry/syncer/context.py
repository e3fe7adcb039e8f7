"""The site: one binding, its two clusters, and what is known of them.  Every reconciler of a syncer works from it."""

import asyncio
from collections.abc import Callable
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
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, namespace_of, object_named, uid_of, value_at
from tapestry.kube.pod_requests import PodAllocation, effective_requests
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
    with_changed_at,
    with_reduced_status,
)
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import LeaseRules, PolicySide
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.policies import build_rules, parsed_policies
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.syncer.virtual_nodes import Endpoint

CACHE_LAG_SECONDS = 1.0
"""Seconds that a cache gets to see what a live read, or a write of ours, has seen."""
SHORTAGE_TTL = timedelta(minutes=10)


@dataclass(slots=True)
class Partition:
    """Whether the physical cluster is out of reach."""

    since: datetime | None = None


@dataclass(slots=True)
class ClusterIdentity:
    """Who is behind the kubeconfig, as far as anybody has looked: the UID of kube-system there."""

    uid: str | None = None


@dataclass(slots=True)
class PriorityClassState:
    """What keeps every pod from going down."""

    missing_message: str | None = None
    """The message that says that ours is missing."""
    retry_at: datetime | None = None
    """Until when no pod is tried because of that."""
    backoff: timedelta = timedelta()
    """How long the last wait was."""


@dataclass(slots=True)
class KubeletState:
    """What answers for our virtual nodes, where anything does."""

    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Shortage:
    """Room that a physical node turned out not to have."""

    amounts: ResourceList
    until: datetime
    pods: frozenset[str]
    """UIDs of those that it was seen by."""


T = TypeVar("T")


class IdentityMemo:
    """What was read of objects last, by what for.  Cached objects are never changed: the same one says the same."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[object, ...], Any]] = {}

    def get(self, key: str, sources: tuple[object, ...], compute: Callable[[], T]) -> T:
        """What `read` makes of `sources`, unless it is known.

        A reading that equals the last one is that very object: our own status writes change the sources every second,
        and whoever computed something from the reading need not do so again.
        """
        known = self._last.get(key)
        if known is None or list(map(id, known[0])) != list(map(id, sources)):
            found = compute()
            known = self._last[key] = (sources, known[1] if known is not None and known[1] == found else found)
        reading: T = known[1]
        return reading


@dataclass(frozen=True)
class SyncContext:
    """One binding at work.  Virtual caches are filled before any work begins; physical ones when they can be."""

    config: SyncerConfig
    manager: Manager
    binding_name: str
    binding_uid: str
    node_prefix: str
    """What the names of our virtual nodes begin with."""
    virtual_cluster_uid: str
    physical_client: Client
    """Fenced as the manager's own client is."""
    physical_read_client: Client
    read_transport: SwitchableTransport
    write_transport: SwitchableTransport
    bindings: Informer
    secrets: Informer
    operator_policies: Informer
    virtual_nodes: Informer
    virtual_pods: Informer
    virtual_csi_nodes: Informer
    placeholders: Informer
    owner_policies: Informer
    physical_nodes: Informer
    physical_pods: Informer
    csi_nodes: Informer
    mount_namespaces: Informer
    connection_key: Object
    """What the informers were made for."""
    partition: Partition = field(default_factory=Partition)
    cluster_identity: ClusterIdentity = field(default_factory=ClusterIdentity)
    priority_class_state: PriorityClassState = field(default_factory=PriorityClassState)
    kubelet: KubeletState = field(default_factory=KubeletState)
    shortages: dict[str, Shortage] = field(default_factory=dict)
    """By physical node."""
    pending_disruptions: dict[str, Object] = field(default_factory=dict)
    """By the UIDs of twins that were taken back while the virtual cluster could not be told: how to mark their pods."""
    ledger: Ledger = field(default_factory=Ledger)
    """What our twins hold of each virtual node's lease."""
    pending_resizes: dict[str, Object] = field(default_factory=dict)
    """By the UIDs of pods whose resize does not go down now: the condition that says why."""
    memo: IdentityMemo = field(default_factory=IdentityMemo)
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the binding leads elsewhere: another site has to take the place of this one."""

    def __post_init__(self) -> None:
        for each in fields(self):
            informer = getattr(self, each.name)
            if isinstance(informer, Informer):
                informer.with_name(each.name)

    @cached_property
    def virtual_cluster(self) -> str:
        """The virtual cluster as a label value."""
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
        """When the physical cluster last answered: as we heard it or, before that, as the binding's status has it."""
        if self.read_transport.is_connected:
            return self.now() - timedelta(seconds=self.read_transport.seconds_since_response())
        told = value_at(self.binding_object(), "status", "lastSeen")
        return parse_time(told) if told else None

    def binding_object(self) -> Object | None:
        obj = self.bindings.store.get(self.binding_name)
        return obj if obj is not None and obj["metadata"]["uid"] == self.binding_uid else None

    def binding(self) -> Binding | None:
        """The binding as it is now; None once it is gone or replaced by a namesake.  Raises InvalidSpec."""
        obj, mount = self.binding_object(), self.mount_namespace_object()
        return self.memo.get("binding", (obj, mount), lambda: self.effective_binding(obj, mount)) if obj else None

    def effective_binding(self, obj: Object, mount: Object | None) -> Binding:
        """The binding at the Pod Security level that applies: the stricter of its own and the owner's."""
        binding = binding_of(obj, self.virtual_cluster_uid)
        level = stricter_level(binding.spec.pod_security, enforced_level(mount))
        return (
            binding
            if level == binding.spec.pod_security
            else replace(binding, spec=with_pod_security(binding.spec, level))
        )

    def mount_namespace_object(self) -> Object | None:
        """The mount namespace, as last seen."""
        return self.mount_namespaces.store.get(self.mount_namespace)

    @property
    def is_unbinding(self) -> bool:
        obj = self.binding_object()
        return obj is None or is_deleting(obj)

    @property
    def is_physical_synced(self) -> bool:
        """Whether the physical caches have been filled: before that, nothing that is missing is missing."""
        return all(informer.synced.is_set() for informer in self.lease_informers)

    @property
    def lease_informers(self) -> tuple[Informer, ...]:
        """The physical caches that leases are decided by."""
        return self.physical_nodes, self.physical_pods, self.mount_namespaces, self.owner_policies

    def lease_rules(self, binding: Binding) -> LeaseRules:
        """What decides about every node of the site."""
        ours, theirs = self.operator_policies.store.list(), self.owner_policies.store.list()
        mount = self.mount_namespace_object()

        def read() -> LeaseRules:
            zone = self.config.time_zone
            operator, owner = (
                parsed_policies(ours, PolicySide.OPERATOR, binding, zone),
                parsed_policies(theirs, PolicySide.OWNER, binding, zone),
            )
            return build_rules(binding, operator, owner, mount, timedelta(seconds=self.config.warning_seconds))

        return self.memo.get("rules", (binding, mount, *ours, *theirs), read)

    def foreign_holds(self, node: str, binding: Binding) -> list[PodAllocation]:
        """What pods that are not ours hold of a physical node."""
        return [pod["hold"] for pod in self.physical_pods.store.by("node", node) if not binding.owns(pod)]

    def shortage(self, node: str) -> Shortage | None:
        """What a physical node turned out to lack, as far as that still counts."""
        found = self.shortages.get(node)
        return found if found is not None and found.until > self.now() else None

    def record_shortage(self, node: str, pod: Object) -> None:
        """Lend less of a node by what a pod asks for, until a foreign pod changes there or some time has passed."""
        known = self.shortage(node) or Shortage(ResourceList(), self.now(), frozenset())
        if uid_of(pod) not in known.pods:
            total, pods = known.amounts + effective_requests(pod), known.pods | {uid_of(pod)}
            self.shortages[node] = Shortage(total, self.now() + SHORTAGE_TTL, pods)

    def twin_ref(self, key: str) -> Object:
        """What the twin of the virtual pod under `key` is called."""
        namespace, name = key.split("/")
        return object_named(
            physical_name(self.virtual_cluster, self.binding_uid, namespace, name), self.mount_namespace
        )

    def twin_key(self, key: str) -> str:
        """The key of the twin of the virtual pod under `key`."""
        namespace, name = key.split("/")
        below, mount = physical_name(self.virtual_cluster, self.binding_uid, namespace, name), self.mount_namespace
        return f"{mount}/{below}" if mount else below

    def twin_of(self, key: str) -> Object | None:
        """The twin of the virtual pod under `key`, as last seen; whether it is of that very pod its UID tells."""
        found = self.physical_pods.store.get(self.twin_key(key))
        return found if found is not None and "twin" in found else None

    async def live_pod(self, key: str) -> Object | None:
        """The virtual pod under `key`, as its server has it now."""
        namespace, name = key.split("/")
        return await self.virtual_client.find(PODS, name, namespace)

    async def live_twin(self, key: str) -> Object | None:
        """Whatever has the name of the twin of the virtual pod under `key`, as its server has it now."""
        place = self.twin_ref(key)
        return await self.physical_client.find(PODS, name_of(place), namespace_of(place))

    def pod_on_our_nodes(self, key: str) -> Object | None:
        """The virtual pod under `key`, if it is bound to one of our nodes."""
        pod = self.virtual_pods.store.get(key)
        return pod if pod is not None and pod["spec"]["nodeName"] in self.virtual_nodes.store else None

    def twin_of_pod(self, pod: Object) -> Object | None:
        """The twin that was made for this very pod, as last seen."""
        twin = self.twin_of(key_of(pod))
        return twin if twin is not None and virtual_uid(twin) == uid_of(pod) else None

    def virtual_node_of(self, node: str) -> Object | None:
        found = self.virtual_nodes.store.by("physical", node)
        return found[0] if found else None

    def pods_on(self, virtual_node: str) -> list[Object]:
        return list(self.virtual_pods.store.by("node", virtual_node))


def build_context(
    config: SyncerConfig,
    manager: Manager,
    binding: Object,
    virtual_cluster_uid: str,
    transports: tuple[SwitchableTransport, SwitchableTransport],
) -> SyncContext:
    """A site for a binding as it was read live; informers are made here, and run when the manager runs."""
    reads, writes = transports
    manager.on_loss(writes.abort)
    below = Client(reads, identity=manager.identity)
    name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
    prefix = virtual_node_name(binding["spec"]["clusterID"], "")
    secret, mount = binding["spec"]["secretRef"], value_at(binding, "spec", "mountNamespace", default="")

    def physical(resource: Resource, **options: object) -> Informer:
        return manager.add_optional_informer(Informer(below, resource, **options))  # type: ignore[arg-type]

    owner_policies = physical(POLICIES, transform=with_changed_at).allow_missing()
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
        physical_read_client=below,
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
            transform=with_reduced_status,
            indexers={"node": pod_node_name, "refers": reference_keys, "namespace": dependency_namespace},
        ),
        virtual_csi_nodes=manager.informer(CSI_NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid}"),
        placeholders=manager.informer(
            PODS,
            namespace=keys.HOST_PORTS_NAMESPACE,
            labels=f"{keys.HOST_PORTS},{keys.CLUSTER_BINDING_UID}={uid}",
            indexers={"node": pod_node_name},
        ),
        owner_policies=owner_policies.with_managed_fields(),
        physical_nodes=physical(NODES, transform=reduced_physical_node),
        physical_pods=physical(
            PODS, transform=physical_pod_transform(uid, virtual_cluster_uid), indexers={"node": foreign_pod_node}
        ),
        csi_nodes=physical(CSI_NODES),
        mount_namespaces=physical(NAMESPACES, fields=f"metadata.name={mount}"),
        connection_key=connection_key_of(binding),
    )


def with_pod_security(spec: ClusterBindingSpec, level: str) -> ClusterBindingSpec:
    return structs.replace(spec, pod_security=level)


def connection_key_of(binding: Object) -> Object:
    """What a site is built on and cannot change under it."""
    return {field: binding["spec"].get(field) for field in ("secretRef", "mountNamespace")}
