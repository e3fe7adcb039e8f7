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
from tapestry.apiext.errors import bad_request, error_body
from tapestry.apiext.list_query import Candidate, ListQuery
from tapestry.apiext.requests import resource_path, send_request, transport_error_body
from tapestry.client.options import selector_query
from tapestry.client.streams import read_lines, require_success
from tapestry.client.transport import Request, Transport
from tapestry.client.watch import WATCH_LIFETIME_SECONDS, Change, decode_chunk
from tapestry.kube.errors import ApiError, Gone, TransportError, error_from_status
from tapestry.kube.objects import Object, version_of
from tapestry.kube.resources import Resource

CONTENT_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"
"""Milliseconds after which clients connect again."""
PAGE_SIZE = 500
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

    def request(self, **query: str) -> Request:
        fields = f"metadata.name={self.name}" if self.name else ""
        return Request("GET", resource_path(self.resource, self.query.namespace), selector_query("", fields) | query)


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
            except TransportError as error:
                yield encode_event("error", transport_error_body(error, f"watch {selection.resource.name}"))

    return chunks()


async def watch_events(selection: Selection, api: Transport, version: str) -> AsyncGenerator[bytes, None]:
    try:
        if not version:
            async for text, listed in existing_objects(selection, api):
                yield text
                version = listed
        async with aclosing(changes_since(selection, api, version)) as changes:
            async for text in changes:
                yield text
    except Gone:  # the client connects again, without a version
        yield encode_event("reset", {}, "")


async def existing_objects(selection: Selection, api: Transport) -> AsyncGenerator[tuple[bytes, str], None]:
    """Yield the events of one consistent list, and finally its version."""
    next_page: dict[str, str] = {}
    while True:
        found = await send_request(selection.request(limit=str(PAGE_SIZE), **next_page), api)
        matching = [each for each in found["items"] or () if selection.matches(each)]
        text = b"".join([encode_event("added", selection.flat(each)) for each in matching])
        version = version_of(found)
        if not (cursor := found["metadata"].get("continue")):
            yield text + encode_event("synced", {}, version), version
            return
        yield text, version
        next_page = {"continue": cursor}


async def changes_since(selection: Selection, api: Transport, version: str) -> AsyncGenerator[bytes, None]:
    """Yield the events of one watch; the first chunk is empty and means that the watch has started."""
    lifetime = str(random.randint(*WATCH_LIFETIME_SECONDS))
    request = selection.request(watch="1", allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=lifetime)
    async with api.stream(request) as opened:
        stream = await require_success(opened, str(request))
        yield b""
        async with aclosing(read_lines(stream)) as batches:
            async for lines in batches:
                chunk = decode_chunk(lines, without_managed_fields=True)
                if events := [encoded_change(selection, each) for each in chunk.changes]:
                    version = version_of(chunk.changes[-1].object)
                if chunk.version not in ("", version):
                    version = chunk.version
                    events.append(encode_event("bookmark", {}, version))
                yield b"".join(events)
                if chunk.error is not None:
                    raise error_from_status(chunk.error, action=str(request))


def encoded_change(selection: Selection, change: Change) -> bytes:
    """Return the event of a change; empty if a new object does not match the filter."""
    type = change.type.lower()
    if type != "deleted" and not selection.matches(change.object):
        if type == "added":
            return b""
        type = "deleted"
    return encode_event(type, selection.flat(change.object), version_of(change.object))
