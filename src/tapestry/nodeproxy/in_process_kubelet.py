"""The kubelet API of virtual nodes for the API server in the same process, without a listener.

The API server has authorized each request. It names the node, and finds only pods on that node.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.kube.conditions import find_condition, is_condition_false
from tapestry.kube.errors import BadRequest, NotFound, Unavailable
from tapestry.kube.objects import Object, key_of, name_of, uid_of, value_at
from tapestry.nodeproxy.kubelet import PROMETHEUS, no_pod_error
from tapestry.nodeproxy.logs import LogRelay
from tapestry.nodeproxy.physical_errors import LOG, STREAMS, Subresource
from tapestry.nodeproxy.stream_relay import StreamRelay
from tapestry.nodeproxy.stream_requests import stream_target
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.nodeproxy.usage import UsageReader, UsageUnavailable
from tapestry.streams.upgrade import Headers, UpgradeResponse

TEXT_PLAIN = "text/plain"


@dataclass(frozen=True, slots=True)
class LogStream:
    """The log of a container as a response body."""

    log: AsyncGenerator[bytes, None]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self.log

    def end(self) -> None:
        """Do nothing: the reader closes the generator, or the event loop does if nobody reads it."""


@dataclass(frozen=True)
class InProcessKubelet:
    """The kubelet API of all virtual nodes of a syncer."""

    twins: TwinLookup
    logs: LogRelay
    streams: StreamRelay
    usage: UsageReader
    live_pod: Callable[[str], Awaitable[Object | None]]
    """Read a virtual pod with its status, by its key."""

    async def get(self, node: str, path: str, query: Mapping[str, str]) -> ApiResponse:
        """Respond to a GET request to the kubelet of a node. Raise the error of a kubelet."""
        match path.split("/")[1:]:
            case ["containerLogs", namespace, name, container]:
                pod = await self._pod(node, namespace, name, LOG)
                return ApiResponse(200, b"", TEXT_PLAIN, stream=LogStream(await self.logs.open(query, pod, container)))
            case ["metrics", "resource"]:
                return ApiResponse(200, await self._usage(node, self.usage.resource_metrics), PROMETHEUS)
            case ["stats", "summary"]:
                return ApiResponse(200, await self._usage(node, self.usage.stats_summary))
            case ["healthz"]:
                self._node(node)
                return ApiResponse(200, b"ok", TEXT_PLAIN)
        raise NotFound(404, "NotFound", "a virtual node serves containerLogs, metrics/resource and stats/summary")

    async def upgrade(self, node: str, method: str, target: str, headers: Headers, user: str) -> UpgradeResponse:
        """Respond to a request for exec, attach or portForward. Raise the error of a kubelet."""
        path, _, query = target.partition("?")
        found = stream_target(path)
        if found is None:
            raise NotFound(404, "NotFound", "a virtual node serves exec, attach and portForward")
        pod = await self._pod(node, found.namespace, found.pod, STREAMS[found.subresource])
        if found.uid not in ("", uid_of(pod)):
            raise no_pod_error(found.pod)
        lower = [(name.lower(), value) for name, value in headers]
        return await self.streams.connect(method, lower, found, query, pod, user)

    def _node(self, name: str) -> Object:
        node = self.usage.source.node(name)
        if node is None:
            raise NotFound(404, "NotFound", f'"{name}" is not a virtual node of this syncer')
        return node

    async def _usage(self, name: str, read: Callable[[Object], Awaitable[bytes]]) -> bytes:
        try:
            return await read(self._node(name))
        except UsageUnavailable as error:
            raise Unavailable(503, "ServiceUnavailable", str(error)) from error

    async def _pod(self, node: str, namespace: str, name: str, subresource: Subresource) -> Object:
        """Return a pod on a node that has a twin. If the syncer has reported why it has none, the error says so."""
        pod = self.twins.pod(f"{namespace}/{name}")
        if pod is None or value_at(pod, "spec", "nodeName") != node:
            raise no_pod_error(name)
        if self.twins.twin(pod) is None:
            live = await self.live_pod(key_of(pod))
            if live is not None and is_condition_false(live, keys.MAPPED_CONDITION):
                condition = find_condition(live["status"]["conditions"], keys.MAPPED_CONDITION) or {}
                reason = condition.get("message") or condition.get("reason") or "unknown reason"
                problem = f'pod "{name_of(pod)}" does not run in the host cluster: {reason}'
                raise BadRequest(400, "BadRequest", f"{problem}; {subresource.without_twin}")
        return pod
