"""Plain REST API: routes requests and translates them to Kubernetes API requests.

The `Transport` sends requests with the caller's credentials.  The API server authorizes them; this module does not.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.access import check_access
from tapestry.apiext.errors import bad_request, limit_error, method_not_allowed, not_found
from tapestry.apiext.event_stream import CONTENT_TYPE, Selection, open_event_stream
from tapestry.apiext.interfaces import Routes, call_handler
from tapestry.apiext.list_query import ListQuery, parse_list_query
from tapestry.apiext.lists import MAX_FULL_LISTS, filtered_page, server_page
from tapestry.apiext.openapi import openapi_document
from tapestry.apiext.requests import (
    ROOT,
    RestRequest,
    RestResponse,
    check_media_type,
    decode_body,
    decode_object,
    error_response,
    json_response,
    receive_body,
    resource_path,
    send,
    send_request,
    transport_error_body,
)
from tapestry.apiext.resource_mapper import VERBS, ResourceMapper, shortest_name
from tapestry.apiserver.core.fairness import FairQueue
from tapestry.apiserver.core.workers import run_if_large
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.budget import BudgetExceeded
from tapestry.kube.errors import ApiError, Conflict, TransportError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRICT = {"fieldValidation": "Strict"}
"""Reject misspelled fields, which would otherwise be dropped silently."""
REPLACE_ATTEMPTS = 5


class RestApi:
    """Request handler for the resources of a mapper and the HTTP interfaces of kinds."""

    def __init__(self, resource_mapper: ResourceMapper, routes: Routes | None = None) -> None:
        self._resource_mapper = resource_mapper
        self._routes = routes or {}
        self._openapi = openapi_document(self._routes)
        self._full_lists = FairQueue(MAX_FULL_LISTS)

    async def handle(self, rest_request: RestRequest, api: Transport) -> RestResponse:
        """Return the response; errors become responses, too."""
        try:
            return await self._route(rest_request, api)
        except ApiError as error:
            return error_response(error)
        except BudgetExceeded as error:
            return error_response(limit_error(error))
        except TransportError as error:
            return json_response(502, transport_error_body(error, f"{rest_request.method} {rest_request.path}"))

    async def _route(self, rest_request: RestRequest, api: Transport) -> RestResponse:
        segments = rest_request.path.strip("/").split("/")
        if rest_request.is_watch and (segments[0] != "v1" or len(segments) not in (2, 3)):
            raise bad_request("watch: only objects can be watched")  # watches are not subject to request limits
        match segments:
            case ["openapi.json"]:
                check_method(rest_request, "GET")
                return json_response(200, self._openapi)
            case ["v1"]:
                check_method(rest_request, "GET")
                return await self._index(api)
            case ["v1", kind]:
                check_method(rest_request, "GET", "POST")
                resource = await self._resource_mapper.find(kind, api)
                if rest_request.method == "POST":
                    return await create_object(rest_request, resource, api)
                return await list_objects(rest_request, resource, api, self._full_lists)
            case ["v1", kind, name]:
                check_method(rest_request, *OBJECT_HANDLERS)
                resource = await self._resource_mapper.find(kind, api)
                handler = OBJECT_HANDLERS.get(rest_request.method, get_object)
                return await handler(rest_request, resource, name, api)
            case ["v1", kind, name, action] if self._routes:
                resource = await self._resource_mapper.find(kind, api)
                routes = {each.method: each for each in self._routes.get(resource.name, ()) if each.name == action}
                if routes:
                    if rest_request.method not in routes:
                        raise method_not_allowed(rest_request.method, ", ".join(routes))
                    return await call_handler(routes[rest_request.method], rest_request, resource, name, api)
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
                "shortNames": info.short_names,
                "verbs": [verb for verb in VERBS if verb in info.verbs],
                "actions": [f"{each.method} {each.path}" for each in self._routes.get(resource.name, ())],
                "path": f"{ROOT}/v1/{name}",
            }
            for resource, info in served.items()
        ]
        return json_response(200, {"kinds": sorted(listed, key=lambda each: str(each["name"]))})


async def list_objects(
    rest_request: RestRequest, resource: Resource, api: Transport, full_lists: FairQueue
) -> RestResponse:
    list_query = parse_list_query({name: value for name, value in rest_request.query.items() if name != "watch"})
    if list_query.namespace and not resource.namespaced:
        raise bad_request(f"namespace: {resource.name} are not namespaced; omit it")
    if rest_request.is_watch:
        if not rest_request.query.keys() <= {"watch", "namespace", "filter"}:
            raise bad_request("watch: valid with it are namespace and filter")
        return await watch_objects(Selection(resource, list_query), rest_request, api)
    if list_query.needs_full_list:
        return await filtered_page(list_query, resource, api, full_lists)
    return await server_page(list_query, resource, api)


async def watch_objects(selection: Selection, rest_request: RestRequest, api: Transport) -> RestResponse:
    stream = await open_event_stream(selection, api, rest_request.last_event_id)
    return RestResponse(200, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"}, stream=stream)


async def get_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    namespace = rest_request.object_namespace(resource, "watch")
    path = resource_path(resource, namespace, name)
    if rest_request.is_watch:
        return await watch_objects(Selection(resource, ListQuery(namespace), name), rest_request, api)
    return await send_for_object(Request("GET", path), resource, api)


async def create_object(rest_request: RestRequest, resource: Resource, api: Transport) -> RestResponse:
    """Create an object. Without a namespace in the query, the caller must have the right in `default`."""
    namespace = rest_request.namespace()
    check_media_type(rest_request, JSON)
    await check_access(api, "POST", resource, rest_request.object_namespace(resource))
    body = await receive_body(rest_request)
    request = await run_if_large(len(body), create_request, body, resource, namespace)
    return await send_for_object(request, resource, api, 201)


def create_request(body: bytes, resource: Resource, namespace: str | None) -> Request:
    obj = flat_objects.object_from_body(decode_body(body), resource, namespace)
    return strict_request("POST", resource_path(resource, obj["metadata"].get("namespace")), obj)


async def replace_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    """Replace an object; without a version in the body, the last writer wins."""
    check_media_type(rest_request, JSON)
    namespace = rest_request.object_namespace(resource)
    path = resource_path(resource, namespace, name)
    await check_access(api, "PUT", resource, namespace, name)
    encoded = await receive_body(rest_request)
    body = await run_if_large(len(encoded), decode_body, encoded)
    for attempt in range(REPLACE_ATTEMPTS):
        current = await send(Request("GET", path), api)
        size = len(encoded) + len(current)
        request = await run_if_large(size, replace_request, body, current, resource, path)
        is_conditional = "metadata" in body or body.get("version") is not None
        try:
            return await send_for_object(request, resource, api)
        except Conflict:
            if is_conditional or attempt == REPLACE_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def replace_request(body: Any, current: bytes, resource: Resource, path: str) -> Request:
    return strict_request("PUT", path, flat_objects.replacement(body, decode_object(current, path), resource))


async def patch_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    """Change an object by a merge patch of its flat form, or by a JSON patch of the object itself."""
    check_media_type(rest_request, MERGE_PATCH, JSON, JSON_PATCH)
    namespace = rest_request.object_namespace(resource)
    path = resource_path(resource, namespace, name)
    await check_access(api, "PATCH", resource, namespace, name)
    body = await receive_body(rest_request)
    if rest_request.media_type == JSON_PATCH:
        request = Request("PATCH", path, STRICT, body, JSON_PATCH)
    else:
        request = await run_if_large(len(body), merge_request, body, path, name, namespace)
    return await send_for_object(request, resource, api)


def merge_request(body: bytes, path: str, name: str, namespace: str | None) -> Request:
    return strict_request("PATCH", path, flat_objects.merge_patch(decode_body(body), name, namespace), MERGE_PATCH)


async def delete_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    namespace = rest_request.object_namespace(resource)
    found = await send_request(Request("DELETE", resource_path(resource, namespace, name)), api)
    pending = found.get("kind") != "Status" and "deletionTimestamp" in found["metadata"]
    return json_response(202 if pending else 200, {"name": name, "namespace": namespace, "deleted": not pending})


OBJECT_HANDLERS = {"GET": get_object, "PUT": replace_object, "PATCH": patch_object, "DELETE": delete_object}


def strict_request(method: str, path: str, body: Object, content_type: str = JSON) -> Request:
    return Request(method, path, STRICT, msgspec.json.encode(body), content_type)


async def send_for_object(request: Request, resource: Resource, api: Transport, status: int = 200) -> RestResponse:
    """Send a request whose response is one object, and return it in flat form."""
    found = await send(request, api)
    return await run_if_large(len(found), object_response, found, resource, status)


def object_response(raw: bytes, resource: Resource, status: int) -> RestResponse:
    flat = flat_objects.full_object(decode_object(raw, resource.name), resource)
    if status != 201:
        return json_response(status, flat)
    where = f"?namespace={quote(flat['namespace'])}" if flat["namespace"] else ""
    return json_response(status, flat, {"Location": f"{ROOT}/v1/{resource.name}/{quote(flat['name'])}{where}"})


def check_method(rest_request: RestRequest, *methods: str) -> None:
    if rest_request.method not in methods and not (rest_request.method == "HEAD" and "GET" in methods):
        raise method_not_allowed(rest_request.method, ", ".join(methods))
