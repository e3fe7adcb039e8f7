"""Kubeconfigs of planes with short-lived credentials, which the management API issues at `planes/NAME/kubeconfig`.

A caller needs the right to `create` the subresource `kubeconfig` of Planes. The credentials give any rights in the
plane that the caller asks for, but none outside it.
"""

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Protocol

import yaml
from msgspec import Meta

from tapestry.apiext.interfaces import HttpCall, Routes
from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import http_route
from tapestry.kube.objects import name_of

MAX_SECONDS = 365 * 24 * 3600
MASTERS = "system:masters"


class KubeconfigArguments(ApiStruct):
    """User of a kubeconfig, and the lifetime of its credentials."""

    user: Annotated[str, Meta(min_length=1, max_length=253, description="User name in the plane.")] = "admin"
    groups: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...],
        Meta(max_length=64, description="Groups of the user in the plane."),
    ] = (MASTERS,)
    seconds: Annotated[int, Meta(ge=60, le=MAX_SECONDS, description="Lifetime of the credentials.")] = 3600
    by_path: Annotated[
        bool,
        Meta(description="Select the plane by the path of its URL, for clients that cannot set a TLS server name."),
    ] = False


class KubeconfigResult(ApiStruct):
    """A kubeconfig as YAML, and the time at which its credentials expire."""

    kubeconfig: str
    expires: datetime


@dataclass(frozen=True)
class PlaneEndpoint:
    """Address of a plane, and how its certificate is verified."""

    server: str
    """URL of the plane."""
    ca_pem: str
    """CA of the serving certificate."""
    tls_server_name: str = ""
    """Name in the TLS handshake that selects the plane; empty if its path does."""


class EndpointOf(Protocol):
    def __call__(self, plane_id: str, /, *, by_path: bool) -> PlaneEndpoint: ...


IssueToken = Callable[[str, str, tuple[str, ...], timedelta], Awaitable[tuple[str, datetime]]]
"""Creates a token in a plane for a user and groups; returns its text and its expiry."""


def kubeconfig_routes(endpoint_of: EndpointOf, issue_token: IssueToken) -> Routes:
    """Return the HTTP interface of Planes that issues kubeconfigs."""

    async def kubeconfig(call: HttpCall, arguments: KubeconfigArguments) -> KubeconfigResult:
        id = plane_id(call.object)
        token, expires = await issue_token(id, arguments.user, arguments.groups, timedelta(seconds=arguments.seconds))
        document = plane_kubeconfig(name_of(call.object), endpoint_of(id, by_path=arguments.by_path), {"token": token})
        return KubeconfigResult(yaml.safe_dump(document, sort_keys=False), expires)

    return {PLANES.name: [http_route("POST", "/kubeconfig", kubeconfig)]}


def plane_kubeconfig(name: str, endpoint: PlaneEndpoint, user: dict[str, str]) -> dict[str, object]:
    cluster = {
        "server": endpoint.server,
        "certificate-authority-data": base64.b64encode(endpoint.ca_pem.encode()).decode(),
    }
    if endpoint.tls_server_name:
        cluster["tls-server-name"] = endpoint.tls_server_name
    return kubeconfig_document(name, cluster, user)
