"""Syncer of one tenant: runs beside its open plane, with views of the caches of its host cluster.

It has its own manager without election: the process that holds a plane is the only one that runs its syncer. Its
writes to the host cluster are fenced by the right of the process to the plane.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tapestry.apiserver.core.epochs import EpochFence
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.controller import Manager, ObjectCache
from tapestry.controller.config import Metrics, Probes
from tapestry.controller.errors import NotLeading
from tapestry.controller.informer_views import InformerView, PartViews, WholeViews
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.kube.resources import SECRETS, Resource
from tapestry.syncer.clients import Clients
from tapestry.syncer.components import Syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import Shortages
from tapestry.syncer.partition import Partition
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.topdown.namespace_informers import owned_informer
from tapestry.tenants.host_connection import HostConnection, TenantViews
from tapestry.tenants.tenant_binding import TenantBinding
from tapestry.tenants.tenant_caches import tenant_caches
from tapestry.tenants.tenant_set import Tenant

WORKERS = 2
"""Workers of each controller of a tenant. There are many tenants, and each reconcile waits little."""


@dataclass(frozen=True)
class ManagementCaches:
    """Objects of the management API that the syncers of all tenants read."""

    bindings: PartViews
    """Bindings by their UID."""
    hosts: WholeViews
    policies: WholeViews


@dataclass(frozen=True)
class TenantSyncer:
    """A syncer with its parts that end with it."""

    tenant: Tenant
    syncer: Syncer
    binding: TenantBinding
    bindings: ObjectCache
    hosts: InformerView
    views: TenantViews


def tenant_config(tenant: Tenant) -> SyncerConfig:
    return SyncerConfig(
        name="tapestry-syncer",
        binding=tenant.binding_name,
        workers=WORKERS,
        leader_election=SyncerLeaderElection(enabled=False, namespace=""),
        metrics=Metrics(address=""),
        probes=Probes(address=""),
        check_seconds=0,
        kubeconfig_namespaces=(),
    )


def tenant_identity(tenant: Tenant) -> Identity:
    return Identity(
        binding_name=tenant.binding_name,
        binding_uid=tenant.binding_uid,
        virtual_cluster_uid=tenant.plane_id,
        mount_namespace=tenant.namespace,
        manager_namespace="",
        is_tenant=True,
        schedules_on_host=tenant.schedules_on_host,
    )


def build_tenant_syncer(
    tenant: Tenant,
    connect: Callable[[], Transport],
    management: ManagementCaches,
    hold: EpochFence | None,
    now: Callable[[], datetime],
    monotonic: Callable[[], float] = time.monotonic,
) -> TenantSyncer:
    """Build the syncer of a tenant. `connect` returns transports to its plane, whose writes are those of a syncer.

    The caller runs its manager, and then calls `close_tenant_syncer`.
    """
    config, identity = tenant_config(tenant), tenant_identity(tenant)
    manager = Manager(config, connect, identity=f"tapestry-syncer-{tenant.plane_id}", now=now, monotonic=monotonic)
    views = tenant.host.open_views(tenant.binding_uid, tenant.namespace)
    bindings, hosts = management.bindings.open(tenant.binding_uid), management.hosts.open()
    caches = tenant_caches(manager, identity, views, bindings, management.policies.open())
    writes = SwitchableTransport(tenant.host.connect_with, monotonic)
    physical = Client(writes, fence=host_fence(hold, tenant.host), identity=manager.identity)
    unfenced = Client(writes, identity=manager.identity)
    binding = TenantBinding(
        *(identity, caches.bindings, caches.mount_namespaces),
        host_name=tenant.host_name,
        hosts=hosts,
        shared_namespace=views.shared_namespace,
        addresses=tenant.addresses,
    )

    def owned_cache(
        resource: Resource, transform: Transform = slim, indexers: Mapping[str, Indexer] = EMPTY_MAPPING
    ) -> ObjectCache:
        """Return the tenant's objects of a kind. Only the account of the tenant may read its Secrets."""
        if resource is SECRETS:
            informer = owned_informer(identity, unfenced, resource, transform, indexers)
            return manager.add_optional_informer(informer)
        return views.owned_cache(resource, transform, indexers)

    syncer = Syncer(
        config=config,
        manager=manager,
        identity=identity,
        current_binding=binding,
        caches=caches,
        clients=Clients(identity, manager.client, manager.reads, physical, tenant.host.client, manager.events),
        transports=(tenant.host.transport, writes),
        connection_key={},
        partition=Partition(binding, tenant.host.transport, now),
        shortages=Shortages(now),
        owned_cache=owned_cache,
    )
    return TenantSyncer(tenant, syncer, binding, bindings, hosts, views)


async def close_tenant_syncer(running: TenantSyncer, management: ManagementCaches) -> None:
    """Close the views and the transport of a syncer whose manager has stopped."""
    syncer = running.syncer
    management.bindings.close(syncer.identity.binding_uid)
    management.hosts.close(running.hosts)
    management.policies.close(syncer.caches.operator_policies)  # type: ignore[arg-type]  # the view that was opened
    running.views.close()
    await syncer.transports[1].close()


def host_fence(hold: EpochFence | None, host: HostConnection) -> Callable[[], None]:
    """Return a function that raises NotLeading when another process may hold the plane, or another cluster answers."""

    def check() -> None:
        if hold is not None and not hold.is_valid():
            raise NotLeading("this process may not hold the plane any more")
        if host.is_replaced:
            raise NotLeading(f"HostCluster {host.name} is another cluster now")

    return check
