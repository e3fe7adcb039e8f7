"""Long lists and watches are encoded and sent in parts, between which other tasks run."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core.resource_registry import ResourceRegistry, published_api
from tapestry.apiserver.core.responses import CHUNK_BYTES, ApiResponse, ChunkedBody, list_response
from tapestry.apiserver.core.store import Key, ObjectVersion
from tapestry.apiserver.handlers.views import MAX_COPIED_BYTES, encode_list, encoded_list_parts
from tapestry.apiserver.handlers.watches import BATCH_SIZE, WatchResponse, batches
from tapestry.kube.resources import CONFIGMAPS

from .conftest import ServerClient

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_parts_of_a_list_are_the_same_text(number: int) -> None:
    info = ResourceRegistry(published_api().resources).info_for(CONFIGMAPS)
    items = [
        msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": str(each)}})
        for each in range(number)
    ]
    metadata = {"resourceVersion": "7"}
    assert b"".join(encoded_list_parts(info, metadata, items)) == encode_list(info, metadata, items)


async def test_other_tasks_run_between_chunks() -> None:
    body, turns = ChunkedBody([b"x" * CHUNK_BYTES] * 10), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        sizes = [len(chunk) async for chunk in body.chunks()]
        counting.cancel()
    assert sizes == [CHUNK_BYTES] * 10
    assert turns >= 9


async def test_long_list_is_encoded_when_it_is_sent(call: ServerClient) -> None:
    for number in range(4):
        await call.made(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * (MAX_COPIED_BYTES // 3)}})
    response = await call.answer("GET", MAPS)
    assert isinstance(response, ApiResponse)
    assert isinstance(response.stream, ChunkedBody)
    listed = msgspec.json.decode(b"".join([chunk async for chunk in response.stream.chunks()]))
    assert [each["metadata"]["name"] for each in listed["items"]][-4:] == ["m0", "m1", "m2", "m3"]
    assert "kind" not in listed["items"][0]
    assert list_response([b"[", b"]"]).body == b"[]"


@given(st.lists(st.integers(0, CHUNK_BYTES * 2), max_size=40), st.booleans())
def test_batches_are_complete_and_bounded(sizes: list[int], small: bool) -> None:
    objects = [
        ObjectVersion(Key("r", "", str(number)), number, b"x" * (size // 1000 if small else size), {})
        for number, size in enumerate(sizes * (10 if small else 1))
    ]
    parts = list(batches(objects))
    assert [each for part in parts for each in part] == objects
    for part in parts:
        assert 0 < len(part) <= BATCH_SIZE
        assert len(part) == 1 or sum(len(each.raw) for each in part) <= CHUNK_BYTES


async def test_initial_events_of_large_objects_come_in_several_chunks(call: ServerClient) -> None:
    for number in range(4):
        await call.made(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * CHUNK_BYTES}})
    response = await call.answer("GET", MAPS, watch="true", timeoutSeconds="1")
    assert isinstance(response, WatchResponse)
    chunks = response.chunks()
    texts = [await anext(chunks) for _ in range(4)]
    await chunks.aclose()
    assert all(len(text) < 2 * CHUNK_BYTES for text in texts)
    assert sum(text.count(b'"ADDED"') for text in texts) >= 4
