"""`tapestry syncer`: the process that works for one ClusterBinding."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from tapestry.cli.help_text import help_epilog
from tapestry.cli.process_runner import run_process, with_process_flags
from tapestry.cli.settings import SWITCH
from tapestry.client.delegated_auth import DelegatedAuth
from tapestry.nodeproxy.kubelet import KubeletServer, kubelet_tls, published_client_cas, serve_kubelet
from tapestry.nodeproxy.logs import LogRelay, TwinLookup
from tapestry.process.addresses import parse_address
from tapestry.syncer.app import run_syncer
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.context import SyncContext
from tapestry.syncer.virtual_nodes import Endpoint


@click.command(
    epilog=help_epilog(
        "tapestry syncer --binding east",
        "tapestry syncer --config syncer.yaml",
        zero="it was told to stop, or is unbound",
    )
)
@click.option("--binding", help="The ClusterBinding to work for.")
@click.option("--time-zone", help="Of windows that name none. [default: UTC]")
@click.option("--kubelet-address", help="IP:PORT of the kubelet of its virtual nodes; empty serves no logs.")
@click.option("--allow-loopback", help="Accept a kubeconfig of a cluster on this machine.", **SWITCH)
@with_process_flags
def syncer(
    binding: str | None,
    time_zone: str | None,
    kubelet_address: str | None,
    allow_loopback: bool | None,
    **flags: Any,
) -> None:
    """Lease the nodes of one physical cluster, until told to stop or unbound."""
    own = {
        "binding": binding,
        "timeZone": time_zone,
        "kubelet.address": kubelet_address,
        "allowLoopback": allow_loopback,
    }
    run_process(SyncerConfig, flags, own, lambda config: run_syncer(config, os.environ, Path.home(), with_kubelet))


@asynccontextmanager
async def with_kubelet(sync_context: SyncContext) -> AsyncIterator[None]:
    """Answer for the virtual nodes of a site, which then say where."""
    config, above = sync_context.config.kubelet, sync_context.manager.reads
    wanted = parse_address(config.address)
    if wanted is None:
        yield
        return
    published = "" if config.client_ca else await published_client_cas(above)
    tls = kubelet_tls(wanted.host, config.certificate, config.key, config.client_ca, published)
    logs = LogRelay(
        TwinLookup(sync_context.pod_on_our_nodes, sync_context.twin_of_pod, sync_context.physical_read_client)
    )
    async with serve_kubelet(KubeletServer(DelegatedAuth(above), logs), wanted, tls) as at:
        sync_context.kubelet.endpoint = Endpoint(at.host, at.port)
        yield
