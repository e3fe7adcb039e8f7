"""Processes of a group: each plane is taken by one of them, whichever join, leave or die."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.planes import PLANES, own_process_name, plane_id
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import Connection, InProcessApi, in_virtual_time, running_clock
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, name_of, object_named
from tapestry.kube.resources import EVENTS, LEASES
from tapestry.planes.plane_set import PlaneState
from tapestry.planes.processes import NAMED_ONLY, Processes, candidate_for, process_lease

from .recorded_planes import AN_HOUR, RecordedPlanes, install, wait_for_phase

NAMES = st.sets(st.text(min_size=1, max_size=5), max_size=8)


@given(st.text(max_size=16), NAMES)
def test_candidate_is_one_of_the_processes(plane: str, processes: set[str]) -> None:
    candidate = candidate_for(plane, processes)
    assert candidate in processes if processes else candidate is None
    assert candidate == candidate_for(plane, sorted(processes, reverse=True)), "the order does not matter"


@given(st.text(max_size=16), NAMES, st.text(min_size=1, max_size=5))
def test_joining_process_moves_only_its_own_planes(plane: str, processes: set[str], other: str) -> None:
    without, together = processes - {other}, processes | {other}
    assert candidate_for(plane, together) in (other, candidate_for(plane, without))


def test_planes_are_spread_over_all_processes() -> None:
    processes = [f"planes-{number}" for number in range(4)]
    counts = dict.fromkeys(processes, 0)
    for number in range(1000):
        counts[candidate_for(f"plane{number}", processes) or ""] += 1
    assert min(counts.values()) > 180


# -- two processes on one management API


@dataclass(eq=False)
class Process:
    """A process that can be cut off from the management API."""

    api: InProcessApi
    name: str
    is_named_only: bool = False
    planes: RecordedPlanes = field(default_factory=RecordedPlanes)
    connections: list[Connection] = field(default_factory=list)
    is_cut_off: bool = False

    def __post_init__(self) -> None:
        clock = running_clock()
        config = ManagerConfig(
            leader_election=process_lease(self.name), metrics=Metrics(address=""), probes=Probes(address="")
        )
        self.manager = Manager(
            config,
            self.connect,
            identity=f"{self.name}_id{NAMED_ONLY if self.is_named_only else ''}",
            now=clock.now,
            monotonic=clock.monotonic,
        )
        self.processes = Processes(self.name, self.manager.elector, clock.monotonic, is_named_only=self.is_named_only)
        self.manager.register("planes", lambda manager: install(manager, self.processes, self.planes))

    def connect(self) -> Transport:
        self.connections.append(self.api.connect())
        return SwitchableTransport(self, self.connections[-1])

    def cut_off(self) -> None:
        self.is_cut_off = True
        for each in self.connections:
            each.abort()

    @property
    def open_planes(self) -> set[str]:
        return {each.id for each in self.planes if each.state is PlaneState.OPEN}


@dataclass
class SwitchableTransport:
    """Transport of a process that fails while the process is cut off."""

    process: Process
    api: Connection

    async def send(self, request: Request) -> Response:
        self._check(request)
        return await self.api.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self._check(request)
        return self.api.stream(request)

    def _check(self, request: Request) -> None:
        if self.process.is_cut_off:
            raise TransportError(f"{request}: cut off", maybe_sent=False)

    def abort(self) -> None:
        self.api.abort()

    async def close(self) -> None:
        await self.api.close()


@asynccontextmanager
async def running(process: Process) -> AsyncIterator[Process]:
    """Run a process; at the end of the context it stops."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(process.manager.run())
        await wait_until(process.processes.holds_lease)
        yield process
        task.cancel()


async def wait_until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(AN_HOUR):
        while not is_true():  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.1)


def new_api() -> InProcessApi:
    return InProcessApi([PLANES, LEASES, EVENTS], now=running_clock().now)


async def create_planes(client: Client, count: int, name: str = "p", **spec: str) -> list[Object]:
    """Create planes, and wait until they are open."""
    for number in range(count):
        await client.create(PLANES, object_named(f"{name}{number}") | {"spec": spec})
    return [await wait_for_phase(client, "Open", f"{name}{number}") for number in range(count)]


def holders_of(planes: list[Object]) -> dict[str, str]:
    return {plane_id(each): each["status"]["holder"] for each in planes}


@in_virtual_time
async def test_each_plane_is_taken_by_its_candidate() -> None:
    api = new_api()
    async with running(Process(api, "a")) as a, running(Process(api, "b")) as b:
        planes = await create_planes(Client(api), 12)
        assert holders_of(planes) == {plane_id(each): candidate_for(plane_id(each), ["a", "b"]) for each in planes}
        assert {each["status"]["epoch"] for each in planes} == {1}
        assert a.open_planes
        assert b.open_planes
        assert not a.open_planes & b.open_planes


@in_virtual_time
async def test_new_planes_avoid_a_stopped_process() -> None:
    api = new_api()
    async with running(Process(api, "a")) as a:
        async with running(Process(api, "b")):
            first = await create_planes(Client(api), 8)
        second = await create_planes(Client(api), 8, "q")
        assert set(holders_of(second).values()) == {"a"}
        held = {name for name, holder in holders_of(first).items() if holder == "a"}
        assert a.open_planes == held | set(holders_of(second))
        async with running(Process(api, "b")) as again:
            own = set(holders_of(first)) - held
            await wait_until(lambda: again.open_planes == own)
            found = [await Client(api).get(PLANES, name_of(each)) for each in first]
            assert {each["status"]["epoch"] for each in found if each["status"]["holder"] == "b"} == {2}


@in_virtual_time
async def test_planes_wait_until_lease_of_dead_candidate_expires() -> None:
    api, clock = new_api(), running_clock()
    async with running(Process(api, "a")), running(Process(api, "b")) as b:
        b.cut_off()
        started = clock.monotonic()
        planes = await create_planes(Client(api), 8)
        assert set(holders_of(planes).values()) == {"a"}
        assert clock.monotonic() - started <= 16


@in_virtual_time
async def test_process_without_lease_stops_writing_before_it_expires() -> None:
    api = new_api()
    async with running(Process(api, "a")) as a, running(Process(api, "b")) as b:
        await create_planes(Client(api), 8)
        fence = next(each.hold.fence for each in b.planes if each.hold is not None)
        assert fence.is_valid()
        b.cut_off()
        await wait_until(lambda: not fence.is_valid())
        assert "b" in a.processes.live()
        await wait_until(lambda: "b" not in a.processes.live())
        before = b.open_planes
        b.is_cut_off = False
        await wait_until(fence.is_valid)
        assert b.open_planes == before, "no other process takes a plane that is held"
        assert not a.open_planes & b.open_planes


@in_virtual_time
async def test_plane_moves_to_the_process_that_its_record_names() -> None:
    api = new_api()
    client = Client(api)
    async with running(Process(api, "a")) as a, running(Process(api, "b")) as b:
        [plane] = await create_planes(client, 1, backend="etcd")
        here, there = (a, b) if plane["status"]["holder"] == "a" else (b, a)
        await client.patch(PLANES, plane, {"spec": {"process": there.name}})
        await wait_until(lambda: there.open_planes == {plane_id(plane)})
        assert not here.open_planes
        moved = await wait_for_phase(client, "Open", "p0")
        assert (moved["status"]["holder"], moved["status"]["epoch"]) == (there.name, 2)


@in_virtual_time
async def test_plane_fails_where_its_folder_does_not_exist() -> None:
    api = new_api()
    client = Client(api)
    async with running(Process(api, "a")) as a, running(Process(api, "b")) as b:
        [plane] = await create_planes(client, 1, process="a")
        await client.patch(PLANES, object_named("p0"), {"spec": {"process": "b"}})
        failed = await wait_for_phase(client, "Failed", "p0")
        assert failed["status"]["holder"] == "b"
        assert "copy this folder from the process that held the plane last" in failed["status"]["message"]
        assert not b.planes.disk.origins, "no empty plane takes its place"
        b.planes.disk.origins |= a.planes.disk.origins
        assert (await wait_for_phase(client, "Open", "p0"))["status"]["holder"] == "b"
        await client.patch(PLANES, object_named("p0"), {"spec": {"process": "a"}})
        await wait_until(lambda: a.open_planes == {plane_id(plane)})


@in_virtual_time
async def test_process_with_the_folder_takes_copies() -> None:
    api = new_api()
    async with running(Process(api, "a")), running(Process(api, "b")) as b:
        await create_planes(Client(api), 1, "source", process="b")
        copies = await create_planes(Client(api), 8, copyOf="source0")
        assert set(holders_of(copies).values()) == {"b"}
        assert {b.planes.disk.origins[plane_id(each)] for each in copies} == {
            plane_id(await Client(api).get(PLANES, "source0"))
        }


@in_virtual_time
async def test_copies_created_with_their_source_share_its_process() -> None:
    api = new_api()
    async with running(Process(api, "a")), running(Process(api, "b")):
        for number in range(8):
            for spec in ({}, {"copyOf": f"source{number}"}):
                name = f"{'copy' if spec else 'source'}{number}"
                await Client(api).create(PLANES, object_named(name) | {"spec": spec})
        for number in range(8):
            source, copy = [await wait_for_phase(Client(api), "Open", f"{each}{number}") for each in ("source", "copy")]
            assert source["status"]["holder"] == copy["status"]["holder"]
            assert copy["status"]["epoch"] == 1


@in_virtual_time
async def test_copy_from_folder_of_another_process_fails() -> None:
    api = new_api()
    client = Client(api)
    async with running(Process(api, "a")), running(Process(api, "b")):
        await create_planes(client, 1, "source", process="b")
        await client.create(PLANES, object_named("p") | {"spec": {"copyOf": "source0", "process": "a"}})
        failed = await wait_for_phase(client, "Failed")
        assert "plane 'source0' is in a folder of process 'b'; set spec.process to 'b'" in failed["status"]["message"]
        await client.patch(PLANES, object_named("p"), {"spec": {"process": "b"}})
        assert (await wait_for_phase(client, "Open"))["status"]["holder"] == "b"


@in_virtual_time
async def test_second_process_with_the_same_name_waits() -> None:
    api = new_api()
    async with running(Process(api, "a")) as a:
        twin = Process(api, "a")
        twin.manager.elector.identity = "a_other"
        async with asyncio.TaskGroup() as group:
            task = group.create_task(twin.manager.run())
            [plane] = await create_planes(Client(api), 1)
            await asyncio.sleep(60)
            assert not twin.processes.holds_lease()
            assert a.open_planes == {plane_id(plane)}
            assert not twin.open_planes
            task.cancel()


@in_virtual_time
async def test_named_only_process_holds_only_planes_that_name_it() -> None:
    api = new_api()
    client = Client(api)
    async with running(Process(api, "a")) as a, running(Process(api, "b", is_named_only=True)) as b:
        planes = await create_planes(client, 8, backend="memory")
        assert set(holders_of(planes).values()) == {"a"}
        await client.patch(PLANES, planes[0], {"spec": {"process": "b"}})
        await wait_until(lambda: b.open_planes == {plane_id(planes[0])})
        assert plane_id(planes[0]) not in a.open_planes
        moved = await wait_for_phase(client, "Open", "p0")
        await client.patch(PLANES, moved, {"spec": {"process": "a"}})
        await wait_until(lambda: not b.open_planes)
        await wait_until(lambda: plane_id(planes[0]) in a.open_planes)


@in_virtual_time
async def test_plane_waits_for_its_own_process() -> None:
    api = new_api()
    client = Client(api)
    async with running(Process(api, "a")) as a:
        [plane] = await create_planes(client, 1, backend="etcd")
        id, name = plane_id(plane), own_process_name(plane_id(plane))
        await wait_until(lambda: a.open_planes == {id})
        await client.patch(PLANES, object_named("p0"), {"spec": {"ownProcess": True}})
        await asyncio.sleep(60)
        assert a.open_planes == {id}, "no such process has started"
        async with running(Process(api, name, is_named_only=True)) as own:
            await wait_until(lambda: own.open_planes == {id})
            assert not a.open_planes
            await client.patch(PLANES, object_named("p0"), {"spec": {"ownProcess": False}})
            await wait_until(lambda: a.open_planes == {id})
            assert not own.open_planes
