"""Lists of flat objects: pages of the API server, and pages of all objects that match a query, in its order.

The objects of a page are decoded one at a time, in the worker thread if they are large. Of the others, only those that
match stay in memory, encoded.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.list_query import Candidate, ListQuery, Match
from tapestry.apiext.requests import RestResponse, decode_object, json_response, resource_path, send
from tapestry.apiserver.core.fairness import FairQueue, turn
from tapestry.apiserver.core.workers import current_request_budget, run_if_large
from tapestry.client.responses import decoding_errors
from tapestry.client.transport import Request, Transport
from tapestry.kube.budget import charge
from tapestry.kube.errors import ResponseTooLarge, TooLarge
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

BATCH = 500
"""Objects per request to the API server."""
MAX_PAGE_BYTES = 8 << 20
"""Bytes of a page of the API server; pages of large objects have fewer of them."""
MAX_OBJECTS_READ = 20_000
"""Objects of a kind that can be filtered and sorted; for more, use a namespace or a cursor."""
MAX_MATCH_BYTES = 64 << 20
"""Bytes of the objects of one request that are filtered and sorted."""
MAX_FULL_LISTS = 2
"""Requests that may hold more than one page at the same time."""


class Page(msgspec.Struct):
    """A page of a list, its objects not decoded."""

    metadata: Object
    items: list[msgspec.Raw] | None

    @property
    def cursor(self) -> str:
        return self.metadata.get("continue") or ""


PAGE_DECODER = msgspec.json.Decoder(Page)


async def fetch_page(path: str, query: Mapping[str, str], limit: int, api: Transport) -> tuple[bytes, int]:
    """Return an encoded page of at most `limit` objects, and the limit that its size allows."""
    while True:
        max_bytes = MAX_PAGE_BYTES if limit > 1 else None
        try:
            return await send(Request("GET", path, {**query, "limit": str(limit)}, max_body=max_bytes), api), limit
        except ResponseTooLarge:
            if limit == 1:
                raise
            limit = max(limit // 4, 1)


def decode_page(body: bytes) -> Page:
    with decoding_errors("list"):
        return PAGE_DECODER.decode(body)


def decode_item(raw: msgspec.Raw) -> Object:
    charge(5 + len(raw) // 64)
    return decode_object(raw, "list")


async def server_page(list_query: ListQuery, resource: Resource, api: Transport) -> RestResponse:
    """Return a page of the API server's own list."""
    query = {"continue": list_query.cursor} if list_query.cursor else {}
    body, _ = await fetch_page(resource_path(resource, list_query.namespace), query, list_query.limit, api)
    return await run_if_large(len(body), server_page_response, body, list_query, resource)


def server_page_response(body: bytes, list_query: ListQuery, resource: Resource) -> RestResponse:
    page = decode_page(body)
    items = outlines(page.items or (), resource)
    remaining = page.metadata.get("remainingItemCount") if page.cursor else 0
    total = (
        None if list_query.cursor or remaining is None else len(items) + remaining
    )  # the number of objects before a cursor is unknown
    unpaged = {"page": None, "pages": None, "next": page.cursor or None}
    return json_response(200, {"items": items, "total": total, "limit": list_query.limit, **unpaged})


async def filtered_page(
    list_query: ListQuery, resource: Resource, api: Transport, full_lists: FairQueue
) -> RestResponse:
    """Read all matching objects and return one page of them. A list of several pages waits for its turn."""
    matching: list[Match] = []
    path, limit = resource_path(resource, list_query.namespace), BATCH
    query: dict[str, str] = {}
    read = size = 0
    async with AsyncExitStack() as stack:
        while True:
            body, limit = await fetch_page(path, query, limit, api)
            count, cursor, matches = await run_if_large(len(body), matching_objects, body, list_query, resource)
            matching += matches
            read += count
            size += sum(len(each.raw) for each in matches)
            if not cursor:
                break
            if read >= MAX_OBJECTS_READ:
                raise too_many_objects(f"more than {MAX_OBJECTS_READ} {resource.name}")
            if size > MAX_MATCH_BYTES:
                raise too_many_objects(f"over {MAX_MATCH_BYTES >> 20} MiB of matching {resource.name}")
            if not query:
                budget = current_request_budget()
                await stack.enter_async_context(turn(full_lists, budget.user if budget is not None else ""))
            query = {"continue": cursor}
            await asyncio.sleep(0)  # an in-process server responds without waiting; yield to other tasks
        return await run_if_large(size, filtered_page_response, matching, list_query, resource)


def too_many_objects(found: str) -> TooLarge:
    advice = "query one namespace, or page with a cursor instead of filter, sort and page"
    return TooLarge(413, "TooLarge", f"there are {found}; {advice}")


def matching_objects(body: bytes, list_query: ListQuery, resource: Resource) -> tuple[int, str, list[Match]]:
    """Return the number of objects of a page, the cursor of the next page, and the objects that match."""
    page = decode_page(body)
    matches = []
    for raw in page.items or ():
        obj = decode_item(raw)
        candidate = Candidate(obj, flat_objects.full_object(obj, resource))
        if list_query.matches(candidate):
            matches.append(Match(raw.copy(), list_query.ranks(candidate)))
    return len(page.items or ()), page.cursor, matches


def filtered_page_response(matching: list[Match], list_query: ListQuery, resource: Resource) -> RestResponse:
    total = len(matching)
    items = outlines([each.raw for each in list_query.page_of(matching)], resource)
    paged = {"page": list_query.page or 1, "pages": list_query.page_count(total), "next": None}
    return json_response(200, {"items": items, "total": total, "limit": list_query.limit, **paged})


def outlines(raws: Iterable[msgspec.Raw], resource: Resource) -> list[Object]:
    return [flat_objects.object_outline(decode_item(raw), resource) for raw in raws]
