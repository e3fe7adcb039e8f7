"""Limits, end and audit records of sessions."""

import asyncio

import pytest

from tapestry.kube.errors import TooManyRequests, Unavailable
from tapestry.kube.objects import key_of
from tapestry.nodeproxy.sessions import MAX_COMMAND_CHARACTERS, Session, Sessions, recorded_command
from tapestry.nodeproxy.stream_requests import StreamTarget
from tapestry.nodeproxy.twins import TwinLookup
from tapestry.streams.connection import SocketConnection
from tapestry.streams.tunnel import Transferred

from .world import SECONDS, World, new_pod, new_twin

TARGET = StreamTarget("exec", "default", "web", "c")


async def assert_ended(connection: SocketConnection) -> None:
    async with asyncio.timeout(SECONDS):
        assert await connection.read() == b""


async def test_deleted_pod_ends_its_sessions(world: World) -> None:
    connection = await world.connect()
    world.pods.clear()
    await assert_ended(connection)
    async with asyncio.timeout(SECONDS):
        await world.streams.ended.wait()
    assert [record.error for record in world.records] == ["the pod was deleted"]


async def test_recreated_pod_ends_the_sessions_of_the_old_one(world: World) -> None:
    connection = await world.connect()
    world.pods[key_of(new_pod())] = new_pod("u2")
    await assert_ended(connection)
    assert [record.error for record in world.records] == ["the pod was deleted"]


@pytest.mark.parametrize("uid", ["", "t2"])
async def test_replaced_twin_ends_its_sessions(world: World, uid: str) -> None:
    connection = await world.connect()
    world.twin = new_twin(uid) if uid else None
    await assert_ended(connection)
    assert [record.error for record in world.records] == ["the twin of the pod was deleted"]


async def test_lost_leadership_ends_all_sessions_at_once(world: World) -> None:
    connections = [await world.connect() for _ in range(3)]
    world.sessions.end_all("the process lost the leadership")
    assert [record.error for record in world.records] == ["the process lost the leadership"] * 3
    for connection in connections:
        await assert_ended(connection)
    connection = await world.connect()
    connection.abort()


async def test_session_that_ends_while_it_connects_is_refused(world: World) -> None:
    world.streams.on_request = lambda: world.sessions.end_all("the process lost the leadership")
    response = await world.upgrade()
    assert (response.status, b"lost the leadership" in response.body) == (500, True)
    async with asyncio.timeout(SECONDS):
        await world.streams.ended.wait()


async def test_stopped_process_ends_sessions_and_accepts_none(world: World) -> None:
    connection = await world.connect()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(world.sessions.watch())
        await asyncio.sleep(0)
        watch.cancel()
    await assert_ended(connection)
    assert (await world.upgrade()).status == 503


def new_session(user: str) -> Session:
    return Session(user, TARGET, new_pod(), new_twin())


def test_sessions_are_limited_in_total_and_by_user() -> None:
    lookup = TwinLookup(lambda _: new_pod(), lambda _: new_twin())
    sessions = Sessions(lookup, max_sessions=3, max_per_user=2)
    first, second = sessions.track(new_session("a")), sessions.track(new_session("a"))
    with first:
        with second:
            with pytest.raises(TooManyRequests) as refused, sessions.track(new_session("a")):
                pass
            assert refused.value.retry_after == 5
            with sessions.track(new_session("b")), pytest.raises(TooManyRequests), sessions.track(new_session("c")):
                pass
        with sessions.track(new_session("a")):
            pass
    sessions.is_stopped = True
    with pytest.raises(Unavailable), sessions.track(new_session("a")):
        pass


async def test_limit_is_reported_with_a_delay(world: World) -> None:
    world.sessions.max_sessions = 1
    connection = await world.connect()
    response = await world.upgrade()
    assert (response.status, response.headers["retry-after"]) == (429, "5")
    connection.abort()


def test_every_session_is_logged_without_an_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    session = Session(
        "ann",
        TARGET,
        new_pod(),
        new_twin(),
        command=("sh", "-c", "a\udcff"),
        protocol="websocket v5.channel.k8s.io",
        started=7.0,
        transferred=Transferred(received=3, sent=5),
    )
    sessions = Sessions(TwinLookup(lambda _: new_pod(), lambda _: new_twin()), monotonic=lambda: 9.5)
    with caplog.at_level("INFO"), sessions.track(session):
        pass
    (entry,) = caplog.records
    assert (entry.message, vars(entry)["values"]) == (
        "stream session finished",
        {
            "user": "ann",
            "pod": "default/web",
            "container": "c",
            "subresource": "exec",
            "command": ("sh", "-c", "a\\udcff"),
            "protocol": "websocket v5.channel.k8s.io",
            "seconds": 2.5,
            "received": 3,
            "sent": 5,
            "error": "",
        },
    )


def test_recorded_command_is_bounded_text() -> None:
    assert recorded_command(("sh", "-c", "a\udcff")) == ("sh", "-c", "a\\udcff")
    long = recorded_command(("x" * 5000, "y"))
    assert long == ("x" * MAX_COMMAND_CHARACTERS,)
