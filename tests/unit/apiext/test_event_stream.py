"""Watches of objects as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tapestry.apiext import event_stream
from tapestry.apiext.requests import RestRequest
from tapestry.apiserver.core.requests import User
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import Gone

from .conftest import Page

Event = tuple[str, str | None, Any]
"""Type, id and data of an event."""


async def parse_events(chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[Event]:
    async for chunk in chunks:
        for block in filter(None, chunk.decode().split("\n\n")):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "event" in fields:
                yield fields["event"], fields.get("id"), msgspec.json.decode(fields["data"])


@asynccontextmanager
async def watching(page: Page, path: str, last: str = "", **query: str) -> AsyncIterator[AsyncIterator[Event]]:
    request = RestRequest("GET", path, {"watch": "true", **query}, last_event_id=last)
    response = await page.plain.handle(request, InProcessTransport(page.server, page.user))
    assert response.status == 200, response.body
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.stream is not None
    async with asyncio.timeout(10), aclosing(response.stream):
        yield aiter(parse_events(response.stream))


async def create(page: Page, name: str, **spec: Any) -> None:
    assert (await page("POST", "/v1/widgets", {"name": name, "spec": spec}))[0] == 201


async def test_existing_objects_precede_changes(page: Page) -> None:
    await create(page, "a", color="red")
    async with watching(page, "/v1/widgets") as events:
        type, id, data = await anext(events)
        assert (type, id, data["name"], data["spec"]) == ("added", None, "a", {"color": "red"})
        type, listed, _ = await anext(events)
        assert type == "synced"
        assert listed
        await create(page, "b")
        type, id, data = await anext(events)
        assert (type, id, data["name"]) == ("added", data["version"], "b")
        await page("PATCH", "/v1/widgets/b", {"spec": {"size": 1}})
        type, _, data = await anext(events)
        assert (type, data["spec"]) == ("modified", {"size": 1})
        await page("DELETE", "/v1/widgets/b")
        assert (await anext(events))[0] == "deleted"


async def test_watch_resumes_after_last_event(page: Page) -> None:
    async with watching(page, "/v1/widgets") as events:
        _, synced, _ = await anext(events)
    assert synced
    await create(page, "a")
    await create(page, "b")
    async with watching(page, "/v1/widgets", synced) as events:
        type, first, data = await anext(events)
        assert (type, data["name"]) == ("added", "a")
    assert first
    async with watching(page, "/v1/widgets", first) as events:
        assert (await anext(events))[2]["name"] == "b"


async def test_filter_turns_changes_into_deletions(page: Page) -> None:
    await create(page, "a", color="red")
    await create(page, "b", color="blue")
    async with watching(page, "/v1/widgets", filter="spec.color=red", namespace="default") as events:
        assert (await anext(events))[2]["name"] == "a"
        assert (await anext(events))[0] == "synced"
        await create(page, "c", color="blue")
        await page("PATCH", "/v1/widgets/a", {"spec": {"color": "blue"}})
        type, _, data = await anext(events)
        assert (type, data["name"]) == ("deleted", "a")


async def test_one_object_is_watched_completely(page: Page) -> None:
    await create(page, "a")
    await create(page, "b")
    async with watching(page, "/v1/widgets/a") as events:
        type, _, data = await anext(events)
        assert (type, data["name"], data["status"]) == ("added", "a", {})
        assert (await anext(events))[0] == "synced"
        await page("PATCH", "/v1/widgets/b", {"spec": {"size": 1}})
        await page("PATCH", "/v1/widgets/a", {"spec": {"size": 1}})
        assert (await anext(events))[2]["name"] == "a"


async def test_too_old_version_resets_client(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def expired(*_: Any) -> AsyncGenerator[bytes, None]:
        raise Gone(410, "Expired", "too old resource version")
        yield b""

    monkeypatch.setattr(event_stream, "changes_since", expired)
    async with watching(page, "/v1/widgets", "1") as events:
        assert [each async for each in events] == [("reset", "", {})]


@pytest.mark.parametrize("path", ["/v1", "/openapi.json", "/v1/widgets/a/b", ""])
async def test_other_paths_cannot_be_watched(page: Page, path: str) -> None:
    assert await page.error("GET", path, watch="1") == (400, "watch: only objects can be watched")


async def test_invalid_watches_are_rejected(page: Page) -> None:
    assert (await page.error("GET", "/v1/widgets", watch="1", sort="name"))[0] == 400
    assert (await page.as_user(User("bob")).error("GET", "/v1/widgets", watch="1"))[0] == 403
    for id in ("a\nb", "-1", "9" * 65, "x" * 3):
        request = RestRequest("GET", "/v1/widgets", {"watch": "1"}, last_event_id=id)
        response = await page.plain.handle(request, InProcessTransport(page.server, page.user))
        assert response.status == 400


async def test_many_objects_arrive_in_pages(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "BATCH", 2)
    for name in "abcde":
        await create(page, name)
    async with watching(page, "/v1/widgets") as events:
        found = [await anext(events) for _ in range(6)]
    assert [each[2].get("name") for each in found] == [*"abcde", None]
