"""Access of the API server of a plane to its host cluster: the nodes, their pods and the metrics API.

The plane has authorized, admitted and counted each request, and audits it. In the host cluster, requests have the
rights of the tenant's account, which has none outside the namespace of the tenant.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apiserver.core.egress import egress_policy
from tapestry.client.client import Client
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, name_of, split_key
from tapestry.kube.resources import CLUSTER_ROLES, PODS
from tapestry.kube.usage import metrics_reader_role
from tapestry.nodeproxy.in_process_kubelet import InProcessKubelet
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.sessions import Sessions
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader
from tapestry.planes.open_plane import OpenPlane
from tapestry.syncer.components import Syncer
from tapestry.tenants.metrics_api import TenantMetrics
from tapestry.tenants.pod_sockets import PodTunnels, TenantPods
from tapestry.tenants.tenant_syncer import TenantSyncer
from tapestry.tenants.twin_usage import usage_source


@dataclass(frozen=True)
class TenantHost:
    """The host cluster of a tenant, for the API server of its plane."""

    nodes: InProcessKubelet
    metrics: TenantMetrics
    pods: TenantPods


def wire_host_access(running: TenantSyncer, plane: OpenPlane) -> None:
    """Connect the API server of a plane with its host cluster while the syncer runs."""
    parts = running.syncer
    manager, access = parts.manager, plane.opened.server.host_access
    sessions = Sessions(twins_of(parts), identity=manager.identity)
    kubelet = in_process_kubelet(parts, sessions)
    pods = tenant_pods(running, plane, kubelet.streams)
    host = TenantHost(kubelet, tenant_metrics(parts, kubelet.usage), pods)

    async def serve() -> None:
        with access.served_by(host):
            await create_reader_role(parts.clients.virtual)
            await asyncio.Event().wait()

    manager.run_always("stream-sessions", sessions.watch)
    manager.run_always("host-access", serve)
    manager.run_always("pod-tunnels", pods.tunnels.run)


async def create_reader_role(virtual: Client) -> None:
    """Create the role that lets all users with the role `view` read the usage, unless it exists."""
    role = metrics_reader_role()
    if await virtual.find(CLUSTER_ROLES, name_of(role)) is None:
        with suppress(AlreadyExists):
            await virtual.create(CLUSTER_ROLES, role)


def tenant_metrics(parts: Syncer, usage: UsageReader) -> TenantMetrics:
    """Return the metrics API of a plane, for the pods and nodes of its tenant."""
    caches = parts.caches
    return TenantMetrics(
        usage,
        nodes=caches.virtual_nodes.store.list,
        pods=lambda: (each.object for each in caches.virtual_pods.store.list() if each.node),
        now=parts.manager.now,
    )


def tenant_pods(running: TenantSyncer, plane: OpenPlane, streams: StreamRelay) -> TenantPods:
    """Return the connections to the pods of a tenant."""

    def host() -> HostClusterSpec | None:
        binding = running.binding.get()
        return binding.host if binding is not None else None

    policy = egress_policy(plane.opened.config)
    return TenantPods(running.syncer.caches, host, PodTunnels(streams), policy.check_pod_of_host)


def twins_of(parts: Syncer) -> TwinLookup:
    return TwinLookup(parts.caches.pod_on_our_nodes, parts.caches.twin_of_pod)


def in_process_kubelet(parts: Syncer, sessions: Sessions) -> InProcessKubelet:
    """Return the kubelet API of a tenant's nodes, with the credentials of the tenant in its host cluster."""
    twins, (_, writes) = twins_of(parts), parts.transports
    physical = Client(writes, identity=parts.manager.identity)

    async def live_pod(key: str) -> Object | None:
        namespace, name = split_key(key)
        return await parts.clients.virtual_reads.find(PODS, name, namespace)

    return InProcessKubelet(
        twins,
        LogRelay(twins, physical),
        StreamRelay(twins, writes.upgrade, sessions),
        UsageReader(usage_source(parts, physical), parts.manager.now),
        live_pod,
    )
