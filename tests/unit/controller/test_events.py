import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.controller.errors import NotLeading
from tapestry.controller.events import (
    BUFFER_SIZE,
    BURST,
    MAX_MESSAGE_LENGTH,
    MAX_SIMILAR_EVENTS,
    REFILL_SECONDS,
    Recorder,
)
from tapestry.controller.testing.clock import START
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, object_named, uid_of
from tapestry.kube.resources import EVENTS, NODES, PODS
from tapestry.kube.times import timestamp


@pytest.fixture
def recorder(world: Any) -> Recorder:
    return Recorder(Client(world.api.connect()), "tester", "tester-0", world.clock.now)


@asynccontextmanager
async def running(recorder: Recorder) -> AsyncIterator[None]:
    """Run a recorder.  All recorded events are written at the end."""
    async with asyncio.TaskGroup() as group:
        group.create_task(recorder.run())
        yield
        recorder.close()


async def counts(world: Any) -> dict[str, int]:
    """Return the count of every Event by its message."""
    return {event["message"]: event["count"] for event in await world.events()}


async def test_event_has_object_reason_and_source(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "web-0")
    async with running(recorder):
        recorder.warning(pod, "Unschedulable", "no node has room")
    (event,) = await world.events()
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web-0",
        "uid": uid_of(pod),
        "resourceVersion": pod["metadata"]["resourceVersion"],
    }
    assert event["metadata"]["namespace"] == "default"
    assert (event["type"], event["reason"]) == ("Warning", "Unschedulable")
    assert (event["message"], event["count"]) == ("no node has room", 1)
    assert event["source"] == {"component": "tester", "host": "tester-0"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == timestamp(START)


async def test_event_of_cluster_scoped_object_is_in_default(world: Any, recorder: Recorder) -> None:
    node = await world.add(NODES, "n1")
    async with running(recorder):
        recorder.normal(node, "Leased", "to another")
    (event,) = await world.events()
    assert event["metadata"]["namespace"] == "default"
    assert event["type"] == "Normal"


async def test_repeated_event_increases_the_count(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        for _ in range(3):
            recorder.normal(pod, "Synced", "as wanted")
            await asyncio.sleep(60)
        recorder.normal(pod, "Synced", "otherwise")
    by_message = {event["message"]: event for event in await world.events()}
    assert {message: event["count"] for message, event in by_message.items()} == {"as wanted": 3, "otherwise": 1}
    again = by_message["as wanted"]
    assert again["firstTimestamp"] == timestamp(START)
    assert again["lastTimestamp"] == timestamp(START + timedelta(seconds=120))


async def test_events_about_two_objects_are_separate(world: Any, recorder: Recorder) -> None:
    async with running(recorder):
        for name in ("p", "q"):
            recorder.normal(await world.add(PODS, name), "Synced", "as wanted")
    assert len(await world.events()) == 2


async def test_many_similar_messages_are_combined(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        for number in range(MAX_SIMILAR_EVENTS + 3):
            recorder.normal(pod, "Moved", f"to {number}")
    found = await counts(world)
    assert len(found) == MAX_SIMILAR_EVENTS + 1
    assert found[f"(combined from similar events): to {MAX_SIMILAR_EVENTS + 2}"] == 3


async def test_message_with_own_event_keeps_it(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        for number in range(MAX_SIMILAR_EVENTS + 1):
            recorder.normal(pod, "Moved", f"to {number}")
        recorder.normal(pod, "Moved", "to 0")
    assert (await counts(world))["to 0"] == 2


async def test_events_per_object_are_rate_limited(world: Any, recorder: Recorder, growth: Callable[..., float]) -> None:
    dropped = {"why": "too many about one object"}
    growth("tapestry_events_dropped_total", **dropped)
    loud, calm = await world.add(PODS, "loud"), await world.add(PODS, "calm")
    async with running(recorder):
        for _ in range(BURST + 10):
            recorder.normal(loud, "Noise", "again")
        recorder.normal(calm, "Noise", "once")
        await asyncio.sleep(1)
        assert await counts(world) == {"again": BURST, "once": 1}
        assert growth("tapestry_events_dropped_total", **dropped) == 10
        await asyncio.sleep(2 * REFILL_SECONDS)
        for _ in range(5):
            recorder.normal(loud, "Noise", "again")
    assert (await counts(world))["again"] == BURST + 2


async def test_buffer_is_bounded_and_recording_never_waits(
    world: Any, recorder: Recorder, growth: Callable[..., float]
) -> None:
    growth("tapestry_events_dropped_total", why="buffer full")
    pod = await world.add(PODS, "p")
    for number in range(BUFFER_SIZE + 7):  # not written yet
        recorder.normal({**pod, "metadata": {**pod["metadata"], "uid": str(number)}}, "Synced", "as wanted")
    assert growth("tapestry_events_dropped_total", why="buffer full") == 7
    async with running(recorder):
        await asyncio.sleep(1)
    assert len(await world.events()) == BUFFER_SIZE


async def test_expired_event_is_created_again(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        recorder.normal(pod, "Synced", "as wanted")
        await asyncio.sleep(3600)
        await world.client.delete(EVENTS, (await world.events())[0])
        recorder.normal(pod, "Synced", "as wanted")
    assert await counts(world) == {"as wanted": 1}


async def test_conflicting_event_is_followed_by_a_new_one(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        recorder.normal(pod, "Synced", "as wanted")
        await asyncio.sleep(60)
        (event,) = await world.events()
        await world.client.patch(EVENTS, event, {"count": 5})  # as a patch with a lost response does
        for _ in range(2):
            recorder.normal(pod, "Synced", "as wanted")
            await asyncio.sleep(60)
    assert sorted(event["count"] for event in await world.events()) == [2, 5]


async def test_long_message_is_truncated(world: Any, recorder: Recorder) -> None:
    pod = await world.add(PODS, "p")
    async with running(recorder):
        recorder.normal(pod, "Wordy", "x" * 5000)
    (message,) = await counts(world)
    assert len(message) == MAX_MESSAGE_LENGTH
    assert message.endswith("xxx...")


class Broken:
    """A transport that does not respond, or rejects everything."""

    def __init__(self, status: int | None) -> None:
        self.status = status

    async def send(self, request: Request) -> Response:
        if self.status is None:
            raise TransportError("no answer", maybe_sent=True)
        return Response(self.status, {}, b"refused")


@pytest.mark.parametrize(
    ("status", "why"), [(None, "TransportError"), (403, "Forbidden"), (404, "NotFound"), (500, "ServerError")]
)
async def test_server_errors_do_not_reach_the_caller(
    status: int | None, why: str, world: Any, growth: Callable[..., float]
) -> None:
    growth("tapestry_events_dropped_total", why=why)
    recorder = Recorder(Client(Broken(status)), "tester")
    async with running(recorder):
        recorder.normal(new_pod("p"), "Synced", "as wanted")
        recorder.normal(new_pod("q"), "Synced", "as wanted")
    assert growth("tapestry_events_dropped_total", why=why) == 2


async def test_event_after_lost_leadership_is_dropped(world: Any, growth: Callable[..., float]) -> None:
    def fence() -> None:
        raise NotLeading("not we")

    growth("tapestry_events_dropped_total", why="NotLeading")
    recorder = Recorder(Client(world.api.connect(), fence=fence), "tester")
    async with running(recorder):
        recorder.normal(new_pod("p"), "Synced", "as wanted")
    assert growth("tapestry_events_dropped_total", why="NotLeading") == 1
    assert await world.events() == []


async def test_leader_may_record(world: Any) -> None:
    recorder = Recorder(Client(world.api.connect(), fence=lambda: None), "tester")
    async with running(recorder):
        for _ in range(2):
            recorder.normal(new_pod("p"), "Synced", "as wanted")
    assert await counts(world) == {"as wanted": 2}


async def test_close_writes_pending_events(world: Any, recorder: Recorder) -> None:
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(1)
    for name in "abc":
        recorder.normal(new_pod(name), "Synced", f"{name} is as wanted")
    recorder.close()
    await task
    assert len(await world.events()) == 3


def new_pod(name: str) -> Object:
    pod = object_named(name, "default")
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "uid": f"uid-of-{name}"}}
