"""The REST table: the HTTP method and the path of each RPC. gRPC, REST and the OpenAPI document have the same messages.

A path parameter, a query parameter and a field of the body are fields of the request message. A verb after a colon is a
custom method.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.protobuf.descriptor import MethodDescriptor

from tapestry.vclusters.api import vcluster_api_pb2 as api

VCLUSTERS = "/v1/namespaces/{namespace}/vclusters"
VCLUSTER = f"{VCLUSTERS}/{{name}}"
BODY_IS_MESSAGE = "*"
"""The body has all fields of the request that are not in the path."""


@dataclass(frozen=True)
class Route:
    """One entry of the table."""

    http_method: str
    template: str
    method: str
    """Name of the RPC."""
    body: str = ""
    """Field of the request that the body is, `*` for the whole request, or nothing for a request without a body."""
    status: int = 200
    etag_of: str = ""
    """Field of the response whose etag is the header ETag. `.` is the response itself."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+(?:\.\w+)*)}", self.template))


def write(template: str, method: str, **options: Any) -> Route:
    return Route("POST", template, method, **{"body": BODY_IS_MESSAGE, **options})


ROUTES = (
    write(VCLUSTERS, "CreateVCluster", status=202, etag_of="vcluster"),
    Route("GET", VCLUSTER, "GetVCluster", etag_of="vcluster"),
    Route("GET", "/v1/vclusters/{id}", "GetVCluster", etag_of="vcluster"),
    Route("GET", "/v1/vclusters", "ListVClusters"),
    Route("GET", VCLUSTERS, "ListVClusters"),
    Route("PATCH", VCLUSTER, "UpdateVCluster", body=BODY_IS_MESSAGE, status=202, etag_of="vcluster"),
    Route("DELETE", VCLUSTER, "DeleteVCluster", status=202),
    write(f"{VCLUSTER}:scale", "ScaleVCluster", status=202, etag_of="vcluster"),
    write(f"{VCLUSTER}:suspend", "SuspendVCluster", status=202, etag_of="vcluster"),
    write(f"{VCLUSTER}:resume", "ResumeVCluster", status=202, etag_of="vcluster"),
    write(f"{VCLUSTER}:snapshot", "SnapshotVCluster", status=202, etag_of="snapshot"),
    write(f"{VCLUSTER}:restore", "RestoreVCluster", status=202, etag_of="vcluster"),
    write(f"{VCLUSTER}:generateKubeconfig", "GetVClusterKubeconfig"),
    Route("GET", f"{VCLUSTER}:watch", "WatchVCluster"),
    Route("GET", f"{VCLUSTERS}:watch", "WatchVCluster"),
    Route("GET", "/v1/vclusters:watch", "WatchVCluster"),
    Route("GET", "/v1/namespaces/{namespace}/vclusters/{vcluster_name}/snapshots", "ListSnapshots"),
    Route("GET", "/v1/snapshots", "ListSnapshots"),
    Route("GET", "/v1/snapshots/{id}", "GetSnapshot", etag_of="snapshot"),
    Route("DELETE", "/v1/snapshots/{id}", "DeleteSnapshot"),
    Route("GET", "/v1/operations", "ListOperations"),
    Route("GET", "/v1/operations/{id}", "GetOperation"),
    write("/v1/operations/{id}:wait", "WaitOperation"),
    write("/v1/operations/{id}:cancel", "CancelOperation"),
    Route("DELETE", "/v1/operations/{id}", "DeleteOperation"),
    write("/v1/projects", "CreateProject", body="project", status=201, etag_of="."),
    Route("GET", "/v1/projects", "ListProjects"),
    Route("GET", "/v1/projects/{name}", "GetProject", etag_of="."),
    Route("PATCH", "/v1/projects/{project.name}", "UpdateProject", body="project", etag_of="."),
    Route("DELETE", "/v1/projects/{name}", "DeleteProject"),
    Route("GET", "/v1/quotas", "ListQuotas"),
    Route("GET", "/v1/projects/{project}/quota", "GetQuota", etag_of="."),
    Route("PATCH", "/v1/projects/{quota.project}/quota", "UpdateQuota", body="quota", etag_of="."),
    write("/v1/hostclusters", "CreateHostCluster", status=201, etag_of="."),
    Route("GET", "/v1/hostclusters", "ListHostClusters"),
    Route("GET", "/v1/hostclusters/{name}", "GetHostCluster", etag_of="."),
    Route("PATCH", "/v1/hostclusters/{host_cluster.name}", "UpdateHostCluster", body=BODY_IS_MESSAGE, etag_of="."),
    Route("DELETE", "/v1/hostclusters/{name}", "DeleteHostCluster"),
    write("/v1/accesskeys", "CreateAccessKey", body="access_key", status=201, etag_of="access_key"),
    Route("GET", "/v1/accesskeys", "ListAccessKeys"),
    Route("GET", "/v1/accesskeys/{id}", "GetAccessKey", etag_of="."),
    Route("DELETE", "/v1/accesskeys/{id}", "DeleteAccessKey"),
    Route("GET", "/v1/auditrecords", "ListAuditRecords"),
    Route("GET", "/v1/auditrecords:export", "ExportAuditRecords"),
    write("/v1/auditrecords:verify", "VerifyAuditRecords"),
)


def rpcs() -> Iterator[MethodDescriptor]:
    """Yield all RPCs of the contract."""
    for service in api.DESCRIPTOR.services_by_name.values():
        yield from service.methods


RPCS: Mapping[str, MethodDescriptor] = {each.name: each for each in rpcs()}


@dataclass(frozen=True)
class Match:
    """A route, with the values of its path parameters."""

    route: Route
    parameters: Mapping[str, str]


def shape_of(path: str) -> tuple[int, str]:
    """Return the number of segments of a path, and its custom verb. Few routes have the same."""
    segments = path.split("/")
    return len(segments), segments[-1].partition(":")[2]


def routes_by_shape() -> dict[tuple[int, str], list[tuple[re.Pattern[str], Route]]]:
    found: dict[tuple[int, str], list[tuple[re.Pattern[str], Route]]] = {}
    for route in ROUTES:
        pattern = re.sub(r"{[\w.]+}", "([^/:]+)", route.template)
        found.setdefault(shape_of(route.template), []).append((re.compile(pattern), route))
    return found


BY_SHAPE = routes_by_shape()


def match_route(http_method: str, path: str) -> Match | list[str]:
    """Return the route of a request. Without one, return the HTTP methods that the path has; none if there is no path.

    `path` is still percent-encoded, so that a parameter can have any character.
    """
    allowed = []
    for pattern, route in BY_SHAPE.get(shape_of(path), ()):
        found = pattern.fullmatch(path)
        if found is None:
            continue
        if route.http_method == http_method:
            values = (unquote(each, errors="replace") for each in found.groups())
            return Match(route, dict(zip(route.parameters, values, strict=True)))
        allowed.append(route.http_method)
    return allowed
