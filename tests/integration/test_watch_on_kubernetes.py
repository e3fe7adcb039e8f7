"""Watches of a real kube-apiserver that dies, compacts its history or falls silent."""

import asyncio
import base64
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request, Response, Stream
from tapestry.client.watch import Changes, ListPage, ListStart, Synced, Watch, WatchEvent
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, name_of, object_named, version_of
from tapestry.kube.resources import CONFIGMAPS
from tapestry.local.kubernetes import ControlPlane

from .planes import FORGETTING, Plane, Start, only_on_kubernetes

TIMEOUT = 60.0


Query = dict[str, str]


@dataclass
class Observed:
    """A transport that records requests and can alter or delay watches."""

    inner: HttpTransport
    alter: Callable[[Query], Query]
    lists: list[Query] = field(default_factory=list)
    streams: list[Query] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    noted: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.gate.set()

    async def send(self, request: Request) -> Response:
        self.lists.append(dict(request.query))
        return await self.inner.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        query = self.alter(dict(request.query))
        async with self.noted:
            self.streams.append(query)
            self.noted.notify_all()
        await self.gate.wait()
        async with self.inner.stream(replace(request, query=query)) as stream:
            yield stream

    def abort(self) -> None:
        self.inner.abort()

    async def close(self) -> None:
        await self.inner.close()


class Reader:
    """Follow the config maps of a namespace."""

    def __init__(self, transport: Observed, namespace: str, **options: Any) -> None:
        self.transport = transport
        self.watch = Watch(Client(transport), CONFIGMAPS, namespace, on_restart=self._restarted, **options)
        self.objects: dict[str, Object] = {}
        self.lists = 0
        self.restarts: list[str] = []
        self._listed: set[str] = set()

    async def follow(self) -> None:
        async with aclosing(self.watch.events()) as events:
            async for event in events:
                async with self.transport.noted:
                    self._apply(event)
                    self.transport.noted.notify_all()

    async def wait_until(self, claim: Callable[[], bool]) -> None:
        """Wait for the event, or the new stream, that makes `claim` true."""
        async with asyncio.timeout(TIMEOUT), self.transport.noted:
            await self.transport.noted.wait_for(claim)

    async def wait_for_names(self, *names: str) -> None:
        await self.wait_until(lambda: self.lists > 0 and sorted(self.objects) == sorted(names))

    def _apply(self, event: WatchEvent) -> None:
        match event:
            case ListStart():
                self._listed = set()
            case ListPage(items):
                self._listed.update(map(name_of, items))
                self.objects |= {name_of(obj): obj for obj in items}
            case Synced():
                self.objects = {name: obj for name, obj in self.objects.items() if name in self._listed}
                self.lists += 1
            case Changes(changes):
                for type, obj in changes:
                    before = self.objects.pop(name_of(obj), None)
                    assert (before is None) == (type == "ADDED"), f"{type} {name_of(obj)} comes out of turn"
                    if type != "DELETED":
                        self.objects[name_of(obj)] = obj

    def _restarted(self, error: KubeError, _pause: float) -> None:
        self.restarts.append(type(error).__name__)


@asynccontextmanager
async def new_reader(
    kubeconfig: Path, namespace: str, *, alter: Callable[[Query], Query] = lambda query: query, **options: Any
) -> AsyncIterator[Reader]:
    transport = Observed(HttpTransport(load_access([kubeconfig], environ=os.environ)), alter)
    reader = Reader(transport, namespace, **options)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(reader.follow())
        try:
            yield reader
        finally:
            following.cancel()
    await transport.close()


@asynccontextmanager
async def new_client(kubeconfig: Path) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load_access([kubeconfig], environ=os.environ)))
    yield client
    await client.close()


# -- a healthy server


async def test_list_is_streamed_and_followed(client: Client, kubeconfig: Path, namespace: str) -> None:
    one = await client.create(CONFIGMAPS, object_named("one", namespace))
    async with new_reader(kubeconfig, namespace) as reader:
        await reader.wait_for_names("one")
        assert reader.objects["one"] == one
        two = await client.create(CONFIGMAPS, object_named("two", namespace))
        changed = await client.patch(CONFIGMAPS, one, {"data": {"colour": "red"}})
        await client.delete(CONFIGMAPS, two)
        await reader.wait_until(lambda: reader.objects == {"one": changed})
        assert reader.lists == 1
        [stream] = reader.transport.streams
    assert stream["sendInitialEvents"] == "true"
    assert reader.transport.lists == []  # this server streams lists, so no page was requested
    assert reader.restarts == []


async def test_empty_list_is_synced(kubeconfig: Path, namespace: str) -> None:
    async with new_reader(kubeconfig, namespace) as reader:
        await reader.wait_for_names()
        assert reader.lists == 1


async def test_pages_are_listed_when_lists_are_not_streamed(client: Client, kubeconfig: Path, namespace: str) -> None:
    for number in range(5):
        await client.create(CONFIGMAPS, object_named(f"c{number}", namespace))

    def misspelt(query: Query) -> Query:
        return {key: text for key, text in query.items() if key != "resourceVersionMatch"}

    options: dict[str, Any] = {"page_size": 2, "fields": "metadata.name!=c3"}
    async with new_reader(kubeconfig, namespace, alter=misspelt, **options) as reader:
        await reader.wait_for_names("c0", "c1", "c2", "c4")
        await client.create(CONFIGMAPS, object_named("c5", namespace))
        await client.delete_collection(CONFIGMAPS, namespace, fields="metadata.name=c0")
        await reader.wait_for_names("c1", "c2", "c4", "c5")
    first, second, *_ = reader.transport.lists
    assert (first["limit"], "continue" in first, "continue" in second) == ("2", False, True)
    assert reader.restarts == []


async def test_selector_watch_reports_objects_entering_and_leaving(
    client: Client, kubeconfig: Path, namespace: str
) -> None:
    plain = await client.create(CONFIGMAPS, object_named("c", namespace))
    async with new_reader(kubeconfig, namespace, labels="shown=yes") as reader:
        await reader.wait_for_names()
        labelled = await client.patch(CONFIGMAPS, plain, {"metadata": {"labels": {"shown": "yes"}}})
        await reader.wait_for_names("c")
        await client.patch(CONFIGMAPS, labelled, {"metadata": {"labels": {"shown": None}}})
        await reader.wait_for_names()
        assert reader.lists == 1


async def test_bookmarks_advance_the_resume_version(client: Client, kubeconfig: Path, namespace: str) -> None:
    async with new_reader(kubeconfig, namespace, alter=lambda query: {**query, "timeoutSeconds": "4"}) as reader:
        await reader.wait_for_names()
        elsewhere = await client.create(CONFIGMAPS, {"metadata": {"generateName": "c-", "namespace": "default"}})
        await reader.wait_until(
            lambda: len(reader.transport.streams) == 2
        )  # the server ends the first after a bookmark
        await client.create(CONFIGMAPS, object_named("late", namespace))
        await reader.wait_for_names("late")
        assert reader.lists == 1
        assert reader.restarts == []
    assert int(reader.transport.streams[1]["resourceVersion"]) >= int(version_of(elsewhere))


# -- a failing server


@pytest.fixture(scope="module")
def plane(start: Start) -> Iterator[Plane]:
    """A separate cluster that tests may damage."""
    with start("plane") as plane:
        yield plane


def compact(plane: ControlPlane) -> None:
    """Compact all history of etcd."""

    def ask(path: str, body: Any) -> Any:
        request = urllib.request.Request(f"{plane.etcd_url}/v3/kv/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    revision = ask("range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
    ask("compaction", {"revision": revision, "physical": True})


async def test_watch_survives_a_server_restart(plane: Plane) -> None:
    async with new_reader(plane.kubeconfig, "default") as reader, new_client(plane.kubeconfig) as client:
        existing = await client.create(CONFIGMAPS, object_named("kept", "default"))
        await reader.wait_until(lambda: "kept" in reader.objects)
        await asyncio.to_thread(plane.restart)
        changed = await client.patch(CONFIGMAPS, existing, {"data": {"colour": "red"}})
        await client.create(CONFIGMAPS, object_named("new", "default"))
        await reader.wait_until(lambda: "new" in reader.objects)
        assert reader.objects["kept"] == changed
        assert reader.restarts


@only_on_kubernetes(FORGETTING)
async def test_objects_deleted_before_compaction_disappear_after_relist(plane: ControlPlane) -> None:
    async with new_reader(plane.kubeconfig, "default") as reader, new_client(plane.kubeconfig) as client:
        doomed = await client.create(CONFIGMAPS, object_named("doomed", "default"))
        await reader.wait_until(lambda: "doomed" in reader.objects)
        reader.transport.gate.clear()
        reader.transport.abort()
        await client.delete(CONFIGMAPS, doomed)
        await client.create(CONFIGMAPS, object_named("born", "default"))
        await asyncio.to_thread(compact, plane)
        await asyncio.to_thread(plane.restart)  # its cache in memory is lost too
        reader.transport.gate.set()
        await reader.wait_until(lambda: reader.lists == 2)
        assert "Gone" in reader.restarts
        listed = {name_of(obj): obj for obj in await client.list(CONFIGMAPS, "default")}
        assert "doomed" not in listed
        assert reader.objects == listed


async def test_silent_server_is_detected_and_watch_resumes(plane: Plane) -> None:
    async with (
        new_reader(plane.kubeconfig, "kube-system", idle_timeout=2) as reader,
        new_client(plane.kubeconfig) as client,
    ):
        await reader.wait_until(lambda: reader.lists == 1)
        before = set(reader.objects)
        plane.pause()
        try:
            await reader.wait_until(lambda: "Silence" in reader.restarts and len(reader.transport.streams) > 1)
        finally:
            plane.resume()
        await client.create(CONFIGMAPS, object_named("after", "kube-system"))
        await reader.wait_for_names("after", *before)
        assert reader.lists == 1
