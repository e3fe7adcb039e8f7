import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.client.watch import wait_for
from tapestry.controller.testing import InProcessApi, in_virtual_time, running_clock, specimen
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, labels_of, object_named, version_of
from tapestry.kube.resources import NODES, PODS, SECRETS

POD = specimen(PODS, "web", "default")


def new_client() -> tuple[InProcessApi, Client]:
    api = InProcessApi([PODS, NODES, SECRETS], now=running_clock().now)
    return api, Client(api)


def exists(obj: Object | None) -> bool:
    return obj is not None


def is_absent(obj: Object | None) -> bool:
    return obj is None


def is_ready(obj: Object | None) -> bool:
    return obj is not None and labels_of(obj).get("ready") == "yes"


@in_virtual_time
async def test_returns_at_once_if_condition_holds() -> None:
    _, client = new_client()
    made = await client.create(PODS, POD)
    assert await wait_for(client, PODS, "web", "default", until=exists) == made
    assert await wait_for(client, PODS, "other", "default", until=is_absent) is None
    assert await wait_for(client, NODES, "n1", until=is_absent) is None
    assert running_clock().monotonic() == 0


@in_virtual_time
async def test_returns_object_that_meets_the_condition() -> None:
    _, client = new_client()
    made = await client.create(PODS, POD)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait_for(client, PODS, "web", "default", until=is_ready))
        await asyncio.sleep(5)
        assert not waiting.done()
        await client.create(PODS, specimen(PODS, "another", "default"))
        ready = await client.patch(PODS, made, {"metadata": {"labels": {"ready": "yes"}}})
        await client.patch(PODS, ready, {"metadata": {"labels": {"ready": "no"}}})
    assert waiting.result() == ready


@in_virtual_time
async def test_waits_for_deletion() -> None:
    _, client = new_client()
    made = await client.create(PODS, POD)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait_for(client, PODS, "web", "default", until=is_absent))
        await asyncio.sleep(5)
        await client.delete(PODS, made)
    assert waiting.result() is None


@in_virtual_time
async def test_survives_watch_failures() -> None:
    api, client = new_client()
    await client.create(PODS, POD)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(wait_for(client, PODS, "web", "default", until=is_absent))
        await asyncio.sleep(1)
        api.freeze()
        await client.delete(PODS, POD)
        api.compact()
        api.disconnect()
        await asyncio.sleep(1)
        api.thaw()
    assert waiting.result() is None


@in_virtual_time
async def test_timeout_error_shows_last_state() -> None:
    _, client = new_client()
    made = await client.create(PODS, POD)
    with pytest.raises(TimeoutError) as caught:
        await wait_for(client, PODS, "web", "default", until=is_ready, timeout=7)
    assert str(caught.value) == (
        f"Pod default/web: timed out after 7 s; it was last at version {version_of(made)} "
        "with status {'phase': 'Pending', 'qosClass': 'BestEffort'}"
    )
    with pytest.raises(TimeoutError, match=r"Node n1: timed out after 1 s; it did not exist$"):
        await wait_for(client, NODES, "n1", until=exists, timeout=1)


@in_virtual_time
async def test_safety_rule_7_timeout_error_does_not_show_a_secret() -> None:
    _, client = new_client()
    await client.create(SECRETS, {**object_named("key", "default"), "data": {"password": "aHVzaA=="}})
    with pytest.raises(TimeoutError) as caught:
        await wait_for(client, SECRETS, "key", "default", until=is_ready)
    assert "aHVzaA" not in str(caught.value)


class Unreachable:
    async def send(self, request: Request) -> Response:
        raise AssertionError("a watch that cannot begin lists nothing")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Any]:
        raise TransportError(f"{request}: nobody listens", maybe_sent=False)
        yield

    def abort(self) -> None:
        raise AssertionError("nobody aborts here")

    async def close(self) -> None:
        return


@in_virtual_time
async def test_timeout_error_shows_last_watch_error() -> None:
    with pytest.raises(TimeoutError, match=r"; the last watch error was GET /api/v1/\S+: nobody listens$"):
        await wait_for(Client(Unreachable()), PODS, "web", "default", until=is_absent)
    assert running_clock().monotonic() == 30
