"""Queries to the sockets of a resolver, and what it forwards to other servers."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tapestry.dns import listener as listeners
from tapestry.dns.cluster_names import ClusterNames
from tapestry.dns.forwarding import Forwarder, Server
from tapestry.dns.listener import DnsListener, QueryCounts
from tapestry.dns.messages import (
    HEADER,
    TRUNCATED,
    Code,
    Type,
    encode_query,
    wire_name,
)
from tapestry.dns.resolver import Resolver, Rules
from tapestry.local.kubernetes import free_ports
from tapestry.process.work_meter import WorkMeter

from .dns_servers import Upstream, ask, running_upstream, sent, sent_over_tcp

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
PRIVATE = ipaddress.ip_network("10.0.0.0/8")
DOMAIN = "cluster.local"


def cluster() -> ClusterNames:
    names = ClusterNames(DOMAIN)
    names.put_service("default", "web", service(clusterIP="10.96.0.7"))
    names.put_service("default", "db", service(clusterIP="None"))
    names.put_service("default", "out", service(type="ExternalName", externalName="example.com"))
    names.put_service("default", "a", service(type="ExternalName", externalName=f"b.default.svc.{DOMAIN}"))
    names.put_service("default", "b", service(type="ExternalName", externalName=f"a.default.svc.{DOMAIN}"))
    endpoints = [{"addresses": [f"10.1.0.{number}"]} for number in range(200)]
    names.put_slice("default", "db", "db", msgspec.json.encode({"addressType": "IPv4", "endpoints": endpoints}))
    return names


def service(**spec: Any) -> bytes:
    return msgspec.json.encode({"spec": spec})


@asynccontextmanager
async def running(
    upstream: Upstream | None = None,
    names: Callable[[], ClusterNames | None] | None = None,
    meter: Callable[[], WorkMeter | None] = lambda: None,
    **rules: Any,
) -> AsyncIterator[DnsListener]:
    """Run a listener for a cluster."""
    servers = (Server("127.0.0.1", upstream.port),) if upstream is not None else ()
    given = Rules(servers, **{"source_ranges": (LOOPBACK,), "refused_ranges": (PRIVATE,), **rules})
    found = cluster()
    async with asyncio.TaskGroup() as group:
        resolver = Resolver("blue", wire_name(DOMAIN), names or (lambda: found), lambda: given)
        listener = DnsListener(resolver, group, meter)
        await listener.start("127.0.0.1", *free_ports(1))
        try:
            yield listener
        finally:
            await listener.stop()


def code_of(response: bytes) -> int:
    return HEADER.unpack_from(response)[1] & 0xF


async def test_cluster_names_are_answered_and_never_forwarded() -> None:
    async with running_upstream() as upstream, running(upstream) as listener:
        for _ in range(2):  # the second response is a kept one
            assert await ask(listener.port, f"web.default.svc.{DOMAIN}") == (Code.NOERROR, ["10.96.0.7"])
        assert await ask(listener.port, f"missing.default.svc.{DOMAIN}") == (Code.NXDOMAIN, [])
        assert await ask(listener.port, f"web.default.svc.{DOMAIN}", Type.TXT) == (Code.NOERROR, [])
        assert await ask(listener.port, f"a.default.svc.{DOMAIN}") == (Code.SERVFAIL, [])
        assert upstream.queries == []


async def test_repeated_responses_follow_changes() -> None:
    names = cluster()
    async with running(names=lambda: names) as listener:
        await ask(listener.port, f"web.default.svc.{DOMAIN}")
        names.put_service("default", "web", service(clusterIP="10.96.0.8"))
        assert await ask(listener.port, f"web.default.svc.{DOMAIN}") == (Code.NOERROR, ["10.96.0.8"])


async def test_other_names_are_forwarded_and_cached() -> None:
    async with running_upstream({"example.com": ["192.0.2.7"]}) as upstream, running(upstream) as listener:
        for _ in range(2):
            assert await ask(listener.port, "Example.com") == (Code.NOERROR, ["192.0.2.7"])
        assert len(upstream.queries) == 1
        assert await ask(listener.port, f"out.default.svc.{DOMAIN}") == (Code.NOERROR, ["192.0.2.7"])
        assert await ask(listener.port, "missing.example.com") == (Code.NXDOMAIN, [])
        assert listener.counts == QueryCounts(queries=4, forwarded=2)


async def test_work_is_added_to_the_meter_of_the_cluster() -> None:
    meter = WorkMeter()
    async with running(meter=lambda: meter) as listener:
        await ask(listener.port, f"web.default.svc.{DOMAIN}")
        assert meter.loop_ns > 0


async def test_query_that_no_server_answers_has_failed() -> None:
    async with running_upstream() as upstream:
        pass
    async with running(upstream) as listener:
        assert await ask(listener.port, "example.com") == (Code.SERVFAIL, [])
        assert listener.counts == QueryCounts(queries=1, forwarded=1, failed=1)


async def test_large_answers_are_complete_over_tcp() -> None:
    many = [f"192.0.2.{number}" for number in range(200)]
    async with running_upstream({"example.com": many}) as upstream, running(upstream) as listener:
        for name in ("example.com", f"db.default.svc.{DOMAIN}"):
            message = encode_query(7, wire_name(name), Type.A)
            response = await sent(listener.port, message)
            assert len(response) <= 1232
            assert HEADER.unpack_from(response)[1] & TRUNCATED
            (response,) = await sent_over_tcp(listener.port, message)
            assert HEADER.unpack_from(response)[3] == 200


@pytest.mark.parametrize(
    "name",
    [
        *("intranet", "secret.host.internal", "10.in-addr.arpa", "7.0.96.10.in-addr.arpa", "9.0.96.10.in-addr.arpa"),
        f"{'0.' * 32}ip6.arpa",
    ],
)
async def test_names_of_private_networks_are_not_forwarded(name: str) -> None:
    refused = (wire_name("host.internal"),)
    async with running_upstream() as upstream, running(upstream, refused_domains=refused) as listener:
        await ask(listener.port, name, Type.PTR)
        await ask(listener.port, name)
        assert upstream.queries == []


@pytest.mark.parametrize("address", ["10.0.0.1", "10.255.0.1"])
async def test_private_addresses_of_other_servers_are_not_returned(address: str) -> None:
    async with running_upstream({"evil.example": ["192.0.2.1", address]}) as upstream, running(upstream) as listener:
        assert await ask(listener.port, "evil.example") == (Code.NOERROR, [])


async def test_queries_of_other_networks_get_no_answer() -> None:
    async with running(source_ranges=(PRIVATE,)) as listener:
        with pytest.raises(TimeoutError):
            await sent(listener.port, encode_query(7, wire_name(f"web.default.svc.{DOMAIN}"), Type.A), 0.1)
        with pytest.raises(asyncio.IncompleteReadError):
            await sent_over_tcp(listener.port, encode_query(7, wire_name("a"), Type.A))


@pytest.mark.parametrize(("bound", "called"), [("0.0.0.0", "127.0.0.2"), ("::", "::1")])
async def test_response_comes_from_the_called_address(bound: str, called: str) -> None:
    names, sources = cluster(), (LOOPBACK, ipaddress.ip_network("::1/128"))
    async with asyncio.TaskGroup() as group:
        listener = DnsListener(
            Resolver("blue", wire_name(DOMAIN), lambda: names, lambda: Rules(source_ranges=sources)), group
        )
        await listener.start(bound, *free_ports(1))
        message = encode_query(7, wire_name(f"web.default.svc.{DOMAIN}"), Type.A)
        assert code_of(await sent(listener.port, message, address=called)) == Code.NOERROR
        await listener.stop()


async def test_clients_of_other_clusters_get_no_answer() -> None:
    names = cluster()
    foreign = {"127.0.0.1"}
    async with asyncio.TaskGroup() as group:
        resolver = Resolver(
            "blue", wire_name(DOMAIN), lambda: names, lambda: Rules(source_ranges=(LOOPBACK,)), foreign.__contains__
        )
        listener = DnsListener(resolver, group)
        await listener.start("127.0.0.1", *free_ports(1))
        with pytest.raises(TimeoutError):
            await sent(listener.port, encode_query(7, wire_name(f"web.default.svc.{DOMAIN}"), Type.A), 0.1)
        await listener.stop()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (HEADER.pack(1, 0, 1, 0, 0, 0), Code.FORMERR),
        (HEADER.pack(1, 0x2800, 0, 0, 0, 0), Code.NOTIMP),
        (encode_query(1, wire_name("example.com"), Type.ANY), Code.REFUSED),
        (encode_query(1, wire_name("example.com"), 252), Code.REFUSED),
        (encode_query(1, wire_name("cluster.local"), Type.ANY), Code.REFUSED),
    ],
)
async def test_bad_queries_get_short_errors(message: bytes, code: Code) -> None:
    async with running() as listener:
        for response in (await sent(listener.port, message), *await sent_over_tcp(listener.port, message)):
            assert code_of(response) == code
            assert len(response) <= len(message)


async def test_cluster_whose_names_are_unknown_gets_an_error() -> None:
    async with (
        running_upstream({"example.com": ["192.0.2.7"]}) as upstream,
        running(upstream, names=lambda: None) as listener,
    ):
        assert await ask(listener.port, f"web.default.svc.{DOMAIN}") == (Code.SERVFAIL, [])
        assert await ask(listener.port, "1.0.0.10.in-addr.arpa", Type.PTR) == (Code.SERVFAIL, [])
        assert await ask(listener.port, "example.com") == (Code.NOERROR, ["192.0.2.7"])


async def test_failure_affects_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    names = cluster()
    monkeypatch.setattr(names, "pointer", lambda *_: 1 / 0)
    async with running(names=lambda: names) as listener:
        assert await ask(listener.port, "1.0.0.10.in-addr.arpa", Type.PTR) == (Code.SERVFAIL, [])
        assert (await ask(listener.port, f"web.default.svc.{DOMAIN}"))[0] == Code.NOERROR


async def test_flood_is_limited_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "QUERIES_PER_SECOND", 50.0)
    monkeypatch.setattr(listeners, "BURST", 20.0)
    async with running() as listener:
        message = encode_query(7, wire_name(f"web.default.svc.{DOMAIN}"), Type.A)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.connect(("127.0.0.1", listener.port))
            for _ in range(100):
                channel.send(message)
            loop, count = asyncio.get_running_loop(), 0
            async with asyncio.timeout(10):
                started = loop.time()
                while count < 40:
                    await loop.sock_recv(channel, 1000)
                    count += 1
            assert loop.time() - started > 0.1
        assert listener.counts.limited > 0
        assert listener.counts.queries < 100


async def test_equal_queries_are_forwarded_once() -> None:
    async with running_upstream({"example.com": ["192.0.2.7"]}) as upstream:
        forwarder, servers = Forwarder(), (Server("127.0.0.1", upstream.port),)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(forwarder.answer(client, servers, wire_name("example.com"), Type.A))
                for client in ("blue", "blue", "green")
            ]
        assert [len(each.result().records) for each in tasks] == [1, 1, 1]
        assert len(upstream.queries) == 2


async def test_second_server_answers_when_the_first_fails() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        unused.bind(("127.0.0.1", 0))
        closed = unused.getsockname()[1]
    async with running_upstream({"example.com": ["192.0.2.7"]}) as upstream:
        servers = (Server("127.0.0.1", closed), Server("127.0.0.1", upstream.port))
        answer = await Forwarder().answer("blue", servers, wire_name("example.com"), Type.A)
        assert answer.code == Code.NOERROR


async def test_cached_answer_grows_old() -> None:
    times = iter([0.0, 59.5, 60.0, 60.0])
    async with running_upstream({"example.com": ["192.0.2.7"]}) as upstream:
        forwarder, servers = Forwarder(lambda: next(times)), (Server("127.0.0.1", upstream.port),)
        for ttl in (60, 1, 60):
            name = wire_name("example.com")
            answer = forwarder.cached_answer("blue", name, Type.A)
            answer = answer or await forwarder.answer("blue", servers, name, Type.A)
            assert answer.records[0].ttl == ttl
        assert len(upstream.queries) == 2
