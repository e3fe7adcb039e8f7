"""A watch never loses or repeats changes, whatever happens to its streams.

Certain stream failures are scripted (`ScriptedStreams`).  All other tests use the in-process API.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.client.watch import (
    MAX_BACKOFF,
    WATCH_LIFETIME_SECONDS,
    Change,
    Changes,
    ListPage,
    ListStart,
    Synced,
    Watch,
    WatchEvent,
    decode_chunk,
)
from tapestry.controller.testing import Connection, InProcessApi, in_virtual_time, run, running_clock, specimen
from tapestry.kube.errors import BadRequest, Conflict, Gone, Invalid, KubeError, NotFound, ServerError, TransportError
from tapestry.kube.objects import Object, name_of, object_named, version_of
from tapestry.kube.resources import PODS

# -- scripted streams


def new_pod(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def line(type: str, obj: Object) -> bytes:
    return msgspec.json.encode({"type": type, "object": obj}) + b"\n"


def added(name: str, version: int) -> bytes:
    return line("ADDED", new_pod(name, version))


def modified(name: str, version: int) -> bytes:
    return line("MODIFIED", new_pod(name, version))


def deleted(name: str, version: int) -> bytes:
    return line("DELETED", new_pod(name, version))


def bookmark(version: int, **metadata: Any) -> bytes:
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(version), **metadata}})


def list_end(version: int) -> bytes:
    return bookmark(version, annotations={"k8s.io/initial-events-end": "true"})


EXPIRED = Gone(410, "Expired", "too old resource version: 1 (9)")
UNKNOWN_OPTION = Invalid(422, "Invalid", "sendInitialEvents: Forbidden")
TROUBLE = ServerError(500, "InternalError", "etcd has no leader")
CUT = TransportError("the wire was cut", maybe_sent=True)


def error(error: KubeError) -> bytes:
    return line("ERROR", error.status())  # type: ignore[attr-defined]


def page(*names: str, version: int, token: str = "") -> Response:
    items = [new_pod(name, version) for name in names]
    metadata = {"resourceVersion": str(version), "continue": token}
    return Response(200, {}, msgspec.json.encode({"metadata": metadata, "items": items}))


class ScriptEnd(Exception):
    """The script has no more streams."""


@dataclass
class StreamScript:
    """One stream: its chunks, then its end, an error, or (None) silence."""

    chunks: Sequence[bytes] = ()
    end: Exception | str | None = ""
    status: int = 200


def error_stream(error: Any) -> StreamScript:
    return StreamScript([msgspec.json.encode(error.status())], status=error.code)


@dataclass
class ScriptedStreams:
    """A transport that serves scripted streams and pages, one after the other."""

    scripts: deque[StreamScript]
    pages: deque[Response] = field(default_factory=deque)
    queries: list[dict[str, str]] = field(default_factory=list)
    open: int = 0

    async def send(self, request: Request) -> Response:
        if not self.pages:
            raise ScriptEnd
        self.queries.append(dict(request.query))
        return self.pages.popleft()

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator["PlayingStream"]:
        if not self.scripts:
            raise ScriptEnd
        self.queries.append(dict(request.query))
        self.open += 1
        try:
            yield PlayingStream(self.scripts.popleft())
        finally:
            self.open -= 1

    def abort(self) -> None:
        raise AssertionError("a watch never aborts")

    async def close(self) -> None:
        self.scripts.clear()


@dataclass
class PlayingStream:
    script: StreamScript

    @property
    def status(self) -> int:
        return self.script.status

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.script.chunks:
            yield chunk
        if self.script.end is None:
            await asyncio.Event().wait()
        if isinstance(self.script.end, Exception):
            raise self.script.end


@dataclass
class WatchLog:
    """The events of a watch on scripted streams, and its restarts."""

    events: list[WatchEvent]
    restarts: list[tuple[KubeError, float]]
    queries: list[dict[str, str]]

    @property
    def shapes(self) -> list[str]:
        return [shape(event) for event in self.events]

    @property
    def reasons(self) -> list[str]:
        return [type(error).__name__ for error, _ in self.restarts]

    @property
    def versions(self) -> list[str]:
        """Return the resourceVersion of each request; empty for a list."""
        return [query.get("resourceVersion", "") for query in self.queries]


def shape(event: WatchEvent) -> str:
    """Return a short form of an event: `page a b`, `+c ~c -c`."""
    match event:
        case ListPage(items):
            return " ".join(["page", *map(name_of, items)])
        case Changes(changes):
            signs = {"ADDED": "+", "MODIFIED": "~", "DELETED": "-"}
            return " ".join(signs[type] + name_of(obj) for type, obj in changes)
    return type(event).__name__


async def run_watch(*scripts: StreamScript, pages: Sequence[Response] = (), **options: Any) -> WatchLog:
    streams = ScriptedStreams(deque(scripts), deque(pages))
    restarts: list[tuple[KubeError, float]] = []
    watch = Watch(Client(streams), PODS, on_restart=lambda error, pause: restarts.append((error, pause)), **options)
    events: list[WatchEvent] = []
    with suppress(ScriptEnd):
        async for event in watch.events():
            events += [event]
    assert not streams.open
    return WatchLog(events, restarts, streams.queries)


A_LIST = [added("a", 3), added("b", 5), list_end(7)]


# -- lists


@in_virtual_time
async def test_list_is_streamed_then_followed() -> None:
    got = await run_watch(StreamScript([*A_LIST, modified("a", 8) + added("c", 9), deleted("b", 10)]))
    assert got.shapes == ["ListStart", "page a", "page b", "Synced", "~a +c", "-b"]
    assert got.restarts == []


@in_virtual_time
async def test_stream_request_has_all_parameters() -> None:
    got = await run_watch(
        StreamScript(A_LIST), StreamScript([bookmark(8)]), labels="app=web", fields="spec.nodeName=n1"
    )
    first, second = got.queries
    assert all(
        WATCH_LIFETIME_SECONDS[0] <= int(query.pop("timeoutSeconds")) <= WATCH_LIFETIME_SECONDS[1]
        for query in (first, second)
    )
    common = {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "labelSelector": "app=web",
        "fieldSelector": "spec.nodeName=n1",
    }
    assert first == {**common, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert second == {**common, "resourceVersion": "7"}


@pytest.mark.parametrize("refusal", [UNKNOWN_OPTION, BadRequest(400, "BadRequest", "what is sendInitialEvents?")])
@in_virtual_time
async def test_server_without_streaming_lists_is_paged(refusal: KubeError) -> None:
    pages = [page("a", "b", version=5, token="more"), page("c", version=5), page(version=9)]
    got = await run_watch(
        error_stream(refusal),
        StreamScript([added("d", 6)]),
        error_stream(EXPIRED),
        StreamScript([bookmark(9)]),
        pages=pages,
        page_size=2,
    )
    assert got.shapes == ["ListStart", "page a b", "page c", "Synced", "+d", "ListStart", "page", "Synced"]
    assert ["limit" in query for query in got.queries] == [False, True, True, False, False, True, False]
    assert got.queries[1]["limit"] == "2"
    assert got.reasons == ["Gone"]  # paging is not a failure


@in_virtual_time
async def test_rejected_resume_does_not_disable_streaming_lists() -> None:
    got = await run_watch(
        StreamScript(A_LIST),
        error_stream(BadRequest(400, "BadRequest", "no")),
        error_stream(EXPIRED),
        StreamScript(A_LIST),
    )
    assert got.reasons == ["BadRequest", "Gone"]
    assert got.shapes[-4:] == ["ListStart", "page a", "page b", "Synced"]


@in_virtual_time
async def test_rejected_pages_are_retried_after_a_pause() -> None:
    pages = [Response(400, {}, b"bad selector"), page("a", version=5)]
    got = await run_watch(error_stream(UNKNOWN_OPTION), StreamScript([bookmark(6)]), pages=pages)
    assert got.shapes == ["ListStart", "ListStart", "page a", "Synced"]
    assert got.reasons == ["BadRequest"]


@in_virtual_time
async def test_expired_pages_are_listed_again() -> None:
    gone = Response(410, {}, msgspec.json.encode(EXPIRED.status()))
    pages = [page("a", version=5, token="more"), gone, page("b", version=9)]
    got = await run_watch(error_stream(UNKNOWN_OPTION), StreamScript([bookmark(9)]), pages=pages)
    assert got.shapes == ["ListStart", "page a", "ListStart", "page b", "Synced"]
    assert "continue" not in got.queries[3]


@in_virtual_time
async def test_changes_during_streamed_list_are_part_of_it() -> None:
    chunks = [added("a", 1) + added("b", 2) + deleted("a", 3) + modified("b", 4) + added("a", 5) + list_end(5)]
    got = await run_watch(StreamScript([*chunks, modified("a", 6)]))
    assert got.shapes == ["ListStart", "page a b", "-a", "page b a", "Synced", "~a"]


@in_virtual_time
async def test_interrupted_list_starts_again() -> None:
    got = await run_watch(
        StreamScript([added("a", 1), added("b", 2)], end=CUT), StreamScript([added("b", 2), list_end(4)])
    )
    assert got.shapes == ["ListStart", "page a", "page b", "ListStart", "page b", "Synced"]
    assert got.versions == ["", ""]


@pytest.mark.parametrize("chunks", [[], [added("a", 1)]])
@in_virtual_time
async def test_incomplete_list_is_retried_with_backoff(chunks: list[bytes]) -> None:
    got = await run_watch(*[StreamScript(chunks)] * 5)
    assert got.reasons == ["BrokenStream"] * 5
    pauses = [pause for _, pause in got.restarts]
    assert pauses == sorted(pauses)
    assert "Synced" not in got.shapes


# -- resuming


@pytest.mark.parametrize("end", ["", CUT])
@in_virtual_time
async def test_ended_stream_is_resumed_at_its_version(end: Exception | str) -> None:
    scripts = [
        StreamScript([*A_LIST, added("c", 9)], end=end),
        StreamScript([modified("c", 11)], end=end),
        StreamScript([deleted("c", 12)]),
    ]
    got = await run_watch(*scripts)
    assert got.shapes == ["ListStart", "page a", "page b", "Synced", "+c", "~c", "-c"]
    assert got.versions == ["", "9", "11"]
    assert got.reasons == (["TransportError"] * 2 if end else [])  # a server may end a stream at any time


@in_virtual_time
async def test_bookmark_advances_the_resume_version() -> None:
    got = await run_watch(
        StreamScript([*A_LIST, bookmark(20)]), StreamScript([bookmark(30) + bookmark(40)]), StreamScript([bookmark(50)])
    )
    assert got.shapes == ["ListStart", "page a", "page b", "Synced"]
    assert got.versions == ["", "20", "40"]


@pytest.mark.parametrize("gone", [error_stream(EXPIRED), StreamScript([error(EXPIRED)])], ids=["an answer", "an event"])
@in_virtual_time
async def test_expired_version_leads_to_a_new_list(gone: StreamScript) -> None:
    got = await run_watch(
        StreamScript(A_LIST), gone, StreamScript([added("z", 90), list_end(99)]), StreamScript([bookmark(100)])
    )
    assert got.shapes[4:] == ["ListStart", "page z", "Synced"]
    assert got.versions == ["", "7", "", "99"]
    assert got.reasons == ["Gone"]


@pytest.mark.parametrize(("why", "after"), [(EXPIRED, ["", ""]), (TROUBLE, ["", "9"])])
@in_virtual_time
async def test_changes_before_an_error_are_not_lost(why: KubeError, after: list[str]) -> None:
    got = await run_watch(
        StreamScript([*A_LIST, added("c", 8) + modified("c", 9) + error(why)]), StreamScript([list_end(10)])
    )
    assert got.shapes[4] == "+c ~c"
    assert got.versions == after


@in_virtual_time
async def test_error_during_list_starts_it_again() -> None:
    got = await run_watch(StreamScript([added("a", 1) + error(TROUBLE)]), StreamScript(A_LIST))
    assert got.shapes == ["ListStart", "page a", "ListStart", "page a", "page b", "Synced"]


@in_virtual_time
async def test_truncated_line_is_repeated_by_next_stream() -> None:
    whole = modified("a", 8)
    got = await run_watch(StreamScript([*A_LIST, whole[:20]], end=CUT), StreamScript([whole]))
    assert got.shapes[4:] == ["~a"]
    assert got.versions == ["", "7"]


@pytest.mark.parametrize("status", [302, 403, 404, 500])
@in_virtual_time
async def test_watch_survives_every_error_status(status: int) -> None:
    got = await run_watch(
        StreamScript([b"no"], status=status),
        StreamScript(A_LIST),
        StreamScript([b"no"], status=status),
        StreamScript([added("c", 8)]),
    )
    assert got.shapes == ["ListStart", "page a", "page b", "Synced", "+c"]
    assert str(got.restarts[0][0]).startswith(f"watch pods: {status} ")


EVENTS = st.lists(
    st.builds(
        lambda make, name, version: (make, name, version),
        st.sampled_from([added, modified, deleted]),
        st.sampled_from("ab\N{SNOWMAN}"),
        st.integers(1, 10**9),
    ),
    max_size=8,
)


@given(events=EVENTS, cuts=st.lists(st.integers(0, 2000), max_size=30))
def test_lines_may_be_split_anywhere(events: list[tuple[Any, str, int]], cuts: list[int]) -> None:
    text = b"".join([*A_LIST, *(make(name, version) for make, name, version in events)])
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:end] for start, end in pairwise(edges)]  # some are empty

    def summary(got: WatchLog) -> tuple[list[str], list[Change]]:
        listed = [name_of(obj) for event in got.events if isinstance(event, ListPage) for obj in event.items]
        return listed, [change for event in got.events if isinstance(event, Changes) for change in event.changes]

    assert summary(run(run_watch(StreamScript(chunks)))) == summary(run(run_watch(StreamScript([text]))))


# -- useless streams


@in_virtual_time
async def test_silent_stream_is_replaced_and_resumed() -> None:
    got = await run_watch(StreamScript(A_LIST, end=None), StreamScript([added("c", 8)]), idle_timeout=40)
    assert got.shapes[4:] == ["+c"]
    assert got.reasons == ["Silence"]
    assert str(got.restarts[0][0]) == "the stream sent nothing for 40 s"
    assert 40 < running_clock().monotonic() < 41


@in_virtual_time
async def test_endless_error_response_is_abandoned() -> None:
    got = await run_watch(StreamScript([b"well..."], status=500, end=None), StreamScript(A_LIST))
    assert got.reasons == ["Silence"]


@in_virtual_time
async def test_error_response_is_read_up_to_a_limit() -> None:
    got = await run_watch(StreamScript([b"no" * 1000] * 10_000, status=500, end=None), StreamScript(A_LIST))
    assert got.reasons == ["ServerError"]
    assert running_clock().monotonic() < 1


@pytest.mark.parametrize("noise", [b"<h1>Welcome</h1>\n", b"[]\n", b'{"type":"ADDED"}\n', b'{"type":"\xff"}\n'])
@in_virtual_time
async def test_invalid_event_breaks_the_stream_without_loss(noise: bytes) -> None:
    got = await run_watch(StreamScript([*A_LIST, added("c", 8) + noise]), StreamScript([added("c", 8)]))
    assert got.reasons == ["BrokenStream"]
    assert got.shapes[4:] == ["+c"]
    assert got.versions == ["", "7"]


@in_virtual_time
async def test_empty_stream_is_retried_with_backoff() -> None:
    got = await run_watch(StreamScript(A_LIST), *[StreamScript()] * 4)
    assert got.reasons == ["BrokenStream"] * 4
    assert got.versions == ["", "7", "7", "7", "7"]


@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"metadata": None},
        {"metadata": {}},
        {"metadata": {"name": 5}},
        {"metadata": {"name": "x", "labels": "x"}},
        {"metadata": {"name": "x", "resourceVersion": {}}},
    ],
)
@in_virtual_time
async def test_invalid_object_breaks_only_the_stream(obj: Object) -> None:
    got = await run_watch(StreamScript([*A_LIST, line("ADDED", obj)]), StreamScript([added("c", 9)]))
    assert got.shapes == ["ListStart", "page a", "page b", "Synced", "+c"]
    assert got.reasons == ["BrokenStream"]


# -- backoff


@in_virtual_time
async def test_backoff_grows_to_a_limit_with_jitter() -> None:
    got = await run_watch(*[StreamScript(end=CUT)] * 12)
    pauses = [pause for _, pause in got.restarts]
    assert 0.15 <= pauses[0] <= 0.25
    assert all(later > earlier for earlier, later in pairwise(pauses[:7]))
    assert all(0.75 * MAX_BACKOFF <= pause <= 1.25 * MAX_BACKOFF for pause in pauses[8:])
    assert len(set(pauses)) == len(pauses)
    assert running_clock().monotonic() == pytest.approx(sum(pauses))


@pytest.mark.parametrize("sign_of_life", [added("c", 8), bookmark(8)])
@in_virtual_time
async def test_data_resets_the_backoff(sign_of_life: bytes) -> None:
    got = await run_watch(StreamScript(A_LIST), *[StreamScript(end=CUT)] * 6, StreamScript([sign_of_life], end=CUT))
    pauses = [pause for _, pause in got.restarts]
    assert pauses[-2] >= 0.75 * 0.2 * 2**5  # the sixth in a row, with jitter of a quarter
    assert pauses[-1] < 0.3


@in_virtual_time
async def test_useless_lists_are_retried_with_backoff() -> None:
    pages = [page("a", version=number) for number in range(1, 7)]
    got = await run_watch(error_stream(UNKNOWN_OPTION), *[StreamScript([error(EXPIRED)])] * 6, pages=pages)
    assert got.reasons == ["Gone"] * 6
    assert got.restarts[-1][1] > 4


@in_virtual_time
async def test_restarts_are_reported_and_counted_by_reason() -> None:
    def counted(reason: str) -> float:
        labels = {"resource": "pods", "reason": reason}
        return REGISTRY.get_sample_value("tapestry_watch_restarts_total", labels) or 0

    reasons = ["TransportError", "Gone", "NotFound", "BrokenStream"]
    before = [counted(reason) for reason in reasons]
    lost = NotFound(404, "NotFound", "no such resource")
    got = await run_watch(
        StreamScript(A_LIST, end=CUT),
        error_stream(EXPIRED),
        error_stream(lost),
        StreamScript([b"?\n"]),
        StreamScript(A_LIST),
    )
    assert got.reasons == reasons
    assert got.restarts[0][0] is CUT
    assert [counted(reason) - count for reason, count in zip(reasons, before, strict=True)] == [1, 1, 1, 1]


# -- closing


@pytest.mark.parametrize("events", range(1, 6))
@in_virtual_time
async def test_closing_the_watch_frees_its_stream(events: int) -> None:
    streams = ScriptedStreams(deque([StreamScript([*A_LIST, added("c", 8)], end=None)]))
    async with aclosing(Watch(Client(streams), PODS).events()) as watch:
        for _ in range(events):
            await anext(watch)
        assert streams.open == 1
    assert streams.open == 0


@in_virtual_time
async def test_cancelling_the_reader_frees_its_stream() -> None:
    streams = ScriptedStreams(deque([StreamScript(A_LIST, end=None)]))

    async def read() -> None:
        async with aclosing(Watch(Client(streams), PODS).events()) as events:
            async for event in events:
                if isinstance(event, Synced):
                    synced.set()

    synced = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(read())
        await synced.wait()
        assert streams.open == 1
        task.cancel()
    assert streams.open == 0


@in_virtual_time
async def test_error_of_the_reader_passes_through() -> None:
    streams = ScriptedStreams(deque([StreamScript(A_LIST, end=None)]))

    async def read() -> None:
        async with aclosing(Watch(Client(streams), PODS).events()) as events:
            async for _ in events:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await read()
    assert streams.open == 0


# -- on the in-process API


@dataclass
class PagingTransport:
    """A transport to a server that cannot stream lists."""

    inner: Connection

    async def send(self, request: Request) -> Response:
        return await self.inner.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        if "sendInitialEvents" in request.query:
            return self._refused()
        return self.inner.stream(request)

    @asynccontextmanager
    async def _refused(self) -> AsyncIterator[Stream]:
        yield PlayingStream(error_stream(UNKNOWN_OPTION))

    def abort(self) -> None:
        self.inner.abort()

    async def close(self) -> None:
        await self.inner.close()


class WatchMirror:
    """The state of the server as a watch reader sees it: name to version."""

    def __init__(self) -> None:
        self.pods: dict[str, int] = {}
        self.synced = asyncio.Event()
        self.lists = 0
        self._listed: set[str] = set()
        self._newest = 0
        self._listing = False

    async def follow(self, watch: Watch) -> None:
        async with aclosing(watch.events()) as events:
            async for event in events:
                self.handle(event)

    def handle(self, event: WatchEvent) -> None:
        match event:
            case ListStart():
                self._listing, self._listed, self._newest = True, set(), 0
            case ListPage(items):
                assert self._listing
                for obj in items:
                    self.pods[name_of(obj)] = int(version_of(obj))
                    self._listed.add(name_of(obj))
            case Synced():
                self._listing = False
                self.lists += 1
                self.pods = {name: version for name, version in self.pods.items() if name in self._listed}
                self.synced.set()
            case Changes(changes):
                for change in changes:
                    self.change(change)

    def change(self, change: Change) -> None:
        name, version = name_of(change.object), int(version_of(change.object))
        assert version > self._newest, f"{change.type} {name}: {version} after {self._newest} is old or a repetition"
        self._newest = version
        assert change.object["kind"] == "Pod"
        match change.type:
            case "ADDED":
                assert name not in self.pods
                self.pods[name] = version
            case "MODIFIED":
                assert self.pods[name] < version
                self.pods[name] = version
            case "DELETED":
                del self.pods[name]


def truth(api: InProcessApi) -> dict[str, int]:
    return {name_of(obj): int(version_of(obj)) for obj in api.dump()}


@dataclass
class WatchWorld:
    """An API with a writer and a reader that follows it."""

    api: InProcessApi
    transport: Transport
    mirror: WatchMirror = field(default_factory=WatchMirror)
    restarts: list[str] = field(default_factory=list)
    writes: int = 0

    async def write(self, verb: str, name: str = "a") -> None:
        """Create, update or delete the pod, if possible."""
        client, pod = Client(self.api), object_named(name, "default")
        self.writes += 1
        with suppress(Conflict, NotFound):
            match verb:
                case "create":
                    await client.create(PODS, specimen(PODS, name, "default"))
                case "update":
                    await client.patch(PODS, pod, {"metadata": {"labels": {"write": str(self.writes)}}})
                case "delete":
                    await client.delete(PODS, pod)

    def disturb(self, what: str) -> None:
        match what:
            case "disconnect":
                self.api.disconnect()
            case "cut":
                self.transport.abort()
            case "compact":
                self.api.compact()
            case "freeze":
                self.api.freeze()
            case "thaw":
                self.api.thaw()
            case "lag":
                self.api.stale(2)
            case "catch up":
                self.api.stale(None)

    def truth(self) -> dict[str, int]:
        return {name_of(obj): int(version_of(obj)) for obj in self.api.dump()}


@asynccontextmanager
async def new_world(*, streaming: bool = True, **options: Any) -> AsyncIterator[WatchWorld]:
    api = InProcessApi([PODS], now=running_clock().now)
    world = WatchWorld(api, api.connect() if streaming else PagingTransport(api.connect()))

    def restarted(error: KubeError, _pause: float) -> None:
        world.restarts.append(type(error).__name__)

    watch = Watch(Client(world.transport), PODS, on_restart=restarted, page_size=2, **options)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(world.mirror.follow(watch))
        yield world
        following.cancel()


LISTS = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "paged"])


@LISTS
@in_virtual_time
async def test_watch_follows_for_hours_after_one_list(streaming: bool) -> None:
    async with new_world(streaming=streaming) as world:
        for name in "abc":
            await world.write("create", name)
        for hour in range(24):
            await world.write("update" if hour % 3 else "delete", "abc"[hour % 3])
            await world.write("create", "abc"[hour % 3])
            await asyncio.sleep(3600)
            assert world.mirror.pods == world.truth()
        assert world.mirror.lists == 1
        assert world.restarts == []


@LISTS
@in_virtual_time
async def test_lost_connection_needs_no_new_list(streaming: bool) -> None:
    async with new_world(streaming=streaming) as world:
        await world.write("create")
        await asyncio.sleep(1)
        for disturbance in ("disconnect", "cut"):
            world.disturb(disturbance)
            await world.write("update")
            await asyncio.sleep(1)
            assert world.mirror.pods == world.truth()
        assert world.mirror.lists == 1


@LISTS
@in_virtual_time
async def test_compacted_changes_are_listed_again(streaming: bool) -> None:
    async with new_world(streaming=streaming) as world:
        for name in "abc":
            await world.write("create", name)
        await asyncio.sleep(1)
        world.disturb("freeze")
        await world.write("delete", "a")
        await world.write("update", "b")
        world.disturb("compact")
        await asyncio.sleep(1)
        world.disturb("thaw")
        await asyncio.sleep(1)
        assert world.mirror.pods == world.truth()
        assert world.mirror.lists == 2
        assert world.restarts == ["Gone"]


@in_virtual_time
async def test_late_bookmarks_resume_without_a_list() -> None:
    async with new_world(idle_timeout=25) as world:
        await world.write("create")
        await asyncio.sleep(100)
        assert set(world.restarts) == {"Silence"}
        await world.write("update")
        await asyncio.sleep(30)
        assert world.mirror.pods == world.truth()
        assert world.mirror.lists == 1


DISTURBANCES = ["disconnect", "cut", "compact", "freeze", "thaw", "lag", "catch up"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "update", "delete", *DISTURBANCES]),
        st.sampled_from("abcd"),
        st.sampled_from([None, None, 0, 0.3, 70]),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(steps=STEPS, streaming=st.booleans())
def test_reader_ends_with_the_server_state(steps: list[tuple[str, str, float | None]], streaming: bool) -> None:
    async def scenario() -> None:
        async with new_world(streaming=streaming) as world:
            for what, name, pause in steps:
                if what in DISTURBANCES:
                    world.disturb(what)
                else:
                    await world.write(what, name)
                if pause is not None:
                    await asyncio.sleep(pause)
            world.disturb("catch up")
            world.disturb("thaw")
            await asyncio.sleep(10 * MAX_BACKOFF)
            assert world.mirror.pods == world.truth()

    run(scenario())


@pytest.mark.parametrize("lean", [True, False])
def test_managed_fields_are_omitted_on_request(lean: bool) -> None:
    metadata = {"name": "one", "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}]}
    line = msgspec.json.encode(
        {"type": "ADDED", "object": {"metadata": metadata, "spec": {"metadata": {"managedFields": 1}}}}
    )
    [change] = decode_chunk([line], without_managed_fields=lean).changes
    assert ("managedFields" in change.object["metadata"]) is not lean
    assert change.object["spec"] == {"metadata": {"managedFields": 1}}
