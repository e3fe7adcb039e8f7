"""Access to the host cluster of a server whose nodes and pods belong to another cluster.

The objects of such a server are written by users who are not trusted with the network of its process. So the server
does not connect to any address in its Nodes, pods, Services and EndpointSlices. It calls the syncer of its host
cluster in this process, by the names of nodes and pods, and the syncer decides what they are.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tapestry.apiserver.core.requests import Call, Query
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object
from tapestry.streams.upgrade import Headers, UpgradeResponse


class NodeProxy(Protocol):
    """The kubelet API of all nodes of a server. The caller has authorized the request."""

    async def get(self, node: str, path: str, query: Query) -> ApiResponse:
        """Respond to a GET request to the kubelet of a node. Raises ApiError."""
        ...

    async def upgrade(self, node: str, method: str, target: str, headers: Headers, user: str) -> UpgradeResponse:
        """Respond to a request for exec, attach or portForward. Raises ApiError; the server may also refuse."""
        ...


class MetricsApi(Protocol):
    """The API `metrics.k8s.io/v1beta1` of a server. The caller has authorized the request."""

    async def handle(self, call: Call) -> ApiResponse:
        """Respond to a request below `/apis/metrics.k8s.io/v1beta1`. Raises ApiError."""
        ...


class PodUnreachable(OSError):
    """Error if no pod can be connected. The message says why, and is for users of the server."""


class PodSockets(Protocol):
    """Connections to the pods of a server, which run in its host cluster. The caller has authorized the request."""

    async def connect_pod(self, namespace: str, name: str, port: int) -> socket.socket:
        """Return a socket that is connected to a port of a pod. Raises PodUnreachable or OSError."""
        ...

    async def connect_service(self, service: Object, port: int) -> socket.socket:
        """Return a socket that is connected to a ready pod behind a port of a Service. Raises likewise."""
        ...


class Syncer(Protocol):
    """Services of the syncer of a host cluster for the server of its plane."""

    @property
    def nodes(self) -> NodeProxy: ...

    @property
    def metrics(self) -> MetricsApi: ...

    @property
    def pods(self) -> PodSockets: ...


@dataclass
class HostAccess:
    """The host cluster of a server, while its syncer runs."""

    is_required: Callable[[], bool] = field(default=lambda: False)
    """Return whether nodes and pods belong to a host cluster, so that none of their addresses may be called."""
    syncer: Syncer | None = None

    @contextmanager
    def served_by(self, syncer: Syncer) -> Iterator[None]:
        """Serve the nodes and pods of the server in the context."""
        self.syncer = syncer
        try:
            yield
        finally:
            if self.syncer is syncer:
                self.syncer = None

    def nodes(self) -> NodeProxy | None:
        """Return the proxy of all nodes; None if the server calls kubelets. Raises Unavailable without a syncer."""
        syncer = self.current()
        return syncer.nodes if syncer is not None else None

    def pods(self) -> PodSockets | None:
        """Return the connections to pods; None if the server connects to addresses. Raises Unavailable likewise."""
        syncer = self.current()
        return syncer.pods if syncer is not None else None

    def current(self) -> Syncer | None:
        """Return the syncer; None if the server has no host cluster. Raises Unavailable if it does not run."""
        if self.syncer is None and self.is_required():
            raise not_connected()
        return self.syncer


def not_connected() -> Unavailable:
    why = "the host cluster of this server is not connected now; try again later"
    return Unavailable(503, "ServiceUnavailable", why, details={"retryAfterSeconds": 5})
