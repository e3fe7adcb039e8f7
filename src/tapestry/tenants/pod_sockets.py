"""Connections of the API server of a plane to pods of its tenant: for webhooks, API servers and proxy subresources.

Nothing that users of the plane write is ever an address here (`service_targets`). The host cluster reports the
addresses of twins, and is not trusted either: the process connects to those in the ranges that the operator lists in
the HostCluster, and never to its own machine, to metadata services or to services of the operator. All other pods are
reached by port-forward, through the API of the host cluster and with the rights of the tenant's account. That also
works if the nodes of the host cluster are leased from yet another cluster.

In both cases, TLS is between the API server and the pod.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apiserver.core.egress import AddressNotAllowed
from tapestry.apiserver.core.host_access import PodUnreachable
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, key_of, name_of, namespace_of, uid_of
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.stream_requests import StreamTarget
from tapestry.process.logs import logger
from tapestry.streams.connection import Connection
from tapestry.streams.forwarded_connection import UPGRADE_HEADERS, forward_connection
from tapestry.streams.sockets import connection_on, socket_to
from tapestry.syncer.caches import Caches
from tapestry.syncer.translate.metadata import virtual_uid
from tapestry.tenants.network_rules import contains, parsed_range, parsed_ranges
from tapestry.tenants.service_targets import (
    CallTarget,
    Candidate,
    is_selected,
    pod_target,
    service_selector,
    service_targets,
)

log = logger(__name__)

DIRECT_SECONDS = 3.0
"""Seconds after which a pod that does not answer at its address is reached by port-forward."""
PAUSE_SECONDS = 60.0
"""Seconds without further attempts to connect to addresses of pods after one had no route."""
MAX_ATTEMPTS = 3
"""Number of pods of a Service that are tried."""
MAX_TUNNELS = 256
"""Maximum number of connections of a plane by port-forward."""
HEADERS = tuple((name.lower(), value) for name, value in UPGRADE_HEADERS)


class AddressCheck(Protocol):
    def __call__(self, host: str, /, *, may_be_local: bool) -> None:
        """Raise AddressNotAllowed for an address to which the process must not connect."""


@dataclass(eq=False)
class PodTunnels:
    """Sockets that lead to pods by port-forward, while `run` runs."""

    streams: StreamRelay
    _group: asyncio.TaskGroup | None = field(default=None, init=False)
    _count: int = field(default=0, init=False)

    async def run(self) -> None:
        """Copy the bytes of all sockets until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def open(self, pod: Object, port: int) -> socket.socket:
        """Return a socket that leads to a port of a pod. Raises PodUnreachable."""
        if self._group is None:
            raise PodUnreachable("the host cluster of this server is not connected now")
        if self._count >= MAX_TUNNELS:
            raise PodUnreachable(f"there are {self._count} connections to pods, which is the limit; try again later")
        target = StreamTarget("portforward", namespace_of(pod) or "", name_of(pod), uid=uid_of(pod))
        self._count += 1
        try:
            response = await self.streams.connect("POST", HEADERS, target, "", pod, APISERVER_USER.name)
            if response.connection is None:
                raise PodUnreachable(f'pod "{name_of(pod)}": {response.body.decode(errors="replace")}')
            return await self._socket_to(response.connection, pod, port)
        except ApiError as error:
            raise PodUnreachable(f'pod "{name_of(pod)}": {error.message}') from error
        finally:
            self._count -= 1

    async def _socket_to(self, backend: Connection, pod: Object, port: int) -> socket.socket:
        """Return a new socket whose bytes are copied from and to a connection."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        try:
            local = await connection_on(ours)
            if self._group is None:
                raise PodUnreachable("the host cluster of this server was disconnected just now")
        except BaseException:
            backend.abort()
            ours.close()
            theirs.close()
            raise
        self._count += 1
        self._group.create_task(self._forward(local, backend, pod, port))
        return theirs

    async def _forward(self, local: Connection, backend: Connection, pod: Object, port: int) -> None:
        try:
            await forward_connection(local, backend, port)
        except (OSError, ExceptionGroup) as error:  # the caller sees that its end is closed
            log.debug("connection to a pod ended by an error", pod=key_of(pod), port=port, error=str(error))
        finally:
            self._count -= 1


@dataclass(eq=False)
class TenantPods:
    """Sockets to pods of a tenant, for the API server of its plane."""

    caches: Caches
    host: Callable[[], HostClusterSpec | None]
    """Return the HostCluster of the tenant; None while it is not known."""
    tunnels: PodTunnels
    check_address: AddressCheck
    connect: Callable[[str, int], Awaitable[socket.socket]] = socket_to
    monotonic: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    _direct_after: float = field(default=float("-inf"), init=False)

    async def connect_pod(self, namespace: str, name: str, port: int) -> socket.socket:
        """Return a socket that is connected to a port of a pod. Raises PodUnreachable or OSError."""
        candidate = self._candidate(f"{namespace}/{name}")
        if candidate is None:
            raise PodUnreachable(f'pod "{name}" does not run in the host cluster')
        return await self._connect(pod_target(*candidate, port))

    async def connect_service(self, service: Object, port: int) -> socket.socket:
        """Return a socket that is connected to a ready pod behind a port of a Service. Raises likewise."""
        candidates = self._selected(namespace_of(service) or "", service_selector(service))
        found = service_targets(service, port, candidates)
        targets = self.random.sample(found, k=min(len(found), MAX_ATTEMPTS))
        for each in targets[:-1]:
            try:
                return await self._connect(each)
            except OSError:  # another pod may answer
                continue
        return await self._connect(targets[-1])

    def _selected(self, namespace: str, selector: Mapping[str, str]) -> Iterator[Candidate]:
        for pod in self.caches.virtual_pods.store.list():
            is_of_service = namespace_of(pod.object) == namespace and is_selected(pod.object, selector)
            if is_of_service and (candidate := self._candidate(pod.key)) is not None:
                yield candidate

    def _candidate(self, key: str) -> Candidate | None:
        """Return a pod on a node of the plane, and the twin that was created for this very pod."""
        pod, twin = self.caches.pod_on_our_nodes(key), self.caches.twin_of(key)
        return (pod, twin) if pod is not None and twin is not None and virtual_uid(twin.object) == uid_of(pod) else None

    async def _connect(self, target: CallTarget) -> socket.socket:
        address = self._direct_address(target)
        if address is not None:
            try:
                async with asyncio.timeout(DIRECT_SECONDS):
                    return await self.connect(address, target.port)
            except ConnectionRefusedError:
                raise
            except OSError as error:
                self._direct_after = self.monotonic() + PAUSE_SECONDS
                why = error.strerror or type(error).__name__
                log.warning("address of a pod has no route", address=address, pod=key_of(target.pod), error=why)
        return await self.tunnels.open(target.pod, target.port)

    def _direct_address(self, target: CallTarget) -> str | None:
        """Return the address of a pod if the process may connect to it, and had a route before."""
        host = self.host()
        if host is None or not host.pod_ranges or self.monotonic() < self._direct_after:
            return None
        ranges = parsed_ranges(host.pod_ranges)
        for each in target.addresses:
            address = parsed_range(each)
            if address is None or not any(contains(outer, address) for outer in ranges):
                continue
            try:
                self.check_address(each, may_be_local=host.allow_loopback)
            except AddressNotAllowed:
                continue
            return each
        return None
