"""The metrics API (`metrics.k8s.io/v1beta1`) of a local cluster, for `kubectl top` and autoscalers.

It serves the usage of the nodes whose kubelets run in this process, and of virtual nodes, as an aggregated API server
behind an APIService. Only the API server can connect, with its front proxy certificate. It has authorized each request.
"""

import base64
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.client.client import Client
from tapestry.controller import Informer
from tapestry.controlplane.labeled_pods import LabeledPods
from tapestry.kube.objects import Object, key_of, labels_of, name_of, namespace_of
from tapestry.kube.resources import API_SERVICES, CLUSTER_ROLES, NODE_METRICS, POD_METRICS, SERVICES
from tapestry.kube.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    parse_field_selector,
    parse_label_selector,
)
from tapestry.kube.usage import (
    PodUsage,
    metrics_list,
    metrics_reader_role,
    metrics_resources,
    node_metrics,
    pod_metrics,
)
from tapestry.process.addresses import Address
from tapestry.process.logs import logger
from tapestry.process.probes import bound_socket, serve_app

log = logger(__name__)

GROUP, VERSION = "metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
SERVICE, NAMESPACE = "tapestry-metrics", "kube-system"
API_SERVICE = f"{VERSION}.{GROUP}"


class UsageSource(Protocol):
    """Some nodes of the cluster, and the usage of their pods."""

    @property
    def nodes(self) -> Informer: ...

    async def usages(self, nodes: Sequence[Object]) -> list[Sequence[PodUsage] | None]:
        """Return the usage of the pods on each node, or None for a node whose usage is not available."""
        ...


@dataclass(frozen=True)
class MetricsServer:
    """HTTP handlers of the metrics API for the nodes of some sources."""

    sources: Sequence[UsageSource]
    pods: LabeledPods
    """Pods on nodes."""
    now: Callable[[], datetime]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(ROOT, self.discovery)
        app.router.add_get(f"{ROOT}/nodes", self.list_nodes)
        app.router.add_get(f"{ROOT}/nodes/{{name}}", self.get_node)
        app.router.add_get(f"{ROOT}/pods", self.list_pods)
        app.router.add_get(f"{ROOT}/namespaces/{{namespace}}/pods", self.list_pods)
        app.router.add_get(f"{ROOT}/namespaces/{{namespace}}/pods/{{name}}", self.get_pod)
        return app

    async def discovery(self, _: web.Request) -> web.Response:
        return web.json_response(metrics_resources())

    async def list_nodes(self, request: web.Request) -> web.Response:
        now, (labels, fields) = self.now(), selectors_of(request)
        nodes = [name_of(each) for each in self.nodes() if is_selected(each, labels, fields)]
        items = [node_metrics(node, usages, now) for node, usages in await self.usages(nodes)]
        return list_response(NODE_METRICS.kind, items)

    async def get_node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for node, usages in await self.usages([name]):
            return web.json_response(node_metrics(node, usages, self.now()))
        return not_found("nodes", name)

    async def list_pods(self, request: web.Request) -> web.Response:
        now, namespace, (labels, fields) = self.now(), request.match_info.get("namespace"), selectors_of(request)
        pods = self.pods.matching(namespace, labels)
        keys = {key_of(pod) for pod in pods if is_selected(pod, labels, fields)}
        found = await self.usages({pod["spec"]["nodeName"] for pod in pods})
        items = [pod_metrics(each, now) for _, usages in found for each in usages if key_of(each.pod) in keys]
        return list_response(POD_METRICS.kind, items)

    async def get_pod(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        pod = self.pods.get(f"{namespace}/{name}")
        for _, usages in await self.usages([pod["spec"]["nodeName"]] if pod is not None else []):
            for usage in usages:
                if (namespace_of(usage.pod), name_of(usage.pod)) == (namespace, name):
                    return web.json_response(pod_metrics(usage, self.now()))
        return not_found("pods", f"{namespace}/{name}")

    def nodes(self) -> Iterator[Object]:
        return (node for source in self.sources for node in source.nodes.store.list())

    async def usages(self, names: Iterable[str]) -> list[tuple[Object, Sequence[PodUsage]]]:
        """Return the nodes of these names whose usage is available, with the usage of their pods."""
        found = []
        for source in self.sources:
            nodes = [node for node in map(source.nodes.store.get, names) if node is not None]
            pairs = zip(nodes, await source.usages(nodes), strict=True)
            found += [(node, usages) for node, usages in pairs if usages is not None]
        return found


def selectors_of(request: web.Request) -> tuple[LabelSelector, FieldSelector]:
    """Return the selectors of a request. Raise an HTTP error if one is invalid."""
    try:
        labels = parse_label_selector(request.query.get("labelSelector", ""))
        return labels, parse_field_selector(request.query.get("fieldSelector", ""))
    except SelectorError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def is_selected(obj: Object, labels: LabelSelector, fields: FieldSelector) -> bool:
    identity = {"metadata.name": name_of(obj), "metadata.namespace": namespace_of(obj) or ""}
    return labels.matches(labels_of(obj)) and fields.matches(identity)


def list_response(kind: str, items: list[Object]) -> web.Response:
    return web.json_response(metrics_list(kind, items))


def not_found(plural: str, name: str) -> web.Response:
    details = {"name": name, "group": GROUP, "kind": plural}
    message = f'{plural}.{GROUP} "{name}" not found'
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return web.json_response({**status, "reason": "NotFound", "details": details, "code": 404}, status=404)


# -- registration


@asynccontextmanager
async def serve_metrics_api(
    server: MetricsServer, client: Client, folder: Path, front_proxy_ca: Path
) -> AsyncIterator[None]:
    """Serve the API on a loopback port while the context is open, and register it with the API server."""
    authority = CertificateAuthority(folder)
    tls = server_ssl_context(*authority.server_certificate([f"{SERVICE}.{NAMESPACE}.svc"]), [front_proxy_ca])
    tls.verify_mode = ssl.CERT_REQUIRED
    async with serve_app(server.app(), bound_socket(Address("127.0.0.1", 0)), tls) as port:
        await register(client, port, authority.certificate_pem())
        yield


async def register(client: Client, port: int, ca: str) -> None:
    """Create or update the objects of this API. An APIService that names another Service is left alone."""
    desired = api_service_object(port, base64.b64encode(ca.encode()).decode())
    current = await client.find(API_SERVICES, API_SERVICE)
    if current is not None and (current["spec"].get("service") or {}).get("name") != SERVICE:
        log.info("metrics API not registered: the cluster has another one", api_service=API_SERVICE)
        return
    for resource, obj in ((SERVICES, service_object()), (CLUSTER_ROLES, metrics_reader_role())):
        existing = await client.find(resource, name_of(obj), namespace_of(obj))
        await client.converge(resource, existing, obj)
    await client.converge(API_SERVICES, current, desired)


def service_object() -> Object:
    return {
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }


def api_service_object(port: int, ca_bundle: str) -> Object:
    spec = {
        "group": GROUP,
        "version": VERSION,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": SERVICE, "namespace": NAMESPACE, "port": port},
        "caBundle": ca_bundle,
    }
    return {"metadata": {"name": API_SERVICE}, "spec": spec}
