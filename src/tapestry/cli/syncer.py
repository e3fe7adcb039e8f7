"""`tapestry syncer`: process that serves one ClusterBinding."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tapestry.cli.help_text import command
from tapestry.cli.process_runner import SWITCH, Flags, run_process, with_options, with_process_flags
from tapestry.client.delegated_auth import CachedAuth
from tapestry.nodeproxy.kubelet import KubeletServer, kubelet_tls, published_client_cas, serve_kubelet
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.sessions import Sessions
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.process.addresses import parse_address
from tapestry.syncer.app import run_syncer
from tapestry.syncer.components import Syncer
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.virtual_nodes import Endpoint

FLAGS: Flags = {
    "--binding": ("binding", "Name of the ClusterBinding to serve."),
    "--time-zone": ("timeZone", "Time zone of windows without one. [default: UTC]"),
    "--kubelet-address": (
        "kubelet.address",
        "IP:PORT to serve the virtual nodes' kubelet API on; empty disables logs, exec, attach and port-forward.",
    ),
    "--allow-loopback": ("allowLoopback", "Accept a kubeconfig that points to this machine."),
}


@command(
    "tapestry syncer --binding east", "tapestry syncer --config syncer.yaml", zero="stopped, or the binding was deleted"
)
@with_options(FLAGS, {"allowLoopback": SWITCH})
@with_process_flags
def syncer(**flags: Any) -> None:
    """Lease the nodes of one physical cluster until stopped or until the binding is deleted."""
    run_process(SyncerConfig, flags, FLAGS, lambda config: run_syncer(config, os.environ, Path.home(), with_kubelet))


@asynccontextmanager
async def with_kubelet(parts: Syncer) -> AsyncIterator[None]:
    """Serve the kubelet API of the virtual nodes and publish its address in their status."""
    config, virtual = parts.config.kubelet, parts.clients.virtual_reads
    address = parse_address(config.address)
    if address is None:
        yield
        return
    cluster_cas = "" if config.client_ca else await published_client_cas(virtual)
    tls = kubelet_tls(address.host, config.certificate, config.key, config.client_ca, cluster_cas)
    twins, manager = TwinLookup(parts.caches.pod_on_our_nodes, parts.caches.twin_of_pod), parts.manager
    sessions = Sessions(twins, manager.audit, manager.identity)
    manager.run_always("stream-sessions", sessions.watch)
    manager.on_loss(lambda: sessions.end_all("the process lost the leadership"))
    physical, _ = parts.transports
    streams = StreamRelay(twins, physical.upgrade, sessions)
    logs = LogRelay(twins, parts.clients.physical_reads)
    async with serve_kubelet(KubeletServer(CachedAuth(virtual), twins, logs, streams), address, tls) as at:
        parts.kubelet.endpoint = Endpoint(at.host, at.port)
        yield
