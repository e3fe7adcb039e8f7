"""HTTP interfaces that the authors of kinds add with `Kind.http`, served for each object of the kind.

A caller needs the right to use the subresource with the name of the interface: `create` for POST, `get` for GET,
`update` for PUT, `patch` for PATCH and `delete` for DELETE, and `get` for the object itself. The client of a handler
has the rights of the caller.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiext.access import check_access
from tapestry.apiext.errors import bad_request
from tapestry.apiext.requests import (
    RestRequest,
    RestResponse,
    check_media_type,
    decode_body,
    json_response,
    receive_body,
    resource_path,
    send_request,
)
from tapestry.apiserver.core.workers import run_if_large
from tapestry.client.client import Client
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.api_types import decode_hook
from tapestry.kube.crds import HttpRoute, Kind
from tapestry.kube.errors import KubeError, ServerError, Timeout
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.kube.schemas import to_unstructured
from tapestry.process.logs import logger

log = logger(__name__)

HANDLER_SECONDS = 30.0
"""Seconds after which a handler is cancelled."""

Routes = Mapping[str, list[HttpRoute]]


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A call of an HTTP interface of one object."""

    object: Object
    """The object as it is now."""
    client: Client
    """Client with the rights of the caller."""


def routes_of(kinds: Iterable[Kind[Any]]) -> Routes:
    """Return the HTTP interfaces of kinds by the full name of their resource."""
    found: dict[str, list[HttpRoute]] = {}
    for kind in kinds:
        if kind.http_routes:
            found.setdefault(kind.resource.name, []).extend(kind.http_routes)
    return found


async def call_handler(
    route: HttpRoute, rest_request: RestRequest, resource: Resource, name: str, api: Transport
) -> RestResponse:
    """Authorize the caller, check the arguments, and call the handler for the object."""
    query_arguments = rest_request.query.keys() if route.method == "GET" and route.arguments else ()
    namespace = rest_request.object_namespace(resource, *(each for each in query_arguments if each != "namespace"))
    await check_access(api, route.method, resource, namespace, name, route.name)
    arguments = () if route.arguments is None else (await receive_arguments(route, rest_request),)
    found = await send_request(Request("GET", resource_path(resource, namespace, name)), api)
    doing = f"{route.method} {resource.name}{route.path}"
    try:
        async with asyncio.timeout(HANDLER_SECONDS):
            result = await route.handler(HttpCall(found, Client(api)), *arguments)
    except KubeError:
        raise
    except TimeoutError as error:
        raise Timeout(504, "Timeout", f"{doing} took over {HANDLER_SECONDS:g} s and was cancelled") from error
    except Exception as error:  # the code of another package; its error may contain secrets
        log.exception("handler of an HTTP interface failed", handler=doing, object=name)
        raise ServerError(500, "InternalError", f"{doing} failed; see the log of this process") from error
    return RestResponse(204) if result is None else json_response(200, to_unstructured(result))


async def receive_arguments(route: HttpRoute, rest_request: RestRequest) -> Any:
    """Return the arguments of a call: the query parameters of a GET, otherwise the body."""
    if route.method == "GET":
        given = {name: value for name, value in rest_request.query.items() if name != "namespace"}
        return convert_arguments(route, given, strict=False)
    body = await receive_body(rest_request)
    if not body:
        return convert_arguments(route, {}, strict=True)
    check_media_type(rest_request, JSON)
    return await run_if_large(len(body), lambda: convert_arguments(route, decode_body(body), strict=True))


def convert_arguments(route: HttpRoute, given: Any, *, strict: bool) -> Any:
    assert route.arguments is not None
    if isinstance(given, dict) and (unknown := given.keys() - set(route.arguments.__struct_encode_fields__)):
        raise bad_request(f"{min(unknown)}: no such argument of {route.method} {route.path}")
    try:
        return msgspec.convert(given, route.arguments, strict=strict, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise bad_request(f"the arguments of {route.method} {route.path} are invalid: {error}") from error
