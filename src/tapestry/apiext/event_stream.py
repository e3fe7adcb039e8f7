"""Watches as server-sent events (text/event-stream), which browsers resume by themselves.

    event: added          an object that exists; before `synced` without an id
    event: synced         all objects that existed have been sent
    event: modified       an object that was changed
    event: deleted        an object that was deleted, or does not match the filter any more
    event: bookmark       nothing changed; advances the id
    event: reset          the requested version is too old, and the stream ends: drop all objects and connect again
    event: error          the stream ends; data is an error as in other responses

The id is a resourceVersion. A client that sends it as Last-Event-ID gets all changes since. A stream ends after some
minutes, so that the rights of its caller are checked again.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.errors import bad_request, error_body, limit_error
from tapestry.apiext.list_query import Candidate, ListQuery
from tapestry.apiext.lists import BATCH, decode_item, decode_page, fetch_page
from tapestry.apiext.requests import resource_path, transport_error_body
from tapestry.apiserver.core.workers import StreamWork
from tapestry.client.streams import read_lines, require_success
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import WATCH_LIFETIME_SECONDS, Change, decode_chunk
from tapestry.kube.budget import BudgetExceeded, DeadlineExceeded, charge
from tapestry.kube.errors import ApiError, Gone, TransportError, error_from_status
from tapestry.kube.objects import Object, version_of
from tapestry.kube.resources import Resource

CONTENT_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"
"""Milliseconds after which clients connect again."""
MAX_VERSION_LENGTH = 64


@dataclass(frozen=True, slots=True)
class Selection:
    """The watched objects of a resource: all that match the query, or the one called `name`."""

    resource: Resource
    query: ListQuery
    name: str = ""

    def flat(self, obj: Object) -> Object:
        convert = flat_objects.full_object if self.name else flat_objects.object_outline
        return convert(obj, self.resource)

    def matches(self, obj: Object) -> bool:
        return not self.query.terms or self.query.matches(Candidate(obj, flat_objects.full_object(obj, self.resource)))

    @property
    def path(self) -> str:
        return resource_path(self.resource, self.query.namespace)

    @property
    def field_query(self) -> dict[str, str]:
        return {"fieldSelector": f"metadata.name={self.name}"} if self.name else {}


def encode_event(type: str, data: Any, version: str | None = None) -> bytes:
    """Return one event; an empty version makes the client forget its last one."""
    identity = b"" if version is None else f"id: {version}\n".encode()
    return b"%bevent: %b\ndata: %b\n\n" % (identity, type.encode(), msgspec.json.encode(data))


def check_version(version: str) -> str:
    if len(version) > MAX_VERSION_LENGTH or not version.isascii() or not version.isalnum():
        raise bad_request("Last-Event-ID: this is not the id of an event; omit it to get all objects")
    return version


async def open_event_stream(selection: Selection, api: Transport, version: str) -> AsyncGenerator[bytes, None]:
    """Return the events after `version`, or of all objects; raise an error if the API server rejects the request."""
    events = watch_events(selection, api, check_version(version) if version else "")
    first = await anext(events)

    async def chunks() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            yield RETRY + first
            try:
                async for each in events:
                    yield each
            except ApiError as error:
                yield encode_event("error", error_body(error))
            except (BudgetExceeded, DeadlineExceeded) as error:
                yield encode_event("error", error_body(limit_error(error)))
            except TransportError as error:
                yield encode_event("error", transport_error_body(error, f"watch {selection.resource.name}"))

    return chunks()


async def watch_events(selection: Selection, api: Transport, version: str) -> AsyncGenerator[bytes, None]:
    work = StreamWork.of_current_request()
    try:
        if not version:
            async for text, listed in existing_objects(selection, api, work):
                yield text
                version = listed
        async with aclosing(changes_since(selection, api, version, work)) as changes:
            async for text in changes:
                yield text
    except Gone:  # the client connects again, without a version
        yield encode_event("reset", {}, "")


async def existing_objects(
    selection: Selection, api: Transport, work: StreamWork
) -> AsyncGenerator[tuple[bytes, str], None]:
    """Yield the events of one consistent list, and finally its version."""
    query, limit = selection.field_query, BATCH
    while True:
        page, limit = await fetch_page(selection.path, query, limit, api)
        text, version, cursor = await work.run_if_large(len(page), encode_existing, selection, page)
        yield text, version
        if not cursor:
            return
        query = {**query, "continue": cursor}


def encode_existing(selection: Selection, body: bytes) -> tuple[bytes, str, str]:
    """Return the events of a page, its version, and the cursor of the next page."""
    page = decode_page(body)
    version = page.metadata.get("resourceVersion", "")
    objects = (decode_item(raw) for raw in page.items or ())
    events = [encode_event("added", selection.flat(each)) for each in objects if selection.matches(each)]
    if not page.cursor:
        events.append(encode_event("synced", {}, version))
    return b"".join(events), version, page.cursor


async def changes_since(
    selection: Selection, api: Transport, version: str, work: StreamWork
) -> AsyncGenerator[bytes, None]:
    """Yield the events of one watch; the first chunk is empty and means that the watch has started."""
    lifetime = str(random.randint(*WATCH_LIFETIME_SECONDS))
    options = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, "timeoutSeconds": lifetime}
    request = Request("GET", selection.path, {**selection.field_query, **options})
    async with api.stream(request) as opened:
        stream = await require_success(opened, str(request))
        yield b""
        async with aclosing(read_lines(stream)) as batches:
            async for lines in batches:
                size = sum(map(len, lines))
                text, version, error = await work.run_if_large(size, encode_changes, selection, lines, version)
                yield text
                if error is not None:
                    raise error_from_status(error, action=str(request))


def encode_changes(selection: Selection, lines: list[bytes], version: str) -> tuple[bytes, str, Object | None]:
    """Return the events of a chunk, the last version, and the error that ends the watch."""
    events = []
    for line in lines:
        charge(5 + len(line) // 64)
        chunk = decode_chunk([line], without_managed_fields=True)
        events += [encoded_change(selection, each) for each in chunk.changes]
        if chunk.error is not None:
            return b"".join(events), version, chunk.error
        if not chunk.changes and chunk.version not in ("", version):
            events.append(encode_event("bookmark", {}, chunk.version))
        version = chunk.version or version
    return b"".join(events), version, None


def encoded_change(selection: Selection, change: Change) -> bytes:
    """Return the event of a change; empty if a new object does not match the filter."""
    type = change.type.lower()
    if type != "deleted" and not selection.matches(change.object):
        if type == "added":
            return b""
        type = "deleted"
    return encode_event(type, selection.flat(change.object), version_of(change.object))
