"""The proxy subresources: requests and responses that pass through, addresses that are never called, and links."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tapestry.apiserver.core import egress
from tapestry.apiserver.core.egress import EgressPolicy, parse_networks
from tapestry.apiserver.core.requests import Target
from tapestry.apiserver.subresources.html_links import LinkRewriter
from tapestry.apiserver.subresources.proxy_locations import (
    ProxyLocation,
    ProxyLocations,
    split_name,
)
from tapestry.kube.errors import BadRequest, NotFound, Unavailable
from tapestry.kube.objects import Object
from tapestry.kube.resources import PODS as POD_RESOURCE
from tapestry.kube.resources import SERVICES

from ..conftest import ServerClient
from ..kubelets import PODS, Streams, api_server_with_kubelet, pod_body

POD_IP = "127.96.0.7"
"""An address of this machine, as process pods have."""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@pytest.fixture
async def streams(tmp_path: Path) -> AsyncIterator[Streams]:
    async with api_server_with_kubelet(
        tmp_path, proxy_allowed_cidrs=["127.96.0.0/11"], max_sessions_per_user=2
    ) as streams:
        await set_address(streams.call, "web", POD_IP)
        yield streams


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[int]:
    """Run the server of the pod, and return its port."""
    runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, POD_IP, 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def set_address(call: ServerClient, pod: str, address: str) -> None:
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    code, body = await call("PATCH", f"{PODS}/{pod}/status", status, kind="application/merge-patch+json")
    assert code == 200, body


@asynccontextmanager
async def client(streams: Streams, user: str = "admin") -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer token-of-{user}"}
    async with aiohttp.ClientSession(
        f"https://localhost:{streams.port}", headers=headers, connector=aiohttp.TCPConnector(ssl=streams.tls)
    ) as session:
        yield session


# -- requests and responses


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_request_and_response_pass_through(streams: Streams, method: str) -> None:
    received: list[tuple[str, str, dict[str, str], bytes]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received.append((request.method, request.raw_path, headers, await request.read()))
        answer = web.Response(status=207, body=b"answer", content_type="text/x")
        answer.headers.extend([("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("X-Own", "1"), ("X-Own", "2")])
        answer.headers["Access-Control-Allow-Origin"] = "*"
        return answer

    async with serving(handle) as port, client(streams) as session:
        headers = {"X-Asked": "yes", "Cookie": "c=3", "Connection": "X-Hop", "X-Hop": "1", "X-Remote-User": "root"}
        body = b"" if method in ("GET", "HEAD", "OPTIONS") else b"question"
        path = f"{PODS}/web:{port}/proxy/a%20b/c?d=e&d=%26"
        async with session.request(method, path, data=body or None, headers=headers) as response:
            assert (response.status, response.headers["Content-Type"]) == (207, "text/x")
            assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert response.headers["X-Own"] == "1, 2"
            assert "Access-Control-Allow-Origin" not in response.headers
            assert response.headers["Content-Length"] == "6"
            assert await response.read() == (b"" if method == "HEAD" else b"answer")
        [(seen_method, seen_path, seen, seen_body)] = received
        assert (seen_method, seen_path, seen_body) == (method, "/a%20b/c?d=e&d=%26", body)
        assert (seen["x-asked"], seen["cookie"], seen["host"]) == ("yes", "c=3", f"localhost:{streams.port}")
        assert seen["x-forwarded-uri"] == f"{PODS}/web:{port}/proxy/a%20b/c"
        assert not {"authorization", "x-remote-user", "x-hop"} & set(seen)


async def test_large_bodies_are_streamed_both_ways(streams: Streams) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for chunk in request.content.iter_any():
            await answer.write(chunk)
        return answer

    sent, received = asyncio.Event(), 0

    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(1 << 20)
        await sent.wait()  # the first bytes are answered before the rest is sent
        for _ in range(9):
            yield bytes(1 << 20)

    async with (
        serving(handle) as port,
        client(streams) as session,
        session.post(f"{PODS}/web:{port}/proxy/", data=chunks()) as response,
    ):
        async for chunk in response.content.iter_any():
            sent.set()
            received += len(chunk)
    assert received == 10 << 20


async def test_redirects_and_html_links_lead_through_the_proxy(streams: Streams) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path == "/old":
            return web.Response(status=302, headers={"Location": f"http://{request.host}/new?x=1"})
        return web.Response(text='<a href="/x">x</a><p title="/y">', content_type="text/html")

    async with serving(handle) as port, client(streams) as session:
        prefix = f"{PODS}/web:{port}/proxy"
        async with session.get(f"{prefix}/old", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, f"{prefix}/new?x=1")
        async with session.get(f"{prefix}/new") as response:
            assert await response.text() == f'<a href="{prefix}/x">x</a><p title="/y">'
        async with session.get(f"{prefix}?a=b", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (301, f"{prefix}/?a=b")


async def test_upgrade_is_passed_through(streams: Streams) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /chat?a=1 HTTP/1.1\r\n")
        assert b"authorization" not in head.lower()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\nX-Own: 1\r\n\r\nhello"
        )
        writer.write(await reader.readexactly(3))
        writer.close()

    async with await asyncio.start_server(respond, POD_IP, 0) as server:
        port = server.sockets[0].getsockname()[1]
        response = await streams.upgrade(f"{PODS}/web:{port}/proxy/chat?a=1", [("Upgrade", "chat")], method="GET")
        assert (response.status, response.headers["upgrade"], response.headers["x-own"]) == (101, "chat", "1")
        assert response.connection is not None
        await response.connection.write(b"you")
        received = b""
        while data := await response.connection.read():
            received += data
        assert received == b"helloyou"
    [event] = await streams.audit_events(1)
    assert event["annotations"]["streams.tapestry.io/bytes-sent"] == "8"


async def test_nodes_proxy_reaches_only_the_kubelet(streams: Streams) -> None:
    async with client(streams) as session:
        async with session.get("/api/v1/nodes/n1/proxy/stats/summary?only=1") as response:
            assert (response.status, await response.text()) == (200, "/stats/summary?only=1")
        async with session.get("/api/v1/nodes/n1:22/proxy/") as response:
            assert response.status == 400
            assert "connects only to the kubelet" in (await response.json())["message"]
        async with session.get("/api/v1/nodes/none/proxy/metrics") as response:
            assert response.status == 404


async def test_unreachable_pod_is_unavailable(streams: Streams) -> None:
    async with client(streams) as session, session.get(f"{PODS}/web:1/proxy/") as response:
        assert response.status == 503
        why = f"dial tcp {POD_IP}:1: connect: connection refused"
        assert (await response.json())["message"] == f"error trying to reach service: {why}"


async def get(session: aiohttp.ClientSession, path: str) -> None:
    async with session.get(path) as response:
        await response.read()


async def test_hanging_requests_count_as_sessions(streams: Streams) -> None:
    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handle) as port, client(streams, "developer") as session, asyncio.TaskGroup() as group:
        hanging = [group.create_task(get(session, f"{PODS}/web:{port}/proxy/")) for _ in range(2)]
        while (response := await session.get(f"{PODS}/web:1/proxy/")).status != 429:
            await response.read()
        for each in hanging:
            each.cancel()
        while (response := await session.get(f"{PODS}/web:1/proxy/")).status == 429:
            await response.read()
        assert response.status == 503


# -- locations


def locations(call: ServerClient, *ranges: str) -> ProxyLocations:
    return ProxyLocations(
        call.server.verbs.store,
        Random(0),
        EgressPolicy(pods=parse_networks(ranges, "proxyAllowedCidrs")).check_pod,
    )


def target(call: ServerClient, name: str, resource: Any = POD_RESOURCE) -> Target:
    return Target(call.server.registry.info_for(resource), "default", name, "proxy")


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "169.254.169.254",
            "fe80::1",
            "224.0.0.1",
        ),
        *("100.100.100.200", "64:ff9b::7f00:1", "example.com", "10.1.1.1:80", "203.0.113.9"),
    ],
)
async def test_forbidden_addresses_are_not_called(call: ServerClient, address: str) -> None:
    addresses = [{"type": "InternalIP", "address": "203.0.113.9"}]
    await call.made("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {"addresses": addresses}})
    await call.made(PODS, pod_body("web"))
    code, _ = await call(
        "PATCH", f"{PODS}/web/status", {"status": {"podIP": address}}, kind="application/merge-patch+json"
    )
    if code == 200:
        with pytest.raises(BadRequest, match="address not allowed"):
            locations(call).pod(target(call, "web:80"))
    else:
        assert code == 422


async def test_address_of_this_machine_is_not_called(call: ServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "is_of_this_machine", lambda address: str(address) == "203.0.113.1")
    await call.made(PODS, pod_body("web"))
    await set_address(call, "web", "203.0.113.1")
    with pytest.raises(BadRequest):
        locations(call).pod(target(call, "web"))
    await set_address(call, "web", "203.0.113.2")
    assert locations(call).pod(target(call, "web")) == ProxyLocation("http", "203.0.113.2", 80)


async def test_only_configured_ranges_are_called(call: ServerClient) -> None:
    await call.made(PODS, pod_body("web"))
    await set_address(call, "web", "127.96.0.1")
    assert locations(call, "127.96.0.0/11").pod(target(call, "https:web:")).port == 443
    for address in ("127.95.0.1", "10.0.0.1"):
        await set_address(call, "web", address)
        with pytest.raises(BadRequest):
            locations(call, "127.96.0.0/11").pod(target(call, "web"))
    with pytest.raises(ValueError, match="proxyAllowedCidrs"):
        parse_networks(["10.0.0.1/8"], "proxyAllowedCidrs")


async def test_pod_on_host_network_is_not_called(call: ServerClient) -> None:
    await call.made(PODS, pod_body("web", hostNetwork=True))
    await set_address(call, "web", "203.0.113.2")
    with pytest.raises(BadRequest):
        locations(call).pod(target(call, "web"))


async def test_default_port_is_the_first_of_the_pod(call: ServerClient) -> None:
    container = {"name": "c", "image": "i", "ports": [{"containerPort": 8080}, {"containerPort": 9}]}
    await call.made(PODS, {"metadata": {"name": "web"}, "spec": {"containers": [container]}})
    await set_address(call, "web", "203.0.113.2")
    assert locations(call).pod(target(call, "web")) == ProxyLocation("http", "203.0.113.2", 8080)
    assert locations(call).pod(target(call, "https:web:1")) == ProxyLocation("https", "203.0.113.2", 1)
    for port in ("0", "65536", "http", "-1"):
        with pytest.raises(BadRequest):
            locations(call).pod(target(call, f"web:{port}"))
    with pytest.raises(NotFound):
        locations(call).pod(target(call, "none"))


async def test_service_leads_to_a_ready_pod(call: ServerClient) -> None:
    await call.made(PODS, pod_body("web"))
    await set_address(call, "web", "203.0.113.2")
    ports = [{"name": "main", "port": 80, "targetPort": 8080}]
    await call.made("/api/v1/namespaces/default/services", {"metadata": {"name": "shop"}, "spec": {"ports": ports}})
    finder = locations(call)
    with pytest.raises(Unavailable, match='no endpoints available for service "shop:80"'):
        finder.service(target(call, "shop:80", SERVICES))
    endpoints = [
        endpoint("203.0.113.2", "web"),
        endpoint("203.0.113.3", "web"),  # not an address of the pod
        endpoint("203.0.113.2", "other"),  # no such pod
        {"addresses": ["203.0.113.4"]},  # no pod
        {**endpoint("203.0.113.2", "web"), "conditions": {"ready": False}},
    ]
    slice_body = {
        "metadata": {"name": "shop-1", "labels": {"kubernetes.io/service-name": "shop"}},
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": 8080}],
        "endpoints": endpoints,
    }
    await call.made(SLICES, slice_body)
    for name in ("shop:80", "shop:main", "https:shop:80"):
        for _ in range(5):
            found = finder.service(target(call, name, SERVICES))
            assert found[1:] == ("203.0.113.2", 8080)
    with pytest.raises(Unavailable, match='no service port 81 found for service "shop"'):
        finder.service(target(call, "shop:81", SERVICES))


def endpoint(address: str, pod: str) -> Object:
    return {"addresses": [address], "conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": pod}}


@pytest.mark.parametrize("name", ["", ":80", "ftp:web:80", "a:b:c:d", "http::80"])
def test_malformed_names_are_rejected(name: str) -> None:
    with pytest.raises(BadRequest):
        split_name(name, "pod")


def test_names_have_scheme_and_port() -> None:
    assert split_name("web", "pod") == ("http", "web", "")
    assert split_name("web:http", "pod") == ("http", "web", "http")
    assert split_name("https:web:443", "pod") == ("https", "web", "443")


# -- links


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b/?c=d#e", "/proxy/a/b/?c=d#e"),
        ("http://10.0.0.1:80/a", "/proxy/a"),
        ("https://api.example/a", "/proxy/a"),
        ("/proxy/a", "/proxy/a"),
        ("/proxying", "/proxy/proxying"),
        ("a/b", "a/b"),
        ("http://elsewhere/a", "http://elsewhere/a"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("//elsewhere/a", "//elsewhere/a"),
        ("http://[bad", "http://[bad"),
    ],
)
def test_link_to_the_server_gets_the_prefix(url: str, expected: str) -> None:
    assert LinkRewriter("/proxy", ("10.0.0.1:80", "api.example")).link(url) == expected


def test_only_link_attributes_are_rewritten() -> None:
    page = """<A HREF='/a' data-href="/b" title="/c"><img src = "/d"/> href="/e" <a href=/f>"""
    expected = """<A HREF='/p/a' data-href="/b" title="/c"><img src = "/p/d"/> href="/e" <a href=/f>"""
    assert LinkRewriter("/p", ()).html(page) == expected
