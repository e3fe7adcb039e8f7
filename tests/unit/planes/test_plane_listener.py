"""The listener of planes on real sockets: by server name, by path and by port."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.responses import SessionResponse
from tapestry.apiserver.serving.connection_limiter import ConnectionLimiter
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS, PODS, SERVICE_ACCOUNTS
from tapestry.planes import plane_set
from tapestry.planes.plane_set import PlaneEntry, PlaneState
from tapestry.streams.connection import Connection

from .listening_planes import MAPS, ListeningPlanes, listening_planes

ADMINS = "system:masters"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ListeningPlanes]:
    async with listening_planes(tmp_path) as running:
        yield running


def client_of(entry: PlaneEntry) -> Client:
    assert entry.plane is not None
    return Client(InProcessTransport(entry.plane.opened.request_handler, APISERVER_USER))


def new_map(name: str) -> Object:
    return object_named(name, "default")


# -- the plane of a request


async def test_server_name_and_path_select_plane(running: ListeningPlanes) -> None:
    for each in ("a", "b"):
        await client_of(await running.opened(each)).create(CONFIGMAPS, new_map(f"map-of-{each}"))
    by_path = await running.connect()
    for each in ("a", "b"):
        by_name = await running.connect(each, running.verifying_tls(each, running.admin(each)))
        token = running.tokens[each, "root"]
        for response in (
            await by_name.request("GET", f"{MAPS}/map-of-{each}"),
            await by_path.request("GET", f"/planes/{each}{MAPS}/map-of-{each}", token=token),
            await by_name.request("GET", f"/planes/{each}{MAPS}/map-of-{each}", token=token),
        ):
            assert (response.status, json.loads(response.body)["metadata"]["name"]) == (200, f"map-of-{each}")


def test_listener_works_on_uvloop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with listening_planes(tmp_path) as running:
            await running.opened("a")
            by_name = await running.connect("a", running.verifying_tls("a", running.admin("a")))
            assert (await by_name.whoami()).user == "admin"
            assert (await by_name.whoami(prefix="/planes/b")).status == 421
            by_path = await running.connect("", running.tls(running.admin("a")))
            assert (await by_path.whoami(prefix="/planes/a", token=running.tokens["a", "jane"])).user == "jane"
            assert (await by_path.whoami(prefix="/planes/a")).status == 403
            by_name = await running.connect("a", running.tls(running.admin("a")))
            by_name.send("GET", f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=0")
            await by_name.response()
            await running.planes.close_all()
            assert (await by_name.event())["type"] == "BOOKMARK"
            assert await by_name.reader.readexactly(5) == b"0\r\n\r\n"
            assert await by_name.is_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_plane_has_own_port(running: ListeningPlanes) -> None:
    for each in ("a", "b"):
        await running.opened(each)
    http_server = await running.listener.listen("127.0.0.1", 0, "a")
    address = http_server.addresses[0][:2]
    context = running.verifying_tls("a", running.admin("a"))
    reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")
    with closing(writer):
        client = type(await running.connect())(reader, writer)
        assert (await client.whoami()).user == "admin"
        assert (await client.whoami(prefix="/planes/a")).user == "admin"
        assert (await client.whoami(prefix="/planes/b")).status == 421
    with pytest.raises(OSError):  # an alert or a reset
        await running.connect("b", address=address)
    await http_server.stop()


async def test_names_of_other_planes_are_misdirected(running: ListeningPlanes) -> None:
    for each in ("a", "b"):
        await running.opened(each)
    requests = [
        {"prefix": "/planes/b"},
        {"host": running.names.server_name("b")},
        {"host": f"{running.names.server_name('b').upper()}:6444"},
        {"prefix": "/planes/unknown"},
    ]
    for each in requests:
        client = await running.connect("a", running.tls(running.admin("a")))
        response = await client.whoami(**each, token=running.tokens["b", "root"])
        assert response.status == 421
        assert await client.is_closed()
    client = await running.connect("unknown")
    assert (await client.whoami(prefix="/planes/a", token=running.tokens["a", "jane"])).status == 421


HOSTILE_PATHS = (
    *("/planes/a/../b", "/planes/a/%2e%2e/b", "/planes/a/..%2fb", "/planes/a%2f..%2fb", "/planes/a/..;/b"),
    *("/planes/a/..\\b", "/planes/a//b", "//planes/b", "/planes//b", "/./planes/b", "/planes/a/./../b"),
    *("/%70lanes/b", "/planes/%62", "/planes/a;/../b", "/planes/a\\..\\b", "/planes/a/planes/b"),
)


async def test_no_path_leads_to_another_plane(running: ListeningPlanes) -> None:
    await running.opened("a")
    await client_of(await running.opened("b")).create(CONFIGMAPS, new_map("secret"))
    for path in HOSTILE_PATHS:
        for plane_id in ("", "a"):
            client = await running.connect(plane_id)
            response = await client.request("GET", f"{path}{MAPS}/secret", token=running.tokens["a", "root"])
            assert response.status in (400, 403, 404), path
            assert b"ConfigMap" not in response.body


async def test_credentials_of_one_plane_are_unknown_to_another(running: ListeningPlanes) -> None:
    entries = {each: await running.opened(each) for each in ("a", "b")}
    account_token = await service_account_token(entries["a"])
    for token in (running.tokens["a", "root"], account_token):
        assert (await (await running.connect()).whoami(prefix="/planes/a", token=token)).status == 201
        for plane_id, prefix in (("", "/planes/b"), ("b", "")):
            client = await running.connect(plane_id)
            assert (await client.whoami(prefix=prefix, token=token)).status == 401
    client = await running.connect("b", running.tls(running.admin("a")))
    assert (await client.whoami()).status == 401
    assert (await client.whoami(token=running.tokens["b", "jane"])).user == "jane"  # the token counts


async def service_account_token(entry: PlaneEntry) -> str:
    client = client_of(entry)
    account = await client.create(SERVICE_ACCOUNTS, new_map("robot"))
    assert entry.plane is not None
    token: str = entry.plane.opened.account_tokens.issue_token(account, {}, None)["token"]
    return token


async def test_client_certificate_does_not_count_by_path(running: ListeningPlanes) -> None:
    await running.opened("a")
    client = await running.connect("", running.tls(running.admin("a")))
    response = await client.whoami(prefix="/planes/a")
    assert (response.status, b"system:anonymous" in response.body) == (403, True)


async def test_requests_without_plane_get_404(running: ListeningPlanes) -> None:
    client = await running.connect()
    for path in ("/", "/api", "/healthz", "/planes", "/planes/"):
        assert (await client.request("GET", path)).status == 404


# -- watches and upgrades


@pytest.mark.parametrize("by_path", [False, True])
async def test_watch_carries_events(running: ListeningPlanes, by_path: bool) -> None:
    entry = await running.opened("a")
    client = await running.connect("" if by_path else "a")
    prefix = "/planes/a" if by_path else ""
    token = running.tokens["a", "root"]
    client.send("GET", f"{prefix}{MAPS}?watch=1&resourceVersion=0", token=token)
    assert (await client.response()).status == 200
    for name in ("one", "two"):
        await client_of(entry).create(CONFIGMAPS, new_map(name))
        event = await client.event()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", name)


@pytest.mark.parametrize("by_path", [False, True])
async def test_upgraded_connection_carries_bytes_until_plane_closes(running: ListeningPlanes, by_path: bool) -> None:
    entry = await running.opened("a")
    echo_all_requests(entry)
    client = await running.connect("" if by_path else "a")
    path = f"{'/planes/a' if by_path else ''}/api/v1/namespaces/default/pods/web/exec?command=sh&stdout=1"
    head = {"Connection": "Upgrade", "Upgrade": "echo"}
    response = await client.request("GET", path, token=running.tokens["a", "root"], **head)
    assert (response.status, response.headers["upgrade"]) == (101, "echo")
    client.writer.write(b"hello")
    assert await client.reader.readexactly(5) == b"hello"
    await running.planes.close(entry, PlaneState.SUSPENDED)
    assert await client.is_closed()


def echo_all_requests(entry: PlaneEntry) -> None:
    """Let the plane answer every request with an upgrade to an echo server."""

    async def echo(connection: Connection) -> None:
        while data := await connection.read():
            await connection.write(data)

    class EchoHandler:
        def is_long_running(self, _: Any) -> bool:
            return True

        async def handle(self, _: Any) -> SessionResponse:
            return SessionResponse({"Upgrade": "echo"}, echo, lambda: None)

    assert entry.plane is not None
    opened = entry.plane.opened
    http_handler = replace(opened.http_handler, server=EchoHandler())  # type: ignore[arg-type]
    entry.plane = replace(entry.plane, opened=replace(opened, http_handler=http_handler))


async def test_redirect_of_proxied_request_names_plane(running: ListeningPlanes) -> None:
    entry = await running.opened("a", pod_accounts=False)
    container = {"name": "web", "image": "web", "ports": [{"containerPort": 80}]}
    pod = await client_of(entry).create(PODS, {**new_map("web"), "spec": {"containers": [container]}})
    status = {"status": {"podIP": "203.0.113.2", "podIPs": [{"ip": "203.0.113.2"}]}}
    await client_of(entry).patch(PODS, pod, status, subresource="status")
    client, path = await running.connect(), "/planes/a/api/v1/namespaces/default/pods/web/proxy"
    response = await client.request("GET", path, token=running.tokens["a", "root"])
    assert (response.status, response.headers["location"]) == (301, f"{path}/")


# -- planes that are not open


def without_date(response: Any) -> tuple[int, dict[str, str], bytes]:
    return response.status, {**response.headers, "date": ""}, response.body


async def asleep(running: ListeningPlanes, plane_id: str = "a") -> PlaneEntry:
    entry = await running.opened(plane_id)
    await running.planes.close(entry, PlaneState.ASLEEP)
    return entry


CREDENTIALS = ["", "wrong", "tapestry.0123456789.secret", "a.b.c"]


@pytest.mark.parametrize("state", [PlaneState.ASLEEP, PlaneState.SUSPENDED, PlaneState.FAILED])
async def test_unauthenticated_request_sees_unknown_plane(running: ListeningPlanes, state: PlaneState) -> None:
    entry = await asleep(running)
    await asleep(running, "b")
    entry.state = state

    async def response(server_name: str, method: str, path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        client = await running.connect(server_name)
        found = without_date(await client.request(method, path, token=token))
        assert await client.reader.read() == b"", "the connection is closed"
        return found

    tokens = [*CREDENTIALS, running.tokens["b", "root"], expired_token(running)]
    for token in tokens:
        for method in ("GET", "POST", "HEAD"):
            unknown = await response("", method, f"/planes/unknown{MAPS}", token)
            assert unknown[0] == 401
            assert await response("", method, f"/planes/a{MAPS}", token) == unknown
            assert await response("a", method, MAPS, token) == unknown
            assert await response("unknown", method, MAPS, token) == unknown
    foreign = await running.connect("a", running.tls(running.admin("b")))
    assert (await foreign.whoami()).status == 401
    assert (entry.state, entry.task) == (state, None)


def expired_token(running: ListeningPlanes) -> str:
    before = datetime.now(UTC) - timedelta(hours=2)
    return create_token(running.folder / "a", "root", (ADMINS,), timedelta(hours=1), before)[1]


async def test_each_kind_of_credentials_wakes_plane(running: ListeningPlanes) -> None:
    entry = await running.opened("a")
    account_token = await service_account_token(entry)
    for token, files, user in (
        (running.tokens["a", "jane"], None, "jane"),
        (account_token, None, "system:serviceaccount:default:robot"),
        ("", running.admin("a"), "admin"),
    ):
        await running.planes.close(entry, PlaneState.ASLEEP)
        client = await running.connect("a", running.verifying_tls("a", files))
        assert (await client.whoami(token=token)).user == user
        assert entry.state is PlaneState.OPEN


async def test_concurrent_requests_open_plane_once(running: ListeningPlanes) -> None:
    entry = await asleep(running)
    token = running.tokens["a", "jane"]
    clients = [await running.connect() for _ in range(10)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.whoami(prefix="/planes/a", token=token)) for each in clients]
    assert {each.result().user for each in tasks} == {"jane"}
    assert entry.state is PlaneState.OPEN


async def test_request_waits_for_opening_plane_then_gets_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_open = asyncio.Event()
    original = plane_set.open_plane

    @asynccontextmanager
    async def slow_open(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await may_open.wait()
        async with original(*arguments, **options) as plane:
            yield plane

    monkeypatch.setattr(plane_set, "open_plane", slow_open)
    async with listening_planes(tmp_path, hold_seconds=0.05) as running:
        entry = running.add("a")
        token = running.tokens["a", "jane"]
        client = await running.connect()
        response = await client.whoami(prefix="/planes/a", token=token)
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert entry.state is PlaneState.OPENING
        assert (await client.whoami(prefix="/planes/a", token="wrong")).status == 401
        may_open.set()
        await running.planes.wake(entry)
        client = await running.connect()  # 401 has closed the other one
        assert (await client.whoami(prefix="/planes/a", token=token)).user == "jane"


async def test_suspended_plane_tells_reason_and_stays_closed(running: ListeningPlanes) -> None:
    entry = await running.opened("a")
    await running.planes.close(entry, PlaneState.SUSPENDED, "unpaid since May")
    for files, token in ((running.admin("a"), ""), (None, running.tokens["a", "jane"])):
        client = await running.connect("a", running.tls(files))
        response = await client.whoami(token=token)
        assert (response.status, response.message) == (503, "the plane is suspended: unpaid since May")
        assert "retry-after" not in response.headers
    assert (entry.state, entry.task) == (PlaneState.SUSPENDED, None)


async def test_plane_suspended_while_it_closes_stays_suspended(running: ListeningPlanes) -> None:
    entry = await running.opened("a")
    token, client = running.tokens["a", "jane"], await running.connect()
    async with asyncio.TaskGroup() as group:
        group.create_task(running.planes.close(entry, PlaneState.ASLEEP))
        await asyncio.sleep(0)
        request = group.create_task(client.whoami(prefix="/planes/a", token=token))
        group.create_task(running.planes.close(entry, PlaneState.SUSPENDED, "on request"))
    assert request.result().status == 503
    assert (entry.state, entry.task) == (PlaneState.SUSPENDED, None)


async def test_no_request_wakes_a_plane_of_a_stopping_process(running: ListeningPlanes) -> None:
    entry = await running.opened("a")
    await running.planes.close_all()
    response = await (await running.connect()).whoami(prefix="/planes/a", token=running.tokens["a", "jane"])
    assert (response.status, response.headers["retry-after"], entry.task) == (503, "1", None)


async def test_failed_plane_gives_503_only_for_itself(running: ListeningPlanes) -> None:
    for each in ("broken", "sound"):
        await asleep(running, each)
    for file in (running.folder / "broken").glob("tapestry.db*"):
        file.write_bytes(b"not a database" * 1000)
    client, token = await running.connect(), running.tokens["broken", "jane"]
    for _ in range(2):
        response = await client.whoami(prefix="/planes/broken", token=token)
        assert (response.status, response.message) == (503, "the plane could not be opened; its operator can see why")
        assert str(running.folder) not in response.body.decode()
    assert (await client.whoami(prefix="/planes/broken", token="wrong")).status == 401
    client = await running.connect()
    assert (await client.whoami(prefix="/planes/sound", token=running.tokens["sound", "jane"])).user == "jane"


async def test_unreadable_credentials_give_401_only_for_their_plane(
    running: ListeningPlanes, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("broken", "sound"):
        await asleep(running, each)
    (running.folder / "broken" / "tokens.json").write_text("{")
    (running.folder / "broken" / "pki" / "ca.key").write_text("x")
    client = await running.connect("broken", running.tls(running.authority("sound").client_certificate("x", [])))
    assert (await client.whoami(token="x")).status == 401
    assert "plane credentials unreadable" in caplog.text
    assert "plane certificate unusable" in caplog.text
    other = await running.connect("sound", running.verifying_tls("sound"))
    assert (await other.whoami(token=running.tokens["sound", "jane"])).user == "jane"


# -- connections


async def test_connection_counts_at_plane_of_its_last_request(running: ListeningPlanes) -> None:
    limiters = []
    for each in ("a", "b"):
        entry = await running.opened(each)
        assert entry.plane is not None
        limiters.append(entry.plane.opened.http_handler.connection_limiter)
    client = await running.connect()
    for plane_id, counts in (("a", [1, 0]), ("b", [0, 1]), ("a", [1, 0])):
        token = running.tokens[plane_id, "jane"]  # the users of both planes have the same name
        assert (await client.whoami(prefix=f"/planes/{plane_id}", token=token)).user == "jane"
        assert [each.authenticated for each in limiters] == counts
    await running.planes.close_all()
    assert [sum(each.counts.values()) for each in limiters] == [0, 0]


async def test_full_plane_rejects_even_masters(running: ListeningPlanes) -> None:
    entry = await running.opened("a", max_connections=2)
    await running.opened("b")
    assert entry.plane is not None
    limiter = entry.plane.opened.http_handler.connection_limiter
    assert isinstance(limiter, ConnectionLimiter)
    token = running.tokens["a", "root"]
    clients = [await running.connect() for _ in range(3)]
    responses = [await each.whoami(prefix="/planes/a", token=token) for each in clients]
    assert [each.status for each in responses] == [201, 201, 429]
    assert (await clients[0].whoami(prefix="/planes/a", token=token)).status == 201
    other = await running.connect()
    assert (await other.whoami(prefix="/planes/b", token=running.tokens["b", "jane"])).status == 201


async def test_closing_plane_ends_its_connections_only(running: ListeningPlanes) -> None:
    entries = [await running.opened(each) for each in ("a", "b")]
    clients = []
    for each in ("a", "b"):
        client = await running.connect(each, running.tls(running.admin(each)))
        assert (await client.whoami()).user == "admin"
        clients.append(client)
    await running.planes.close(entries[0], PlaneState.ASLEEP)
    assert await clients[0].is_closed()
    assert (await clients[1].whoami()).user == "admin"


async def test_unknown_ca_cannot_claim_a_plane(running: ListeningPlanes, tmp_path: Path) -> None:
    await running.opened("a")
    forged = CertificateAuthority(tmp_path / "forged").client_certificate("admin", [ADMINS])
    client = await running.connect("a", running.tls(forged))
    assert (await client.whoami()).status == 401
