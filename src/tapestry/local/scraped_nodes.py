"""Resource usage of virtual nodes, for the metrics API of a local cluster.

It is requested from the syncers, as metrics-server does.  Only syncers that run as pods of this machine are called: the
address of a node is in its status, and everybody who can change that could otherwise choose where we connect to.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import msgspec

from tapestry.apis.keys import NODE_TYPE, NODE_TYPE_VIRTUAL
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials
from tapestry.client.http_transport import HttpTransport
from tapestry.client.tls import KeyPair, Pem, ServerVerification, TlsContextSource
from tapestry.client.transport import Request, Transport
from tapestry.controller import Informer, Manager
from tapestry.kube.errors import KubeError, error_from_body
from tapestry.kube.objects import Object, name_of, uid_of, value_at
from tapestry.kube.quantity import NANOS
from tapestry.kube.resources import NODES
from tapestry.kube.times import parse_time
from tapestry.kube.usage import ContainerUsage, PodUsage
from tapestry.local.control_planes import KUBELET_CLIENT
from tapestry.local.nodes import PROCESS_POD_NETWORK
from tapestry.process.logs import logger

log = logger(__name__)

CACHE_SECONDS = 10.0
"""Seconds for which the usage of a node is used, or its absence."""
SCRAPE_TIMEOUT = 5.0
"""Seconds for the requests to all nodes."""
MAX_CONCURRENT_SCRAPES = 16
MAX_SUMMARY_BYTES = 4 << 20


@dataclass(slots=True)
class ScrapedNodes:
    """Virtual nodes of the cluster, and the usage of their pods."""

    connect: Callable[[str], Transport]
    """Open a transport to the kubelet API at a URL."""
    nodes: Informer
    pods: Informer
    monotonic: Callable[[], float] = time.monotonic
    _cache: dict[str, tuple[float, Sequence[PodUsage] | None]] = field(default_factory=dict, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _transports: dict[str, Transport] = field(
        default_factory=dict, init=False
    )  # by URL: the nodes of a syncer share one

    async def usages(self, nodes: Sequence[Object]) -> list[Sequence[PodUsage] | None]:
        """Return the usage of the pods on each node, or None for a node whose usage is not available."""
        async with self._lock:
            now = self.monotonic()
            self._cache = {name: each for name, each in self._cache.items() if now - each[0] < CACHE_SECONDS}
            missing = [each for each in nodes if name_of(each) not in self._cache]
            slots, deadline = (
                asyncio.Semaphore(MAX_CONCURRENT_SCRAPES),
                asyncio.get_running_loop().time() + SCRAPE_TIMEOUT,
            )
            async with asyncio.TaskGroup() as group:
                tasks = {name_of(each): group.create_task(self._scrape(each, slots, deadline)) for each in missing}
            self._cache.update({name: (now, task.result()) for name, task in tasks.items()})
            await self._close_unused()
            return [self._cache[name_of(each)][1] for each in nodes]

    async def close(self) -> None:
        for transport in self._transports.values():
            await transport.close()

    async def _close_unused(self) -> None:
        used = {kubelet_url(each) for each in self.nodes.store.list()}
        for url in self._transports.keys() - used:
            await self._transports.pop(url).close()

    async def _scrape(self, node: Object, slots: asyncio.Semaphore, deadline: float) -> Sequence[PodUsage] | None:
        path, url = f"/nodes/{name_of(node)}/stats/summary", kubelet_url(node)
        if url is None:
            return None
        if url not in self._transports:
            self._transports[url] = self.connect(url)
        request = Request("GET", path, timeout=SCRAPE_TIMEOUT, max_body=MAX_SUMMARY_BYTES)
        try:
            async with asyncio.timeout_at(deadline), slots:
                response = await self._transports[url].send(request)
            if response.status >= 300:
                raise error_from_body(response.status, response.body, action=str(request))
            return [*self._pod_usages(msgspec.json.decode(response.body))]
        except (KubeError, TimeoutError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.info("usage of node not available", node=name_of(node), error=str(error))
            return None

    def _pod_usages(self, summary: Object) -> Iterator[PodUsage]:
        """Yield the usage of the pods in a summary that exist in this cluster."""
        for each in summary["pods"]:
            reference = each["podRef"]
            pod = self.pods.store.get(f"{reference['namespace']}/{reference['name']}")
            if pod is not None and uid_of(pod) == reference["uid"]:
                containers = [container_usage(container) for container in each["containers"]]
                yield PodUsage(pod, containers, parse_time(each["cpu"]["time"]))


def container_usage(summary: Object) -> ContainerUsage:
    cpu, memory = summary["cpu"], int(summary["memory"]["workingSetBytes"])
    cores, core_seconds = (cpu[key] / NANOS for key in ("usageNanoCores", "usageCoreNanoSeconds"))
    return ContainerUsage(summary["name"], parse_time(summary["startTime"]), cores, core_seconds, memory)


def kubelet_url(node: Object) -> str | None:
    """Return the URL of a virtual node's kubelet API, if a pod of this machine serves it."""
    host = value_at(node, "status", "addresses", 0, "address", default="")
    port = value_at(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
    try:
        is_local = IPv4Address(host) in PROCESS_POD_NETWORK
    except ValueError:
        return None
    return f"https://{host}:{port}" if is_local and port else None


def kubelet_transport(cluster: Path, url: str) -> Transport:
    """Open a transport with the API server's certificate.  As there, the kubelet's own is not verified."""
    verification = ServerVerification(insecure=True)
    pems = [Pem("API server", cluster / "pki" / f"{KUBELET_CLIENT}.{part}") for part in ("crt", "key")]
    credentials = Credentials(tls=TlsContextSource(verification, KeyPair(*pems)))
    return HttpTransport(Access(url, credentials, verification=verification))


def scraped_nodes(manager: Manager, cluster: Path, pods: Informer) -> ScrapedNodes:
    """Return the virtual nodes of a cluster, with all pods on nodes."""
    nodes = manager.informer(NODES, labels=f"{NODE_TYPE}={NODE_TYPE_VIRTUAL}")
    return ScrapedNodes(partial(kubelet_transport, cluster), nodes, pods)
