"""Kubeconfigs of planes with short-lived credentials, which the management API issues at `planes/NAME/kubeconfig`.

A caller needs the right to `create` the subresource `kubeconfig` of Planes. The credentials give any rights in the
plane that the caller asks for, but none outside it.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Protocol

import yaml
from msgspec import Meta

from tapestry.apiext.interfaces import HttpCall
from tapestry.apis.planes import plane_id
from tapestry.apiserver.core import api_errors
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.kube.api_types import ApiStruct
from tapestry.kube.crds import HttpRoute, http_route
from tapestry.kube.objects import name_of
from tapestry.planes.plane_keys import PlaneKeys

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
    client_certificate: Annotated[bool, Meta(description="Issue a client certificate instead of a token.")] = False
    by_path: Annotated[
        bool,
        Meta(
            description="Select the plane by the path of its URL, for clients that cannot set a TLS server name. No "
            "client certificates are accepted then."
        ),
    ] = False
    own_port: Annotated[
        bool, Meta(description="Select the plane by its own port, for clients that cannot set a TLS server name.")
    ] = False


class KubeconfigResult(ApiStruct):
    """A kubeconfig as YAML, and the id and the expiry of its credentials."""

    kubeconfig: str
    expires: datetime
    id: str
    """ID of the token or serial number of the certificate, by which it can be revoked."""


@dataclass(frozen=True)
class PlaneEndpoint:
    """Address of a plane, and how its certificate is verified."""

    server: str
    """URL of the plane."""
    ca_pem: str
    """CA of the serving certificate."""
    tls_server_name: str = ""
    """Name in the TLS handshake that selects the plane; empty if its path or its port does."""


class EndpointOf(Protocol):
    def __call__(self, plane_id: str, /, *, by_path: bool, own_port: bool) -> PlaneEndpoint: ...


def kubeconfig_route(endpoint_of: EndpointOf, keys: PlaneKeys) -> HttpRoute:
    """Return the HTTP interface of Planes that issues kubeconfigs."""

    async def kubeconfig(call: HttpCall, arguments: KubeconfigArguments) -> KubeconfigResult:
        if arguments.by_path and (arguments.client_certificate or arguments.own_port):
            raise api_errors.bad_request("byPath: neither clientCertificate nor ownPort can be used with it")
        id, lifetime = plane_id(call.object), timedelta(seconds=arguments.seconds)
        endpoint = endpoint_of(id, by_path=arguments.by_path, own_port=arguments.own_port)
        if arguments.client_certificate:
            issued = await keys.issue_certificate(id, arguments.user, arguments.groups, lifetime)
            credential_id, expires = issued.serial, issued.expires
            user = {
                "client-certificate-data": in_base64(issued.certificate_pem),
                "client-key-data": in_base64(issued.key_pem),
            }
        else:
            token, text = await keys.issue_token(id, arguments.user, arguments.groups, lifetime)
            credential_id, expires, user = token.id, token.expires, {"token": text}
        document = plane_kubeconfig(name_of(call.object), endpoint, user)
        return KubeconfigResult(yaml.safe_dump(document, sort_keys=False), expires, credential_id)

    return http_route("POST", "/kubeconfig", kubeconfig)


def plane_kubeconfig(name: str, endpoint: PlaneEndpoint, user: Mapping[str, object]) -> dict[str, object]:
    cluster = {"server": endpoint.server, "certificate-authority-data": in_base64(endpoint.ca_pem.encode())}
    if endpoint.tls_server_name:
        cluster["tls-server-name"] = endpoint.tls_server_name
    return kubeconfig_document(name, cluster, user)


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
