"""Plain REST API: routes requests and translates them to Kubernetes API requests.

The `Transport` sends requests with the caller's credentials.  The API server authorizes them; this module does not.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.errors import bad_request, error_body, method_not_allowed, not_found
from tapestry.apiext.list_query import Candidate, ListQuery, parse_list_query
from tapestry.apiext.openapi import openapi_document
from tapestry.apiext.resource_mapper import VERBS, ResourceMapper, shortest_name
from tapestry.client.responses import OBJECT_DECODER, decode_response
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.errors import ApiError, TooLarge, TransportError, UnsupportedMediaType, error_from_body
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

ROOT = "/apiext"
BATCH = 500
"""Objects per request to the API server."""
MAX_OBJECTS_READ = 20_000
"""Objects of a kind that can be filtered and sorted; for more, use a namespace or a cursor."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """Request; `path` is relative to /apiext and unquoted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class RestResponse:
    """Response with a JSON body."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class RestApi:
    """Request handler for the resources of a mapper."""

    def __init__(self, resource_mapper: ResourceMapper) -> None:
        self._resource_mapper = resource_mapper

    async def handle(self, rest_request: RestRequest, api: Transport) -> RestResponse:
        """Return the response; errors become responses, too."""
        try:
            return await self._route(rest_request, api)
        except ApiError as error:
            return error_response(error)
        except TransportError as error:  # the error text contains the server's address; do not send it to web pages
            log.warning("API server did not respond", request=f"{rest_request.method} {rest_request.path}", error=error)
            return json_response(
                502, {"code": 502, "reason": "BadGateway", "message": "the API server did not respond; try again"}
            )

    async def _route(self, rest_request: RestRequest, api: Transport) -> RestResponse:
        match rest_request.path.strip("/").split("/"):
            case ["openapi.json"]:
                check_method(rest_request, "GET")
                return json_response(200, openapi_document())
            case ["v1"]:
                check_method(rest_request, "GET")
                return await self._index(api)
            case ["v1", kind]:
                check_method(rest_request, "GET", "POST")
                resource = await self._resource_mapper.find(kind, api)
                return await (list_objects if rest_request.method != "POST" else create_object)(
                    rest_request, resource, api
                )
            case ["v1", kind, name]:
                check_method(rest_request, "GET", "DELETE")
                resource = await self._resource_mapper.find(kind, api)
                return await (get_object if rest_request.method != "DELETE" else delete_object)(
                    rest_request, resource, name, api
                )
        raise not_found(f"no resource at {rest_request.path or '/'}; use {ROOT}/v1 and {ROOT}/openapi.json")

    async def _index(self, api: Transport) -> RestResponse:
        served = await self._resource_mapper.all(api)
        listed = [
            {
                "name": (name := shortest_name(resource, served)),
                "kind": resource.kind,
                "group": resource.group,
                "version": resource.version,
                "namespaced": resource.namespaced,
                "verbs": [verb for verb in VERBS if verb in verbs],
                "path": f"{ROOT}/v1/{name}",
            }
            for resource, verbs in served.items()
        ]
        return json_response(200, {"kinds": sorted(listed, key=lambda each: str(each["name"]))})


async def list_objects(rest_request: RestRequest, resource: Resource, api: Transport) -> RestResponse:
    list_query = parse_list_query(rest_request.query)
    if list_query.namespace and not resource.namespaced:
        raise bad_request(f"namespace: {resource.name} are not namespaced; omit it")
    return await (filtered_page if list_query.needs_full_list else server_page)(list_query, resource, api)


async def server_page(list_query: ListQuery, resource: Resource, api: Transport) -> RestResponse:
    """Return a page of the API server's own list."""
    found = await fetch_list(list_query, resource, api, list_query.limit, list_query.cursor)
    items = [flat_objects.object_outline(each, resource) for each in found["items"] or ()]
    next_cursor = found["metadata"].get("continue") or None
    remaining = found["metadata"].get("remainingItemCount") if next_cursor else 0
    total = (
        None if list_query.cursor or remaining is None else len(items) + remaining
    )  # the number of objects before a cursor is unknown
    unpaged = {"page": None, "pages": None, "next": next_cursor}
    return json_response(200, {"items": items, "total": total, "limit": list_query.limit, **unpaged})


async def filtered_page(list_query: ListQuery, resource: Resource, api: Transport) -> RestResponse:
    """Read all matching objects and return one page of them."""
    matching: list[Candidate] = []
    read, next_cursor = 0, ""
    while True:
        found = await fetch_list(list_query, resource, api, BATCH, next_cursor)
        candidates = (Candidate(each, flat_objects.full_object(each, resource)) for each in found["items"] or ())
        matching += [each for each in candidates if list_query.matches(each)]
        read += len(found["items"] or ())
        next_cursor = found["metadata"].get("continue") or ""
        if not next_cursor:
            break
        if read >= MAX_OBJECTS_READ:
            advice = "query one namespace, or page with a cursor instead of filter, sort and page"
            raise TooLarge(413, "TooLarge", f"there are more than {MAX_OBJECTS_READ} {resource.name}; {advice}")
        await asyncio.sleep(0)  # an in-process server responds without waiting; yield to other tasks
    total = len(matching)
    items = [flat_objects.object_outline(each.obj, resource) for each in list_query.page_of(matching)]
    paged = {"page": list_query.page or 1, "pages": list_query.page_count(total), "next": None}
    return json_response(200, {"items": items, "total": total, "limit": list_query.limit, **paged})


async def fetch_list(list_query: ListQuery, resource: Resource, api: Transport, limit: int, cursor: str) -> Object:
    query = {"limit": str(limit), **({"continue": cursor} if cursor else {})}
    return await send_request(Request("GET", resource_path(resource, list_query.namespace), query), api)


async def get_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    found = await send_request(
        Request("GET", resource_path(resource, object_namespace(rest_request, resource), name)), api
    )
    return json_response(200, flat_objects.full_object(found, resource))


async def create_object(rest_request: RestRequest, resource: Resource, api: Transport) -> RestResponse:
    if rest_request.content_type.partition(";")[0].strip().lower() != JSON:
        message = f"Content-Type: {rest_request.content_type or 'nothing'} is not supported; send {JSON}"
        raise UnsupportedMediaType(415, "UnsupportedMediaType", message)
    obj = flat_objects.object_from_body(decode_body(rest_request.body), resource, namespace_parameter(rest_request))
    path = resource_path(resource, obj["metadata"].get("namespace"))
    # Strict: misspelled fields would otherwise be dropped silently.
    request = Request("POST", path, {"fieldValidation": "Strict"}, msgspec.json.encode(obj))
    created = flat_objects.full_object(await send_request(request, api), resource)
    where = f"?namespace={quote(created['namespace'])}" if created["namespace"] else ""
    return json_response(201, created, {"Location": f"{ROOT}/v1/{resource.name}/{quote(created['name'])}{where}"})


async def delete_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    namespace = object_namespace(rest_request, resource)
    found = await send_request(Request("DELETE", resource_path(resource, namespace, name)), api)
    pending = found.get("kind") != "Status" and "deletionTimestamp" in found["metadata"]
    return json_response(202 if pending else 200, {"name": name, "namespace": namespace, "deleted": not pending})


async def send_request(request: Request, api: Transport) -> Object:
    """Return the decoded response; raise the error that the API server returns."""
    response = await api.send(request)
    if response.status >= 300:
        raise error_from_body(response.status, response.body)
    return decode_response(OBJECT_DECODER, response.body, str(request))


def decode_body(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def object_namespace(rest_request: RestRequest, resource: Resource) -> str | None:
    return flat_objects.namespace_for(None, namespace_parameter(rest_request), resource)


def namespace_parameter(rest_request: RestRequest) -> str | None:
    for name in rest_request.query:
        if name != "namespace":
            raise bad_request(f"{name}: no such parameter; valid is namespace")
    return rest_request.query.get("namespace") or None


def resource_path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    try:
        return resource.path(namespace, name)
    except (ValueError, TypeError) as error:
        raise bad_request(str(error)) from error


def check_method(rest_request: RestRequest, *methods: str) -> None:
    if rest_request.method not in methods and not (rest_request.method == "HEAD" and "GET" in methods):
        raise method_not_allowed(rest_request.method, ", ".join(methods))


def json_response(status: int, body: Object, headers: Mapping[str, str] | None = None) -> RestResponse:
    return RestResponse(status, msgspec.json.encode(body), headers or {})


def error_response(error: ApiError) -> RestResponse:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(int(error.retry_after))
    if error.code == 405 and "allowed" in error.details:
        headers["Allow"] = str(error.details["allowed"])
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.code, error_body(error), headers)
