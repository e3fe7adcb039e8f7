import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.controller.config import Filter, LeaderElection, ManagerConfig, Metrics, Probes
from tapestry.controller.controller import Result
from tapestry.controller.informer import Informer
from tapestry.controller.manager import Manager, is_enabled
from tapestry.controller.testing.api import InProcessApi
from tapestry.controller.testing.clock import VirtualClock
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, labels_of, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS, LEASES, NODES, PODS

ELECTION = LeaderElection(enabled=True, namespace="default", name="test")


class RecordingTransport:
    """A transport that records its requests and can become silent."""

    def __init__(self, inner: Transport, carried: Callable[[str], None], *, silent: bool) -> None:
        self.inner = inner
        self.carried = carried
        self.is_silent = silent
        self.is_closed = False

    async def send(self, request: Request) -> Response:
        await self._carried(str(request))
        return await self.inner.send(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[Stream]:
            await self._carried(f"WATCH {request.path}")
            async with self.inner.stream(request) as stream:
                yield stream

        return opened()

    async def _carried(self, request: str) -> None:
        self.carried(request)
        if self.is_silent:
            await asyncio.sleep(30)
            raise TransportError(f"{request}: no answer in 30 s", maybe_sent=True)

    def abort(self) -> None:
        self.inner.abort()

    async def close(self) -> None:
        self.is_closed = True
        await self.inner.close()


class TransportFactory:
    """Create the transports of one manager."""

    def __init__(self, api: InProcessApi, *, silent: bool = False) -> None:
        self.api = api
        self.silent = silent
        self.requests: list[str] = []
        self.used = asyncio.Event()
        self.all: list[RecordingTransport] = []

    def connect(self) -> RecordingTransport:
        line = RecordingTransport(self.api.connect(), self.carried, silent=self.silent)
        self.all.append(line)
        return line

    def carried(self, request: str) -> None:
        self.requests.append(request)
        self.used.set()

    def cut(self) -> None:
        for line in self.all:
            line.is_silent = True
            line.abort()


class SlowReconciler:
    """A reconciler that takes time and records what it started and finished."""

    def __init__(self, clock: VirtualClock, seconds: float = 0) -> None:
        self.clock = clock
        self.seconds = seconds
        self.started: list[tuple[str, float]] = []
        self.finished: list[tuple[str, float]] = []

    async def __call__(self, key: str) -> None:
        self.started.append((key, self.clock.monotonic()))
        await asyncio.sleep(self.seconds)
        self.finished.append((key, self.clock.monotonic()))


# -- assembly


async def test_setup_runs_once_in_order_of_registration(world: Any) -> None:
    called: list[str] = []
    manager = world.manager().register("b", lambda _: called.append("b")).register("a", lambda _: called.append("a"))
    assert called == []
    manager.setup()
    manager.setup()
    assert called == ["b", "a"]


async def test_run_calls_setup(world: Any) -> None:
    work = SlowReconciler(world.clock)
    await world.add(world.widgets, "w")
    async with world.running(world.widget_manager(work)):
        assert [key for key, _ in work.started] == ["default/w"]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["*"], "at web-a web-b"),
        ([], ""),
        (["at"], "at"),
        (["web-*"], "web-a web-b"),
        (["*", "-web-*"], "at"),
        (["*", "-web-*", "web-b"], "at web-b"),
        (["-at"], ""),
        (["WEB-*"], ""),
    ],
)
def test_last_matching_pattern_wins(patterns: list[str], chosen: str) -> None:
    assert [name for name in ("at", "web-a", "web-b") if is_enabled(name, patterns)] == chosen.split()


async def test_only_enabled_controllers_are_set_up(world: Any) -> None:
    called: list[str] = []
    manager = world.manager(controllers=["*", "-b"])
    for name in "abc":
        manager.register(name, lambda _, name=name: called.append(name))
    manager.setup()
    assert called == ["a", "c"]


async def test_enabling_no_controller_is_an_error(world: Any) -> None:
    manager = world.manager(controllers=["other"]).register("b", lambda _: None).register("a", lambda _: None)
    with pytest.raises(ValueError, match=r"controllers: \['other'\] enables no controller; known: a, b"):
        manager.setup()


async def test_controller_gets_options_and_workers(world: Any) -> None:
    manager = world.manager(options={"at": {"image": "busybox"}}, workers=2)
    assert manager.options("at") == {"image": "busybox"}
    assert manager.options("unheard-of") == {}
    work = SlowReconciler(world.clock, seconds=10)
    usual, own = manager.controller("usual", work), manager.controller("own", work, workers=3)
    for controller, at_once in ((usual, 2), (own, 3)):
        work.started.clear()
        for number in range(5):
            controller.queue.add(str(number))
        async with asyncio.TaskGroup() as group:
            group.create_task(controller.run())
            await asyncio.sleep(1)
            assert len(work.started) == at_once
            controller.queue.close()


# -- informers


async def test_equal_requests_share_an_informer(world: Any) -> None:
    manager = world.manager(keep=lambda _: True)
    pods = manager.informer(PODS)
    assert manager.informer(PODS, indexers={"name": lambda pod: [name_of(pod)]}) is pods
    assert pods.store.by("name", "p") == []
    others = [
        manager.informer(NODES),
        manager.informer(PODS, labels="a=b"),
        manager.informer(PODS, fields="spec.nodeName=n"),
        manager.informer(PODS, transform=lambda obj: obj),
        manager.informer(PODS, filtered=False),
    ]
    assert len({id(informer) for informer in (pods, *others)}) == 6


async def test_unfiltered_informer_is_shared_without_a_filter(world: Any) -> None:
    manager = world.manager(filter=Filter(namespaces=["east"]))
    assert manager.informer(PODS, filtered=False) is manager.informer(PODS)


@asynccontextmanager
async def seen(
    world: Any,
    *,
    namespaces: list[str] | None = None,
    filter_labels: str = "",
    keep: Callable[[Object], bool] | None = None,
    filtered: bool = True,
    labels: str = "",
) -> AsyncIterator[tuple[list[str], list[str]]]:
    """Return the keys of ConfigMaps and Nodes in a filtered manager's caches, and its watches."""
    informers: list[Informer] = []

    def setup(manager: Manager) -> None:
        informers.extend(manager.informer(each, filtered=filtered, labels=labels) for each in (CONFIGMAPS, NODES))
        manager.controller("idle", SlowReconciler(world.clock))

    for namespace, tier in (("east", "web"), ("east", "db"), ("west", "web"), ("north", "web")):
        await world.add(CONFIGMAPS, tier, namespace, labels={"tier": tier, "where": namespace})
    await world.add(NODES, "n", labels={"tier": "web"})
    lines = TransportFactory(world.api)
    filter = Filter(namespaces=namespaces or [], labels=filter_labels)
    manager = world.manager(setup, keep=keep, connect=lines.connect, filter=filter)
    async with world.running(manager):
        keys = sorted(key for informer in informers for key in informer.store)
        yield keys, [request for request in lines.requests if request.startswith("WATCH")]


async def test_without_filter_everything_is_cached(world: Any) -> None:
    async with seen(world) as (keys, watches):
        assert keys == ["east/db", "east/web", "n", "north/web", "west/web"]
        assert watches == ["WATCH /api/v1/configmaps", "WATCH /api/v1/nodes"]


async def test_single_namespace_is_selected_by_the_server(world: Any) -> None:
    async with seen(world, namespaces=["east"]) as (keys, watches):
        assert keys == ["east/db", "east/web", "n"]
        assert watches == ["WATCH /api/v1/namespaces/east/configmaps", "WATCH /api/v1/nodes"]


async def test_several_namespaces_are_filtered_locally(world: Any) -> None:
    async with seen(world, namespaces=["east", "west"]) as (keys, _):
        assert keys == ["east/db", "east/web", "n", "west/web"]


async def test_labels_of_filter_and_informer_must_match(world: Any) -> None:
    async with seen(world, labels="where=east", filter_labels="tier=web") as (keys, _):
        assert keys == ["east/web"]


async def test_filter_labels_apply_to_every_resource(world: Any) -> None:
    async with seen(world, filter_labels="tier=web") as (keys, _):
        assert keys == ["east/web", "n", "north/web", "west/web"]


async def test_predicate_filters_within_the_namespaces(world: Any) -> None:
    def web(obj: Object) -> bool:
        return labels_of(obj).get("tier") == "web"

    async with seen(world, keep=web, namespaces=["east", "west"]) as (keys, _):
        assert keys == ["east/web", "n", "west/web"]


async def test_unfiltered_informer_is_limited_to_namespaces(world: Any) -> None:
    options = {"keep": lambda _: False, "filter_labels": "tier=none"}
    async with seen(world, filtered=False, namespaces=["east"], **options) as (keys, _):
        assert keys == ["east/db", "east/web", "n"]


# -- startup


async def test_after_sync_runs_before_any_work(world: Any) -> None:
    order: list[str] = []

    async def reconcile(key: str) -> None:
        order.append(f"work on {key}")

    def setup(manager: Manager) -> None:
        maps, nodes = manager.informer(CONFIGMAPS), manager.informer(NODES)
        manager.controller("ordered", reconcile).watch(maps)
        manager.after_sync(lambda: order.append(f"{len(maps.store)} maps, {len(nodes.store)} nodes"))

    for name in "ab":
        await world.add(CONFIGMAPS, name)
    await world.add(NODES, "n")
    async with world.running(world.manager(setup)):
        assert order == ["2 maps, 1 nodes", "work on default/a", "work on default/b"]


async def test_late_setup_reads_synced_caches(world: Any) -> None:
    order: list[str] = []

    async def reconcile(key: str) -> None:
        order.append(f"work on {key}")

    def early(manager: Manager) -> None:
        order.append(f"early: {len(manager.informer(CONFIGMAPS).store)} maps")

    def late(manager: Manager) -> None:
        maps, nodes = manager.informer(CONFIGMAPS), manager.informer(NODES)
        order.append(f"late: {len(maps.store)} maps, {len(nodes.store)} nodes")
        manager.controller("late", reconcile).watch(maps)
        manager.after_sync(lambda: order.append(f"synced: {len(nodes.store)} nodes"))

    await world.add(CONFIGMAPS, "a")
    await world.add(NODES, "n")
    manager = world.manager().register("late", late, after_sync=True).register("early", early)
    async with world.running(manager):
        assert order == ["early: 0 maps", "late: 1 maps, 0 nodes", "synced: 1 nodes", "work on default/a"]


async def test_late_setup_without_others_starts_tasks(world: Any) -> None:
    started: list[str] = []

    async def task() -> None:
        started.append("task")

    def late(manager: Manager) -> None:
        manager.run_always("task", task)
        manager.controller("late", SlowReconciler(world.clock)).watch(manager.informer(CONFIGMAPS))

    async with world.running(world.manager().register("late", late, after_sync=True)):
        assert started == ["task"]


async def test_disabled_late_setup_is_not_called(world: Any) -> None:
    called: list[str] = []
    manager = world.widget_manager(SlowReconciler(world.clock), controllers=["*", "-late"])
    manager.register("late", lambda _: called.append("late"), after_sync=True)
    async with world.running(manager):
        assert called == []


async def test_failing_late_setup_ends_the_manager(world: Any) -> None:
    def late(manager: Manager) -> None:
        raise RuntimeError("cannot be set up")

    with pytest.raises(ExceptionGroup) as caught:
        await world.manager().register("late", late, after_sync=True).run()
    assert caught.group_contains(RuntimeError, match="cannot be set up")


async def test_resync_runs_at_the_configured_interval(world: Any) -> None:
    work = SlowReconciler(world.clock)
    await world.add(world.widgets, "w")
    async with world.running(world.widget_manager(work, resync_seconds=60)):
        await asyncio.sleep(149)
    assert [moment for _, moment in work.started] == [0, 60, 120]


async def test_error_outside_a_reconcile_ends_the_manager(world: Any) -> None:
    def broken(old: Object | None, new: Object | None) -> None:
        raise RuntimeError("a handler that cannot cope")

    def setup(manager: Manager) -> None:
        manager.informer(CONFIGMAPS).on_change(broken)
        manager.controller("idle", SlowReconciler(world.clock))

    await world.add(CONFIGMAPS, "c")
    with pytest.raises(ExceptionGroup) as caught:
        await world.manager(setup).run()
    assert caught.group_contains(RuntimeError, match="a handler that cannot cope")


# -- shutdown


async def stopped(manager: Manager, clock: VirtualClock, after: float = 1) -> float:
    """Run a manager, stop it `after` seconds, and return the duration of the shutdown."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(after)
        stopped_at = clock.monotonic()
        manager.stop()
        await running
    return clock.monotonic() - stopped_at


async def test_stop_while_caches_sync_ends_at_once(world: Any) -> None:
    work = SlowReconciler(world.clock)
    lines = TransportFactory(world.api, silent=True)
    assert await stopped(world.widget_manager(work, connect=lines.connect), world.clock) == 0
    assert work.started == []


async def test_stop_before_run_does_no_work(world: Any) -> None:
    work = SlowReconciler(world.clock)
    await world.add(world.widgets, "w")
    manager = world.widget_manager(work)
    manager.stop()
    await manager.run()
    assert work.started == []


async def test_stop_finishes_reconciles_in_flight(world: Any) -> None:
    work = SlowReconciler(world.clock, seconds=5)
    for name in "abc":
        await world.add(world.widgets, name)
    assert await stopped(world.widget_manager(work, workers=2), world.clock) == 4
    assert (
        sorted(key for key, _ in work.finished) == sorted(key for key, _ in work.started) == ["default/a", "default/b"]
    )


async def test_reconcile_exceeding_shutdown_timeout_is_cancelled(world: Any) -> None:
    work = SlowReconciler(world.clock, seconds=60)
    await world.add(world.widgets, "w")
    assert await stopped(world.widget_manager(work, shutdown_seconds=8), world.clock) == 8
    assert len(work.started) == 1
    assert work.finished == []


async def test_events_of_last_reconciles_are_written(world: Any) -> None:
    manager: Manager

    async def reconcile(key: str) -> None:
        await asyncio.sleep(5)
        manager.events.normal(object_named("w", "default"), "Finished", "in the last moment")

    manager = world.widget_manager(reconcile)
    await world.add(world.widgets, "w")
    await stopped(manager, world.clock)
    assert [event["message"] for event in await world.events()] == ["in the last moment"]


async def test_silent_server_delays_shutdown_ten_seconds_at_most(world: Any) -> None:
    manager: Manager
    lines = TransportFactory(world.api)

    async def reconcile(key: str) -> None:
        manager.events.normal(object_named("w", "default"), "Trying", "to write")
        await asyncio.sleep(5)
        await manager.client.patch(world.widgets, await world.get(world.widgets, "w"), {"spec": {"size": 2}})

    manager = world.widget_manager(reconcile, connect=lines.connect, leader_election=ELECTION)
    await world.add(world.widgets, "w")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(1)
        lines.cut()
        stopped_at = world.clock.monotonic()
        manager.stop()
        await running
    assert world.clock.monotonic() - stopped_at <= 10


async def test_connections_are_closed_at_the_end(world: Any) -> None:
    lines = TransportFactory(world.api)
    await stopped(world.widget_manager(SlowReconciler(world.clock), connect=lines.connect), world.clock)
    assert [line.is_closed for line in lines.all] == [True, True]


async def test_every_write_of_a_reconciler_is_audited(world: Any, tmp_path: Path) -> None:
    manager: Manager

    async def reconcile(key: str) -> None:
        await manager.client.converge(
            world.widgets, await world.get(world.widgets, "w"), {"status": {"phase": "Ready"}}
        )

    manager = world.widget_manager(reconcile, identity="me", audit=str(tmp_path / "audit"))
    await world.add(world.widgets, "w")
    await stopped(manager, world.clock)
    (line,) = (tmp_path / "audit").read_text().splitlines()
    found = json.loads(line)
    assert (found["who"], found["verb"], found["name"], found["code"]) == ("me", "patch", "w", 200)


# -- leader election


async def holder(world: Any) -> str:
    return (await world.get(LEASES, "test"))["spec"]["holderIdentity"]


async def test_standby_has_synced_caches_and_does_no_work(world: Any) -> None:
    first, second = SlowReconciler(world.clock), SlowReconciler(world.clock)
    await world.add(world.widgets, "w")
    lines = TransportFactory(world.api)
    leader = world.widget_manager(first, identity="first", leader_election=ELECTION)
    standby = world.widget_manager(second, identity="second", leader_election=ELECTION, connect=lines.connect)
    async with world.running(leader), world.running(standby):
        await world.add(world.widgets, "another")
        await asyncio.sleep(60)
        assert await holder(world) == "first"
        assert [key for key, _ in first.started] == ["default/w", "default/another"]
        assert second.started == []
        lines.requests.clear()
        leader.stop()
        stopped_at = world.clock.monotonic()
        await asyncio.sleep(30)
        assert await holder(world) == "second"
        assert sorted(key for key, _ in second.started) == ["default/another", "default/w"]
        assert all(moment - stopped_at < 1 for _, moment in second.started)
        assert [request for request in lines.requests if request.startswith("WATCH")] == []


async def test_stopping_leader_releases_its_lease(world: Any) -> None:
    await stopped(world.widget_manager(SlowReconciler(world.clock), leader_election=ELECTION), world.clock)
    assert await holder(world) == ""


async def test_stopping_standby_ends_at_once(world: Any) -> None:
    work = SlowReconciler(world.clock)
    async with world.running(
        world.widget_manager(SlowReconciler(world.clock), identity="first", leader_election=ELECTION)
    ):
        standby = world.widget_manager(work, identity="second", leader_election=ELECTION)
        assert await stopped(standby, world.clock, after=30) == 0
        assert await holder(world) == "first"


async def test_leader_that_regains_its_lease_works_again(world: Any) -> None:
    work = SlowReconciler(world.clock, seconds=20)
    await world.add(world.widgets, "w")
    manager = world.widget_manager(work, leader_election=ELECTION)
    async with world.running(manager):
        lease = await world.get(LEASES, "test")
        await world.client.patch(LEASES, lease, {"spec": {"holderIdentity": "a thief", "leaseDurationSeconds": 15}})
        await asyncio.sleep(10)
        assert len(work.started) == 1
        assert work.finished == []  # it was cancelled
        await asyncio.sleep(60)
        assert await holder(world) == "first"
        assert [key for key, _ in work.finished] == ["default/w"]
        manager.events.normal(await world.get(world.widgets, "w"), "Back", "at work")
        await asyncio.sleep(1)
        assert len(await world.events()) == 1


async def test_writes_without_the_lease_are_rejected(world: Any) -> None:
    manager = world.widget_manager(SlowReconciler(world.clock), leader_election=ELECTION)
    with pytest.raises(Exception, match="first does not lead default/test"):
        await manager.client.create(CONFIGMAPS, object_named("c", "default"))
    assert await world.client.list(CONFIGMAPS) == []


async def test_lease_name_defaults_to_process_name(world: Any) -> None:
    election = LeaderElection(enabled=True, namespace="kube-system")
    async with world.running(world.widget_manager(SlowReconciler(world.clock), name="hub", leader_election=election)):
        lease = await world.get(LEASES, "hub", "kube-system")
        assert lease["spec"]["holderIdentity"] == "first"


async def test_invalid_lease_durations_are_an_error(world: Any) -> None:
    with pytest.raises(ValueError, match="retry 2 < deadline 20 < lease 15 must hold"):
        world.manager(leader_election=LeaderElection(enabled=True, deadline_seconds=20))


# -- listeners, on real sockets and in real time


def review(request: Object) -> Object:
    """Act as a cluster with two users, one of whom may read metrics."""
    if request["kind"] == "TokenReview":
        token = request["spec"]["token"]
        return {"authenticated": token != "forged", "user": {"username": token, "groups": ["people"]}}
    assert request["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
    assert request["spec"]["groups"] == ["people"]
    return {"allowed": request["spec"]["user"] != "passer-by"}


@pytest.fixture
def addresses(caplog: pytest.LogCaptureFixture) -> Callable[[], dict[str, str]]:
    """Return a function: the listen addresses that the manager logged."""
    caplog.set_level("INFO", "tapestry.controller.manager")

    def logged_addresses() -> dict[str, str]:
        (values,) = [
            record.values for record in caplog.records if record.getMessage() == "probe and metrics listeners started"
        ]
        return {name: values[name].replace("0.0.0.0", "127.0.0.1") for name in ("probes", "metrics")}

    return logged_addresses


@asynccontextmanager
async def listening(
    metrics: Metrics, setup: Callable[[Manager], None], *, silent: bool = False
) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a manager with listeners, and a session to call it."""
    api = InProcessApi([CONFIGMAPS], now=lambda: datetime.now(UTC), review=review)
    lines = TransportFactory(api, silent=silent)
    await Client(api).create(CONFIGMAPS, object_named("c", "default"))
    config = ManagerConfig(metrics=metrics, probes=Probes(address="127.0.0.1:0"))
    manager = Manager(config, lines.connect, identity="listener").register("listener", setup)
    started = asyncio.Event()
    manager.after_sync(started.set)
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(manager.run())
        await (lines.used if silent else started).wait()  # the listeners start before either
        yield session
        manager.stop()


async def status_of(session: aiohttp.ClientSession, url: str, token: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, headers=headers) as answer:
        return answer.status


def idle(manager: Manager) -> None:
    async def reconcile(key: str) -> Result | None: ...

    manager.controller("listener", reconcile).watch(manager.informer(CONFIGMAPS))


async def test_manager_is_ready_when_caches_are_synced(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address=""), idle) as session:
        for path in ("healthz", "readyz"):
            assert await status_of(session, f"http://{addresses()['probes']}/{path}") == 200


async def test_syncing_manager_is_alive_but_not_ready(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address=""), idle, silent=True) as session:
        assert await status_of(session, f"http://{addresses()['probes']}/healthz") == 200
        assert await status_of(session, f"http://{addresses()['probes']}/readyz") == 503


async def test_metrics_on_loopback_need_no_token(addresses: Callable[[], dict[str, str]]) -> None:
    async with (
        listening(Metrics(address="127.0.0.1:0"), idle) as session,
        session.get(f"http://{addresses()['metrics']}/metrics") as answer,
    ):
        assert answer.status == 200
        page = await answer.text()
    assert 'tapestry_cached_objects{informer="configmaps",resource="configmaps"} 1.0' in page
    assert "tapestry_reconcile_seconds_bucket" in page


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("forged", 403), ("passer-by", 403), ("prometheus", 200)])
async def test_metrics_off_loopback_need_an_authorized_token(
    token: str | None, status: int, addresses: Callable[[], dict[str, str]]
) -> None:
    async with listening(Metrics(address="0.0.0.0:0"), idle) as session:
        assert await status_of(session, f"http://{addresses()['metrics']}/metrics", token) == status


async def test_open_metrics_need_no_token_anywhere(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address="0.0.0.0:0", open=True), idle) as session:
        assert await status_of(session, f"http://{addresses()['metrics']}/metrics") == 200


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """Create a self-signed certificate for a loopback server or a client, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tester")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    files[0].write_bytes(signed.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(files[0]), str(files[1])


async def test_metrics_accept_a_client_certificate(
    certificate: tuple[str, str], addresses: Callable[[], dict[str, str]]
) -> None:
    anonymous, known = (ssl.create_default_context(cafile=certificate[0]) for _ in range(2))
    known.load_cert_chain(*certificate)
    metrics = Metrics("0.0.0.0:0", certificate=certificate[0], key=certificate[1], client_ca=certificate[0])
    async with listening(metrics, idle) as session:
        url = f"https://{addresses()['metrics']}/metrics"
        for tls, status in ((anonymous, 401), (known, 200)):
            async with session.get(url, ssl=tls) as answer:
                assert answer.status == status
