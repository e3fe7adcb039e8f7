"""The metrics API of a tenant's plane: the usage of its pods, which the host cluster measures.

The host cluster is asked only when there is a request, and at most once in `nodeproxy.usage.CACHE_SECONDS`. The usage
of a node is that of the tenant's pods on it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse, json_response
from tapestry.kube.errors import Unavailable
from tapestry.kube.objects import Object, labels_of, name_of, namespace_of
from tapestry.kube.resources import NODE_METRICS, POD_METRICS
from tapestry.kube.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from tapestry.kube.usage import PodUsage, metrics_list, metrics_resources, node_metrics, pod_metrics
from tapestry.nodeproxy.usage import UsageReader, UsageUnavailable

ROOT = f"/apis/{NODE_METRICS.api_version}"


@dataclass(frozen=True)
class TenantMetrics:
    """Handler of requests to `metrics.k8s.io/v1beta1`."""

    usage: UsageReader
    nodes: Callable[[], Iterable[Object]]
    """Return the nodes of the plane."""
    pods: Callable[[], Iterable[Object]]
    """Return the pods of the plane that are bound to a node."""
    now: Callable[[], datetime]

    async def handle(self, call: Call) -> ApiResponse:
        """Respond to an authorized request. Raises ApiError."""
        if call.method not in ("GET", "HEAD"):
            raise api_errors.method_not_allowed()
        match call.path.removeprefix(ROOT).strip("/").split("/"):
            case [""]:
                return json_response(200, metrics_resources())
            case ["nodes"]:
                selected = selection(call)
                return list_response(NODE_METRICS.kind, await self._nodes([n for n in self.nodes() if selected(n)]))
            case ["nodes", name]:
                found = await self._nodes([each for each in self.nodes() if name_of(each) == name])
                return only(found, "nodes", name)
            case ["pods"]:
                return await self._list_pods(call, None)
            case ["namespaces", namespace, "pods"]:
                return await self._list_pods(call, namespace)
            case ["namespaces", namespace, "pods", name]:
                pods = [each for each in self.pods() if (namespace_of(each), name_of(each)) == (namespace, name)]
                return only(await self._pods(pods), "pods", name)
        raise api_errors.path_not_found()

    async def _list_pods(self, call: Call, namespace: str | None) -> ApiResponse:
        selected = selection(call)
        pods = [each for each in self.pods() if namespace in (None, namespace_of(each)) and selected(each)]
        return list_response(POD_METRICS.kind, await self._pods(pods))

    async def _pods(self, pods: list[Object]) -> list[Object]:
        now = self.now()
        return [pod_metrics(each, now) for each in await self._measurements(pods)]

    async def _nodes(self, nodes: list[Object]) -> list[Object]:
        now, by_node = self.now(), dict[str, list[PodUsage]]()
        for each in await self._measurements(self.pods()):
            by_node.setdefault(each.pod["spec"]["nodeName"], []).append(each)
        return [node_metrics(node, by_node.get(name_of(node), []), now) for node in nodes]

    async def _measurements(self, pods: Iterable[Object]) -> list[PodUsage]:
        try:
            return await self.usage.measurements(pods)
        except UsageUnavailable as error:
            raise Unavailable(503, "ServiceUnavailable", str(error)) from error


def selection(call: Call) -> Callable[[Object], bool]:
    """Return whether the selectors of a call select an object. Raises BadRequest."""
    try:
        labels: LabelSelector = parse_label_selector(call.query.get("labelSelector", ""))
        fields: FieldSelector = parse_field_selector(call.query.get("fieldSelector", ""))
    except SelectorError as error:
        raise api_errors.bad_request(str(error)) from error

    def selects(obj: Object) -> bool:
        identity = {"metadata.name": name_of(obj), "metadata.namespace": namespace_of(obj) or ""}
        return labels.matches(labels_of(obj)) and fields.matches(identity)

    return selects


def list_response(kind: str, items: list[Object]) -> ApiResponse:
    return json_response(200, metrics_list(kind, items))


def only(found: list[Object], plural: str, name: str) -> ApiResponse:
    if not found:
        raise api_errors.not_found(POD_METRICS if plural == "pods" else NODE_METRICS, name)
    return json_response(200, found[0])
