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


class Line:
    """A transport that notes what goes over it, and can fall silent."""

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


class Lines:
    """Makes the transports of one manager."""

    def __init__(self, api: InProcessApi, *, silent: bool = False) -> None:
        self.api = api
        self.silent = silent
        self.requests: list[str] = []
        self.used = asyncio.Event()
        self.all: list[Line] = []

    def connect(self) -> Line:
        line = Line(self.api.connect(), self.carried, silent=self.silent)
        self.all.append(line)
        return line

    def carried(self, request: str) -> None:
        self.requests.append(request)
        self.used.set()

    def cut(self) -> None:
        for line in self.all:
            line.is_silent = True
            line.abort()


class Work:
    """A reconciler that takes its time, and notes what it began and what it finished."""

    def __init__(self, clock: VirtualClock, seconds: float = 0) -> None:
        self.clock = clock
        self.seconds = seconds
        self.begun: list[tuple[str, float]] = []
        self.finished: list[tuple[str, float]] = []

    async def __call__(self, key: str) -> None:
        self.begun.append((key, self.clock.monotonic()))
        await asyncio.sleep(self.seconds)
        self.finished.append((key, self.clock.monotonic()))


# -- assembly


async def test_set_up_is_in_the_order_of_coming_and_once(world: Any) -> None:
    called: list[str] = []
    manager = world.manager().with_("b", lambda _: called.append("b")).with_("a", lambda _: called.append("a"))
    assert called == []
    manager.setup()
    manager.setup()
    assert called == ["b", "a"]


async def test_running_sets_up_what_nobody_has_set_up(world: Any) -> None:
    work = Work(world.clock)
    await world.add(world.widgets, "w")
    async with world.running(world.widget_manager(work)):
        assert [key for key, _ in work.begun] == ["default/w"]


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
def test_the_last_pattern_that_matches_a_name_decides(patterns: list[str], chosen: str) -> None:
    assert [name for name in ("at", "web-a", "web-b") if is_enabled(name, patterns)] == chosen.split()


async def test_only_what_the_configuration_enables_is_set_up(world: Any) -> None:
    called: list[str] = []
    manager = world.manager(controllers=["*", "-b"])
    for name in "abc":
        manager.with_(name, lambda _, name=name: called.append(name))
    manager.setup()
    assert called == ["a", "c"]


async def test_a_configuration_that_leaves_nothing_to_run_is_an_error(world: Any) -> None:
    manager = world.manager(controllers=["other"]).with_("b", lambda _: None).with_("a", lambda _: None)
    with pytest.raises(ValueError, match=r"controllers: \['other'\] leaves nothing to run; known are: a, b"):
        manager.setup()


async def test_a_controller_is_given_its_options_and_its_workers(world: Any) -> None:
    manager = world.manager(options={"at": {"image": "busybox"}}, workers=2)
    assert manager.options("at") == {"image": "busybox"}
    assert manager.options("unheard-of") == {}
    work = Work(world.clock, seconds=10)
    usual, own = manager.controller("usual", work), manager.controller("own", work, workers=3)
    for controller, at_once in ((usual, 2), (own, 3)):
        work.begun.clear()
        for number in range(5):
            controller.queue.add(str(number))
        async with asyncio.TaskGroup() as group:
            group.create_task(controller.run())
            await asyncio.sleep(1)
            assert len(work.begun) == at_once
            controller.queue.close()


# -- informers


async def test_whoever_asks_for_the_same_gets_the_same_informer(world: Any) -> None:
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


async def test_where_nothing_is_filtered_an_exempt_informer_is_the_same_one(world: Any) -> None:
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
    """The keys of the configmaps and nodes that a filtered manager holds, and the watches it opened."""
    informers: list[Informer] = []

    def setup(manager: Manager) -> None:
        informers.extend(manager.informer(each, filtered=filtered, labels=labels) for each in (CONFIGMAPS, NODES))
        manager.controller("idle", Work(world.clock))

    for namespace, tier in (("east", "web"), ("east", "db"), ("west", "web"), ("north", "web")):
        await world.add(CONFIGMAPS, tier, namespace, labels={"tier": tier, "where": namespace})
    await world.add(NODES, "n", labels={"tier": "web"})
    lines = Lines(world.api)
    filter = Filter(namespaces=namespaces or [], labels=filter_labels)
    manager = world.manager(setup, keep=keep, connect=lines.connect, filter=filter)
    async with world.running(manager):
        keys = sorted(key for informer in informers for key in informer.store)
        yield keys, [request for request in lines.requests if request.startswith("WATCH")]


async def test_without_a_filter_everything_is_seen(world: Any) -> None:
    async with seen(world) as (keys, watches):
        assert keys == ["east/db", "east/web", "n", "north/web", "west/web"]
        assert watches == ["WATCH /api/v1/configmaps", "WATCH /api/v1/nodes"]


async def test_a_single_namespace_is_for_the_server_to_select(world: Any) -> None:
    async with seen(world, namespaces=["east"]) as (keys, watches):
        assert keys == ["east/db", "east/web", "n"]
        assert watches == ["WATCH /api/v1/namespaces/east/configmaps", "WATCH /api/v1/nodes"]


async def test_several_namespaces_are_selected_here(world: Any) -> None:
    async with seen(world, namespaces=["east", "west"]) as (keys, _):
        assert keys == ["east/db", "east/web", "n", "west/web"]


async def test_labels_of_the_filter_and_of_the_informer_must_both_match(world: Any) -> None:
    async with seen(world, labels="where=east", filter_labels="tier=web") as (keys, _):
        assert keys == ["east/web"]


async def test_labels_of_the_filter_hold_for_every_resource(world: Any) -> None:
    async with seen(world, filter_labels="tier=web") as (keys, _):
        assert keys == ["east/web", "n", "north/web", "west/web"]


async def test_a_rule_in_code_filters_within_the_namespaces(world: Any) -> None:
    def web(obj: Object) -> bool:
        return labels_of(obj).get("tier") == "web"

    async with seen(world, keep=web, namespaces=["east", "west"]) as (keys, _):
        assert keys == ["east/web", "n", "west/web"]


async def test_an_exempt_informer_is_bound_to_the_namespaces_only(world: Any) -> None:
    options = {"keep": lambda _: False, "filter_labels": "tier=none"}
    async with seen(world, filtered=False, namespaces=["east"], **options) as (keys, _):
        assert keys == ["east/db", "east/web", "n"]


# -- the order of a start


async def test_callbacks_come_when_every_cache_is_full_and_before_any_work(world: Any) -> None:
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


async def test_everything_is_looked_at_again_as_often_as_configured(world: Any) -> None:
    work = Work(world.clock)
    await world.add(world.widgets, "w")
    async with world.running(world.widget_manager(work, resync_seconds=60)):
        await asyncio.sleep(149)
    assert [moment for _, moment in work.begun] == [0, 60, 120]


async def test_what_fails_outside_of_a_pass_ends_the_manager(world: Any) -> None:
    def broken(old: Object | None, new: Object | None) -> None:
        raise RuntimeError("a handler that cannot cope")

    def setup(manager: Manager) -> None:
        manager.informer(CONFIGMAPS).on_change(broken)
        manager.controller("idle", Work(world.clock))

    await world.add(CONFIGMAPS, "c")
    with pytest.raises(ExceptionGroup) as caught:
        await world.manager(setup).run()
    assert caught.group_contains(RuntimeError, match="a handler that cannot cope")


# -- the end


async def stopped(manager: Manager, clock: VirtualClock, after: float = 1) -> float:
    """Run a manager, ask it to stop `after` seconds, and tell how long it took to."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(manager.run())
        await asyncio.sleep(after)
        asked = clock.monotonic()
        manager.stop()
        await running
    return clock.monotonic() - asked


async def test_asked_to_stop_while_its_caches_fill_it_ends_at_once(world: Any) -> None:
    work = Work(world.clock)
    lines = Lines(world.api, silent=True)
    assert await stopped(world.widget_manager(work, connect=lines.connect), world.clock) == 0
    assert work.begun == []


async def test_asked_to_stop_before_it_runs_it_does_no_work(world: Any) -> None:
    work = Work(world.clock)
    await world.add(world.widgets, "w")
    manager = world.widget_manager(work)
    manager.stop()
    await manager.run()
    assert work.begun == []


async def test_work_under_way_finishes_and_no_more_is_begun(world: Any) -> None:
    work = Work(world.clock, seconds=5)
    for name in "abc":
        await world.add(world.widgets, name)
    assert await stopped(world.widget_manager(work, workers=2), world.clock) == 4
    assert sorted(key for key, _ in work.finished) == sorted(key for key, _ in work.begun) == ["default/a", "default/b"]


async def test_work_that_takes_longer_than_there_is_time_is_cancelled(world: Any) -> None:
    work = Work(world.clock, seconds=60)
    await world.add(world.widgets, "w")
    assert await stopped(world.widget_manager(work, shutdown_seconds=8), world.clock) == 8
    assert len(work.begun) == 1
    assert work.finished == []


async def test_what_the_last_passes_said_is_recorded_before_the_end(world: Any) -> None:
    manager: Manager

    async def reconcile(key: str) -> None:
        await asyncio.sleep(5)
        manager.events.normal(object_named("w", "default"), "Finished", "in the last moment")

    manager = world.widget_manager(reconcile)
    await world.add(world.widgets, "w")
    await stopped(manager, world.clock)
    assert [event["message"] for event in await world.events()] == ["in the last moment"]


async def test_a_server_that_is_silent_does_not_hold_up_the_end_beyond_ten_seconds(world: Any) -> None:
    manager: Manager
    lines = Lines(world.api)

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
        asked = world.clock.monotonic()
        manager.stop()
        await running
    assert world.clock.monotonic() - asked <= 10


async def test_connections_are_closed_in_the_end(world: Any) -> None:
    lines = Lines(world.api)
    await stopped(world.widget_manager(Work(world.clock), connect=lines.connect), world.clock)
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


async def test_of_two_managers_one_works_and_the_other_stands_by_with_full_caches(world: Any) -> None:
    first, second = Work(world.clock), Work(world.clock)
    await world.add(world.widgets, "w")
    lines = Lines(world.api)
    leader = world.widget_manager(first, identity="first", leader_election=ELECTION)
    standby = world.widget_manager(second, identity="second", leader_election=ELECTION, connect=lines.connect)
    async with world.running(leader), world.running(standby):
        await world.add(world.widgets, "another")
        await asyncio.sleep(60)
        assert await holder(world) == "first"
        assert [key for key, _ in first.begun] == ["default/w", "default/another"]
        assert second.begun == []
        lines.requests.clear()
        leader.stop()
        stopped_at = world.clock.monotonic()
        await asyncio.sleep(30)
        assert await holder(world) == "second"
        assert sorted(key for key, _ in second.begun) == ["default/another", "default/w"]
        assert all(moment - stopped_at < 1 for _, moment in second.begun)
        assert [request for request in lines.requests if request.startswith("WATCH")] == []


async def test_a_leader_that_stops_gives_its_lease_back(world: Any) -> None:
    await stopped(world.widget_manager(Work(world.clock), leader_election=ELECTION), world.clock)
    assert await holder(world) == ""


async def test_asked_to_stop_while_standing_by_it_ends_at_once_and_disturbs_nobody(world: Any) -> None:
    work = Work(world.clock)
    async with world.running(world.widget_manager(Work(world.clock), identity="first", leader_election=ELECTION)):
        standby = world.widget_manager(work, identity="second", leader_election=ELECTION)
        assert await stopped(standby, world.clock, after=30) == 0
        assert await holder(world) == "first"


async def test_a_leader_that_lost_its_lease_and_won_it_again_goes_on_working(world: Any) -> None:
    work = Work(world.clock, seconds=20)
    await world.add(world.widgets, "w")
    manager = world.widget_manager(work, leader_election=ELECTION)
    async with world.running(manager):
        lease = await world.get(LEASES, "test")
        await world.client.patch(LEASES, lease, {"spec": {"holderIdentity": "a thief", "leaseDurationSeconds": 15}})
        await asyncio.sleep(10)
        assert len(work.begun) == 1
        assert work.finished == []  # it was cut off
        await asyncio.sleep(60)
        assert await holder(world) == "first"
        assert [key for key, _ in work.finished] == ["default/w"]
        manager.events.normal(await world.get(world.widgets, "w"), "Back", "at work")
        await asyncio.sleep(1)
        assert len(await world.events()) == 1


async def test_the_writes_of_a_manager_without_the_lease_are_refused(world: Any) -> None:
    manager = world.widget_manager(Work(world.clock), leader_election=ELECTION)
    with pytest.raises(Exception, match="first does not lead default/test"):
        await manager.client.create(CONFIGMAPS, object_named("c", "default"))
    assert await world.client.list(CONFIGMAPS) == []


async def test_the_lease_has_the_name_of_the_process_where_it_is_given_none(world: Any) -> None:
    election = LeaderElection(enabled=True, namespace="kube-system")
    async with world.running(world.widget_manager(Work(world.clock), name="hub", leader_election=election)):
        lease = await world.get(LEASES, "hub", "kube-system")
        assert lease["spec"]["holderIdentity"] == "first"


async def test_terms_of_an_election_that_cannot_be_kept_are_an_error(world: Any) -> None:
    with pytest.raises(ValueError, match="retry 2 < deadline 20 < lease 15 must hold"):
        world.manager(leader_election=LeaderElection(enabled=True, deadline_seconds=20))


# -- listeners, on real sockets and in real time


def review(request: Object) -> Object:
    """A cluster that knows two users, of whom one may read metrics."""
    if request["kind"] == "TokenReview":
        token = request["spec"]["token"]
        return {"authenticated": token != "forged", "user": {"username": token, "groups": ["people"]}}
    assert request["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
    assert request["spec"]["groups"] == ["people"]
    return {"allowed": request["spec"]["user"] != "passer-by"}


@pytest.fixture
def addresses(caplog: pytest.LogCaptureFixture) -> Callable[[], dict[str, str]]:
    """Where a manager said that it listens."""
    caplog.set_level("INFO", "tapestry.controller.manager")

    def said() -> dict[str, str]:
        (values,) = [record.values for record in caplog.records if record.getMessage() == "listening"]
        return {name: values[name].replace("0.0.0.0", "127.0.0.1") for name in ("probes", "metrics")}

    return said


@asynccontextmanager
async def listening(
    metrics: Metrics, setup: Callable[[Manager], None], *, silent: bool = False
) -> AsyncIterator[aiohttp.ClientSession]:
    """A manager that runs and listens, and a session to talk to it."""
    api = InProcessApi([CONFIGMAPS], now=lambda: datetime.now(UTC), review=review)
    lines = Lines(api, silent=silent)
    await Client(api).create(CONFIGMAPS, object_named("c", "default"))
    config = ManagerConfig(metrics=metrics, probes=Probes(address="127.0.0.1:0"))
    manager = Manager(config, lines.connect, identity="listener").register("listener", setup)
    begun = asyncio.Event()
    manager.after_sync(begun.set)
    async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
        group.create_task(manager.run())
        await (lines.used if silent else begun).wait()  # the listeners come before either
        yield session
        manager.stop()


async def status_of(session: aiohttp.ClientSession, url: str, token: str | None = None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, headers=headers) as answer:
        return answer.status


def idle(manager: Manager) -> None:
    async def reconcile(key: str) -> Result | None: ...

    manager.controller("listener", reconcile).watch(manager.informer(CONFIGMAPS))


async def test_a_manager_is_ready_when_its_caches_are_full(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address=""), idle) as session:
        for path in ("healthz", "readyz"):
            assert await status_of(session, f"http://{addresses()['probes']}/{path}") == 200


async def test_a_manager_whose_caches_fill_is_alive_and_not_ready(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address=""), idle, silent=True) as session:
        assert await status_of(session, f"http://{addresses()['probes']}/healthz") == 200
        assert await status_of(session, f"http://{addresses()['probes']}/readyz") == 503


async def test_metrics_on_loopback_are_for_everybody(addresses: Callable[[], dict[str, str]]) -> None:
    async with (
        listening(Metrics(address="127.0.0.1:0"), idle) as session,
        session.get(f"http://{addresses()['metrics']}/metrics") as answer,
    ):
        assert answer.status == 200
        page = await answer.text()
    assert 'tapestry_cached_objects{informer="configmaps",resource="configmaps"} 1.0' in page
    assert "tapestry_reconcile_seconds_bucket" in page


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("forged", 403), ("passer-by", 403), ("prometheus", 200)])
async def test_metrics_off_loopback_are_for_those_whom_the_server_lets_read_them(
    token: str | None, status: int, addresses: Callable[[], dict[str, str]]
) -> None:
    async with listening(Metrics(address="0.0.0.0:0"), idle) as session:
        assert await status_of(session, f"http://{addresses()['metrics']}/metrics", token) == status


async def test_open_metrics_are_for_everybody_anywhere(addresses: Callable[[], dict[str, str]]) -> None:
    async with listening(Metrics(address="0.0.0.0:0", open=True), idle) as session:
        assert await status_of(session, f"http://{addresses()['metrics']}/metrics") == 200


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A certificate that vouches for itself, for a server on loopback or for a client, and its key."""
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


async def test_metrics_over_tls_are_for_those_who_show_a_certificate_too(
    certificate: tuple[str, str], addresses: Callable[[], dict[str, str]]
) -> None:
    stranger, known = (ssl.create_default_context(cafile=certificate[0]) for _ in range(2))
    known.load_cert_chain(*certificate)
    metrics = Metrics("0.0.0.0:0", certificate=certificate[0], key=certificate[1], client_ca=certificate[0])
    async with listening(metrics, idle) as session:
        url = f"https://{addresses()['metrics']}/metrics"
        for tls, status in ((stranger, 401), (known, 200)):
            async with session.get(url, ssl=tls) as answer:
                assert answer.status == status
