"""Helpers that send requests to an in-process API and read responses and watch events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tapestry.client.transport import Request, Stream, Transport
from tapestry.kube.objects import Object
from tapestry.kube.resources import PODS, Resource

COLLECTION = PODS.path("default")
POD = PODS.path("default", "p")
MERGE = "application/merge-patch+json"


async def answer(
    api: Transport, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
) -> tuple[int, Any]:
    data = None if body is None else msgspec.json.encode(body)
    response = await api.send(Request(method, path, query, data, content_type))
    return response.status, msgspec.json.decode(response.body)


async def done(api: Transport, method: str, path: str, body: Any = None, *args: Any, **query: str) -> Any:
    """Send a request that must succeed and return the response body."""
    code, found = await answer(api, method, path, body, *args, **query)
    assert code < 300, found
    return found


async def rejection(api: Transport, method: str, path: str, body: Any = None, *args: Any, **query: str) -> Any:
    """Send a request that must be rejection and return the Status."""
    code, found = await answer(api, method, path, body, *args, **query)
    assert code >= 400, found
    assert (found["kind"], found["status"], found["code"]) == ("Status", "Failure", code)
    return found


async def created(api: Transport, obj: Object, resource: Resource = PODS) -> Any:
    return await done(api, "POST", resource.path("default" if resource.namespaced else None), obj)


async def names(api: Transport, path: str = COLLECTION, **query: str) -> list[str]:
    return [item["metadata"]["name"] for item in (await done(api, "GET", path, **query))["items"]]


class Events:
    """Reader of the events of one watch, one at a time."""

    def __init__(self, stream: Stream) -> None:
        self._events = self._of(stream)

    async def _of(self, stream: Stream) -> AsyncIterator[tuple[str, Object]]:
        assert stream.status == 200
        async for chunk in stream.chunks():
            for line in chunk.splitlines():
                event = msgspec.json.decode(line)
                yield event["type"], event["object"]

    async def next(self) -> tuple[str, Object]:
        return await anext(self._events)

    async def brief(self) -> tuple[str, str]:
        type, obj = await self.next()
        return type, obj["metadata"]["name"]

    async def rest(self) -> list[str]:
        return [type async for type, _ in self._events]


@asynccontextmanager
async def new_watch(api: Transport, path: str = COLLECTION, **query: str) -> AsyncIterator[Events]:
    async with api.stream(Request("GET", path, {"watch": "1", **query})) as stream:
        yield Events(stream)
