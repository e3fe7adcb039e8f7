"""Node proxies of tenants: the plane calls the kubelet API of its virtual nodes in this process.

The plane has authorized, admitted and counted each request, and audits it. In the host cluster, requests have the
rights of the tenant's account, which has none outside the namespace of the tenant.
"""

import asyncio

from tapestry.client.client import Client
from tapestry.kube.objects import Object, split_key
from tapestry.kube.resources import PODS
from tapestry.nodeproxy.in_process_kubelet import InProcessKubelet
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.sessions import Sessions
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader
from tapestry.planes.open_plane import OpenPlane
from tapestry.syncer.components import Syncer
from tapestry.tenants.tenant_syncer import TenantSyncer
from tapestry.tenants.twin_usage import usage_source


def wire_node_proxies(running: TenantSyncer, plane: OpenPlane) -> None:
    """Serve the kubelet API of the tenant's nodes to its plane while the syncer runs."""
    parts = running.syncer
    manager, access = parts.manager, plane.opened.server.host_access
    sessions = Sessions(twins_of(parts), identity=manager.identity)
    kubelet = in_process_kubelet(parts, sessions)

    async def serve() -> None:
        with access.served_by(kubelet):
            await asyncio.Event().wait()

    manager.run_always("stream-sessions", sessions.watch)
    manager.run_always("node-proxies", serve)


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
