"""Plain REST API: routes requests and translates them to Kubernetes API requests.

The `Transport` sends requests with the caller's credentials.  The API server authorizes them; this module does not.
"""

import asyncio
from urllib.parse import quote

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.errors import bad_request, method_not_allowed, not_found
from tapestry.apiext.event_stream import CONTENT_TYPE, Selection, open_event_stream
from tapestry.apiext.interfaces import Routes, call_handler
from tapestry.apiext.list_query import Candidate, ListQuery, parse_list_query
from tapestry.apiext.openapi import openapi_document
from tapestry.apiext.requests import (
    ROOT,
    RestRequest,
    RestResponse,
    decode_body,
    error_response,
    json_response,
    resource_path,
    send_request,
    transport_error_body,
)
from tapestry.apiext.resource_mapper import VERBS, ResourceMapper, shortest_name
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.errors import ApiError, Conflict, TooLarge, TransportError
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

BATCH = 500
"""Objects per request to the API server."""
MAX_OBJECTS_READ = 20_000
"""Objects of a kind that can be filtered and sorted; for more, use a namespace or a cursor."""
MERGE_PATCH, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRICT = {"fieldValidation": "Strict"}
"""Rejects misspelled fields, which would otherwise be dropped silently."""
REPLACE_ATTEMPTS = 5


class RestApi:
    """Request handler for the resources of a mapper and the HTTP interfaces of kinds."""

    def __init__(self, resource_mapper: ResourceMapper, routes: Routes | None = None) -> None:
        self._resource_mapper = resource_mapper
        self._routes = routes or {}
        self._openapi = openapi_document(self._routes)

    async def handle(self, rest_request: RestRequest, api: Transport) -> RestResponse:
        """Return the response; errors become responses, too."""
        try:
            return await self._route(rest_request, api)
        except ApiError as error:
            return error_response(error)
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
                return await (list_objects if rest_request.method != "POST" else create_object)(
                    rest_request, resource, api
                )
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


async def list_objects(rest_request: RestRequest, resource: Resource, api: Transport) -> RestResponse:
    list_query = parse_list_query({name: value for name, value in rest_request.query.items() if name != "watch"})
    if list_query.namespace and not resource.namespaced:
        raise bad_request(f"namespace: {resource.name} are not namespaced; omit it")
    if rest_request.is_watch:
        if not rest_request.query.keys() <= {"watch", "namespace", "filter"}:
            raise bad_request("watch: valid with it are namespace and filter")
        return await watch_objects(Selection(resource, list_query), rest_request, api)
    return await (filtered_page if list_query.needs_full_list else server_page)(list_query, resource, api)


async def watch_objects(selection: Selection, rest_request: RestRequest, api: Transport) -> RestResponse:
    stream = await open_event_stream(selection, api, rest_request.last_event_id)
    return RestResponse(200, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"}, stream=stream)


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
    namespace = rest_request.object_namespace(resource, "watch")
    path = resource_path(resource, namespace, name)
    if rest_request.is_watch:
        return await watch_objects(Selection(resource, ListQuery(namespace), name), rest_request, api)
    return json_response(200, flat_objects.full_object(await send_request(Request("GET", path), api), resource))


async def create_object(rest_request: RestRequest, resource: Resource, api: Transport) -> RestResponse:
    obj = flat_objects.object_from_body(decode_body(rest_request), resource, rest_request.namespace())
    path = resource_path(resource, obj["metadata"].get("namespace"))
    created = flat_objects.full_object(await write("POST", path, obj, api), resource)
    where = f"?namespace={quote(created['namespace'])}" if created["namespace"] else ""
    return json_response(201, created, {"Location": f"{ROOT}/v1/{resource.name}/{quote(created['name'])}{where}"})


async def replace_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    """Replace an object; without a version in the body, the last writer wins."""
    body = decode_body(rest_request)
    path = resource_path(resource, rest_request.object_namespace(resource), name)
    for attempt in range(REPLACE_ATTEMPTS):
        current = await send_request(Request("GET", path), api)
        obj = flat_objects.replacement(body, current, resource)
        is_conditional = "metadata" in body or body.get("version") is not None
        try:
            return json_response(200, flat_objects.full_object(await write("PUT", path, obj, api), resource))
        except Conflict:
            if is_conditional or attempt == REPLACE_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


async def patch_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    """Change an object by a merge patch of its flat form, or by a JSON patch of the object itself."""
    body = decode_body(rest_request, MERGE_PATCH, JSON, JSON_PATCH)
    namespace = rest_request.object_namespace(resource)
    path = resource_path(resource, namespace, name)
    content_type = JSON_PATCH if rest_request.media_type == JSON_PATCH else MERGE_PATCH
    patch = body if content_type == JSON_PATCH else flat_objects.merge_patch(body, name, namespace)
    changed = await write("PATCH", path, patch, api, content_type)
    return json_response(200, flat_objects.full_object(changed, resource))


async def delete_object(rest_request: RestRequest, resource: Resource, name: str, api: Transport) -> RestResponse:
    namespace = rest_request.object_namespace(resource)
    found = await send_request(Request("DELETE", resource_path(resource, namespace, name)), api)
    pending = found.get("kind") != "Status" and "deletionTimestamp" in found["metadata"]
    return json_response(202 if pending else 200, {"name": name, "namespace": namespace, "deleted": not pending})


OBJECT_HANDLERS = {"GET": get_object, "PUT": replace_object, "PATCH": patch_object, "DELETE": delete_object}


async def write(method: str, path: str, body: Object, api: Transport, content_type: str = JSON) -> Object:
    return await send_request(Request(method, path, STRICT, msgspec.json.encode(body), content_type), api)


def check_method(rest_request: RestRequest, *methods: str) -> None:
    if rest_request.method not in methods and not (rest_request.method == "HEAD" and "GET" in methods):
        raise method_not_allowed(rest_request.method, ", ".join(methods))
