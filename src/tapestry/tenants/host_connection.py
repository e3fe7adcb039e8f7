"""Connection of a process to a host cluster, with the caches that all its tenants of this host share.

The objects of the host are watched once per process: nodes, policies and namespaces of the owner, and the objects of
tenants by our label. The syncer of a tenant gets views of these caches with its own objects. All reads use the
credential of the HostCluster, which may not read Secrets; a tenant writes with a credential of its own.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tapestry.apis import keys
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Transport
from tapestry.controller import Informer, ObjectCache
from tapestry.controller.informer_views import InformerView, PartViews, WholeViews
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import EMPTY_MAPPING, Object, key_of, labels_of, name_of, uid_of
from tapestry.kube.resources import NAMESPACES, NODES, PODS, STORAGE_CLASSES, Resource
from tapestry.process.logs import logger
from tapestry.syncer.cache_transforms import (
    foreign_pod,
    foreign_pod_node,
    reduced_physical_node,
    twin_view,
    with_changed_at,
)
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.views import ForeignPod, PhysicalPod, Twin
from tapestry.tenants.twin_addresses import addresses_of

log = logger(__name__)

PROBE_SECONDS = 5.0
"""Seconds between two probes of the host's API server."""
OWNED = f"{keys.MANAGED_BY}={keys.TAPESTRY},{keys.CLUSTER_BINDING_UID}"
"""Selector of the objects of all bindings in a host cluster."""
IDENTITY_NAMESPACE = "kube-system"
"""Namespace whose UID identifies a cluster."""
SHARED_NAMESPACE = "tapestry-tenants"
"""Namespace in a host cluster whose annotation `tapestry.io/reclaim` is the owner's kill switch for all tenants."""

Connect = Callable[[Access], Transport]


class OwnedForeignPod(ForeignPod, frozen=True, gc=False):
    """A pod of the host with the binding that it belongs to, for which it is not foreign."""

    binding_uid: str = ""


def binding_uid_of(obj: Object) -> str:
    return labels_of(obj).get(keys.CLUSTER_BINDING_UID, "")


def owned_foreign_pod(pod: Object) -> OwnedForeignPod:
    binding_uid, view = binding_uid_of(pod), foreign_pod(pod)
    return OwnedForeignPod(view.uid, view.version, view.node, view.allocation, view.host_ports, binding_uid)


@dataclass(frozen=True)
class TenantViews:
    """Views of the caches of a host with what one tenant may see. The caller closes them."""

    connection: "HostConnection"
    binding_uid: str
    namespace_name: str
    nodes: InformerView
    owner_policies: InformerView
    namespace: InformerView
    """The namespace of the tenant."""
    shared_namespace: InformerView
    """The namespace with the kill switch for all tenants."""
    storage_classes: InformerView
    """All classes of the host."""
    twins: InformerView[PhysicalPod]
    owned: list[PartViews[Any]] = field(default_factory=list)

    def owned_cache(
        self, resource: Resource, transform: Transform = slim, indexers: Mapping[str, Indexer] = EMPTY_MAPPING
    ) -> ObjectCache:
        """Return the cache of the tenant's objects of a kind, with an index by their source."""
        views = self.connection.owned_objects(resource, transform)
        self.owned.append(views)
        return views.open(self.binding_uid, {"source": source_key, **indexers})

    def close(self) -> None:
        connection = self.connection
        connection.nodes.close(self.nodes)
        connection.owner_policies.close(self.owner_policies)
        connection.namespaces.close(self.namespace_name)
        connection.shared_namespace.close(self.shared_namespace)
        connection.storage_classes.close(self.storage_classes)
        connection.twins.close(self.binding_uid)
        for each in self.owned:
            each.close(self.binding_uid)


class HostConnection:
    """Shared connection to one host cluster, and its caches. They are filled while `run` runs."""

    def __init__(
        self, name: str, connect: Connect = HttpTransport, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self._connect = name, connect
        self.transport = SwitchableTransport(connect, monotonic)
        self.client = Client(self.transport)
        """Client with the credential of the HostCluster."""
        self.access: Access | None = None
        self.identity = self.observed_identity = ""
        """UID of the namespace `kube-system` when the connection began, and as read last."""
        self._identity_listeners: list[Callable[[], None]] = []
        self._context = contextvars.copy_context()
        """Context of the process: what the host reports is work of no single plane."""
        self._unstarted: list[ObjectCache[Any]] = []
        self._group: asyncio.TaskGroup | None = None
        self._owned: dict[tuple[Resource, Transform[Any]], PartViews[Any]] = {}
        self._foreign: Informer[OwnedForeignPod] | None = None
        self.nodes = WholeViews(self._informer(NODES, transform=reduced_physical_node))
        policies = self._informer(POLICIES, transform=with_changed_at).allow_missing().with_managed_fields()
        self.owner_policies = WholeViews(policies)
        self.namespaces = PartViews(self._informer(NAMESPACES, labels=OWNED), name_of, name_of)
        self.every_namespace = WholeViews(self.namespaces.source)
        shared = self._informer(NAMESPACES, fields=f"metadata.name={SHARED_NAMESPACE}")
        self.shared_namespace = WholeViews(shared)
        self.storage_classes = WholeViews(self._informer(STORAGE_CLASSES))
        self.twins = PartViews(
            self._informer(PODS, labels=OWNED, transform=twin_view, indexers={"address": addresses_of}),
            binding_uid_of_twin,
            key_of_twin,
        )
        self.every_twin = WholeViews(self.twins.source)

    def _informer(self, resource: Resource, **options: Any) -> Informer[Any]:
        informer: Informer[Any] = Informer(self.client, resource, **options)
        self._start(informer)
        return informer

    def _start(self, informer: Informer[Any]) -> None:
        if self._group is None:
            self._unstarted.append(informer)
        else:
            name = f"host-{self.name}-{informer.resource.plural}"
            self._group.create_task(informer.run(), name=name, context=self._context.copy())

    async def run(self) -> None:
        """Follow the host cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for each in self._unstarted:
                assert isinstance(each, Informer)
                self._start(each)
            self._unstarted.clear()
            await self._probe()

    async def _probe(self) -> None:
        """Read the identity from time to time; each response also shows that the host is reachable."""
        while True:
            with suppress(KubeError, TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    found = uid_of(await self.client.get(NAMESPACES, IDENTITY_NAMESPACE))
                    self.observe_identity(found)
            await asyncio.sleep(PROBE_SECONDS)

    def observe_identity(self, found: str) -> None:
        before, self.observed_identity = self.is_replaced, found
        if self.is_replaced != before:
            log.warning("host cluster is another one", host=self.name, identity=self.identity, observed=found)
            for listener in self._identity_listeners:
                listener()

    @property
    def is_replaced(self) -> bool:
        """True if another cluster answers now. Nothing is written to it."""
        return self.observed_identity != self.identity

    def on_replaced(self, listener: Callable[[], None]) -> None:
        """Call `listener` when another cluster answers, or the first one again."""
        self._identity_listeners.append(listener)

    async def switch_to(self, access: Access, identity: str) -> None:
        """Use a server and its credentials from now on. `identity` is that of the cluster to which they lead."""
        self.access, self.identity, self.observed_identity = access, identity, identity
        await self.transport.switch_to(access)
        log.info("host cluster connected", host=self.name, server=access.server)

    def connect_with(self, access: Access) -> Transport:
        """Return a new transport with other credentials, for example those of a tenant. The caller closes it."""
        return self._connect(access)

    async def close(self) -> None:
        await self.transport.close()

    @property
    def is_synced(self) -> bool:
        """True once the caches are filled. Before that, a missing object may still exist."""
        views = self.nodes, self.owner_policies, self.namespaces, self.shared_namespace, self.twins
        return all(each.source.synced.is_set() for each in views)

    def open_views(self, binding_uid: str, namespace: str) -> TenantViews:
        """Return views for the syncer of a tenant, which has no open views yet."""
        return TenantViews(
            self,
            binding_uid,
            namespace,
            self.nodes.open(),
            self.owner_policies.open(),
            self.namespaces.open(namespace),
            self.shared_namespace.open(),
            self.storage_classes.open(),
            self.twins.open(binding_uid),
        )

    def owned_objects(self, resource: Resource, transform: Transform[Any]) -> PartViews[Any]:
        """Return the objects of all tenants of a kind, by the UIDs of their bindings."""
        views = self._owned.get((resource, transform))
        if views is None:
            informer = self._informer(resource, labels=OWNED, transform=transform)
            views = self._owned[resource, transform] = PartViews(informer, binding_uid_of, key_of)
        return views

    def foreign_pods_for(self, binding_uid: str) -> Callable[[str], Iterator[ForeignPod]]:
        """Return a function that yields the pods on a node that do not belong to a binding."""
        if self._foreign is None:
            indexers = {"node": foreign_pod_node}
            self._foreign = self._informer(PODS, transform=owned_foreign_pod, indexers=indexers)
        pods = self._foreign.store

        def foreign_pods(node: str) -> Iterator[ForeignPod]:
            return (pod for pod in pods.by("node", node) if pod.binding_uid != binding_uid)

        return foreign_pods

    def tenants_at(self, address: str) -> set[str]:
        """Return the UIDs of the bindings whose pods have an address, without addresses of nodes."""
        return {binding_uid_of_twin(each) for each in self.twins.source.store.by("address", address)}

    @property
    def foreign_pods(self) -> Informer[OwnedForeignPod] | None:
        """All pods of the host, if a tenant needs them."""
        return self._foreign


def binding_uid_of_twin(twin: PhysicalPod) -> str:
    assert isinstance(twin, Twin)  # the informer has no other pods
    return binding_uid_of(twin.object)


def key_of_twin(twin: PhysicalPod) -> str:
    assert isinstance(twin, Twin)
    return twin.key
