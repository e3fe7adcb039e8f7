import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from tapestry.kube.errors import TransportError
from tapestry.process import probes
from tapestry.process.addresses import Address, parse_address
from tapestry.process.probes import AuthorizationCache, serve_health, serve_metrics, server_tls


async def get(
    url: str, token: str | None = None, tls: ssl.SSLContext | None = None, scheme: str = "Bearer"
) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"{scheme} {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=tls or True) as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":8081", Address("", 8081)),
        ("[::1]:0", Address("::1", 0)),
        ("localhost:1", Address("localhost", 1)),
        ("", None),
        ("0", None),
    ],
)
def test_address_is_parsed(text: str, wanted: Address | None) -> None:
    assert parse_address(text) == wanted


@pytest.mark.parametrize("text", ["8080", "localhost", "host:", "host:x", "host:-1", "host:65536", "::1:80", "host:²"])
def test_invalid_address_error_shows_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected HOST:PORT, \[IPV6\]:PORT or :PORT"):
        parse_address(text)


@given(
    host=st.sampled_from(["", "0.0.0.0", "10.1.2.3", "::", "fe80::1", "node-1.example.com"]), port=st.integers(0, 65535)
)
def test_address_round_trips(host: str, port: int) -> None:
    assert parse_address(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_recognized_by_address_and_name(host: str) -> None:
    assert Address(host, 80).is_loopback


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.com"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not Address(host, 80).is_loopback


async def test_probes_without_checks_are_ok() -> None:
    async with serve_health("127.0.0.1:0", alive={}, ready={}) as at:
        assert await get(f"http://{at}/healthz") == (200, "ok")
        assert await get(f"http://{at}/readyz") == (200, "ok")
        assert (await get(f"http://{at}/"))[0] == 404


async def test_failing_check_is_logged_but_not_in_response(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {"caches": "pods are not synced"}
    ready = {"caches": lambda: wrong.get("caches")}
    async with serve_health("127.0.0.1:0", alive={}, ready=ready) as at:
        assert await get(f"http://{at}/readyz") == (503, "not ok")
        assert await get(f"http://{at}/healthz") == (200, "ok")
        assert await get(f"http://{at}/readyz") == (503, "not ok")
        wrong.clear()
        assert await get(f"http://{at}/readyz") == (200, "ok")
    (record,) = [record for record in caplog.records if record.getMessage() == "probe failed"]
    assert vars(record)["values"] == {"probe": "readyz", "checks": {"caches": "pods are not synced"}}


async def test_checks_may_change_while_serving() -> None:
    alive: dict[str, probes.Check] = {}
    async with serve_health("127.0.0.1:0", alive=alive, ready={}) as at:
        alive["loop"] = lambda: "stuck"
        assert await get(f"http://{at}/healthz") == (503, "not ok")
        del alive["loop"]
        assert await get(f"http://{at}/healthz") == (200, "ok")


async def test_check_that_raises_has_failed() -> None:
    def broken() -> str | None:
        raise LookupError("no such thing")

    async with serve_health("127.0.0.1:0", alive={"broken": broken}, ready={}) as at:
        assert await get(f"http://{at}/healthz") == (503, "not ok")


async def test_empty_address_serves_nothing() -> None:
    async with serve_health("0", alive={}, ready={}) as health, serve_metrics("", authorize=None) as metrics:
        assert (health, metrics) == (None, None)


async def test_port_in_use_error_names_the_port() -> None:
    async with serve_health("127.0.0.1:0", alive={}, ready={}) as at:
        with pytest.raises(OSError, match=f"in use.*{at and at.port}"):
            async with serve_health(str(at), alive={}, ready={}):
                pass


async def test_all_interfaces_use_one_port() -> None:
    async with serve_health(":0", alive={}, ready={}) as at:
        assert at is not None
        assert at.port != 0
        assert await get(f"http://127.0.0.1:{at.port}/healthz") == (200, "ok")
        if socket.has_dualstack_ipv6():
            assert await get(f"http://[::1]:{at.port}/healthz") == (200, "ok")


async def test_idle_connection_does_not_delay_shutdown() -> None:
    async with contextlib.AsyncExitStack() as stack:
        at = await stack.enter_async_context(serve_health("127.0.0.1:0", alive={}, ready={}))
        assert at is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        async with asyncio.timeout(30):
            await stack.aclose()
        await reader.read()
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", at.port)


@pytest.mark.parametrize("turns", range(6))
async def test_client_connecting_during_shutdown_does_not_hang(turns: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_health("127.0.0.1:0", alive={}, ready={}) as at:
        assert at is not None
        client = socket.create_connection((at.host, at.port), timeout=10)
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        assert await asyncio.to_thread(client.recv, 1) == b""
    assert caplog.records == []


@dataclass
class ScriptedReviewer:
    """Act as the token and access reviews of an API server."""

    good: set[str]
    tokens: list[str] = field(default_factory=list)
    is_down: bool = False

    async def __call__(self, token: str) -> bool:
        self.tokens.append(token)
        if self.is_down:
            raise TransportError("POST tokenreviews: no answer", maybe_sent=True)
        return token in self.good


@pytest.fixture
def registry() -> CollectorRegistry:
    found = CollectorRegistry()
    Counter("tapestry_things_total", "Things.", registry=found).inc(7)
    return found


@contextlib.asynccontextmanager
async def public_metrics(
    registry: CollectorRegistry, authorize: probes.Authorize | None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve metrics on all interfaces, reached through loopback: the bound address counts."""
    async with serve_metrics("0.0.0.0:0", authorize=authorize, tls=tls, registry=registry) as at:
        assert at is not None
        yield f"{'https' if tls else 'http'}://127.0.0.1:{at.port}/metrics"


async def test_metrics_on_loopback_need_no_token(registry: CollectorRegistry) -> None:
    reviewer = ScriptedReviewer(good=set())
    async with serve_metrics("127.0.0.1:0", authorize=reviewer, registry=registry) as at:
        status, text = await get(f"http://{at}/metrics")
    assert (status, reviewer.tokens) == (200, [])
    assert "tapestry_things_total 7.0" in text


async def test_metrics_without_authorization_are_open(registry: CollectorRegistry) -> None:
    async with public_metrics(registry, None) as url:
        assert (await get(url))[0] == 200


async def test_metrics_off_loopback_need_an_accepted_token(registry: CollectorRegistry) -> None:
    async with public_metrics(registry, ScriptedReviewer(good={"prometheus"})) as url:
        assert await get(url) == (401, "unauthorized")
        assert await get(url, "prometheus", scheme="Basic") == (401, "unauthorized")
        assert await get(url, "stranger") == (403, "forbidden")
        status, text = await get(url, "prometheus")
    assert status == 200
    assert "tapestry_things_total 7.0" in text


async def test_decision_is_cached_but_errors_are_not(registry: CollectorRegistry) -> None:
    reviewer = ScriptedReviewer(good={"prometheus"}, is_down=True)
    async with public_metrics(registry, reviewer) as url:
        assert await get(url, "prometheus") == (503, "try again")
        reviewer.is_down = False
        assert (await get(url, "prometheus"))[0] == 200
        assert (await get(url, "prometheus"))[0] == 200
    assert reviewer.tokens == ["prometheus", "prometheus"]


async def test_request_in_flight_does_not_delay_shutdown(
    monkeypatch: pytest.MonkeyPatch, registry: CollectorRegistry
) -> None:
    monkeypatch.setattr(probes, "SHUTDOWN_SECONDS", 0.01)
    called = asyncio.Event()

    async def never_authorize(_: str) -> bool:
        called.set()
        await asyncio.Event().wait()
        return True

    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(public_metrics(registry, never_authorize))
        request = asyncio.create_task(get(url, "prometheus"))
        await called.wait()
        async with asyncio.timeout(30):  # half of aiohttp's timeout
            await stack.aclose()
        with pytest.raises(aiohttp.ClientError):
            await request


async def test_decision_is_cached_for_a_minute() -> None:
    now = [100.0]
    reviewer = ScriptedReviewer(good={"a"})
    decisions = AuthorizationCache(reviewer, lambda: now[0])
    assert await decisions.allows("a")
    reviewer.good.clear()
    now[0] += 59.9
    assert await decisions.allows("a")
    now[0] += 0.1
    assert not await decisions.allows("a")
    assert not await decisions.allows("a")
    assert reviewer.tokens == ["a", "a"]


async def test_oldest_decision_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_CACHED_DECISIONS", 2)
    reviewer = ScriptedReviewer(good={"a", "b", "c"})
    decisions = AuthorizationCache(reviewer)
    for token in "abcbca":
        assert await decisions.allows(token)
    assert reviewer.tokens == ["a", "b", "c", "a"]


@dataclass(frozen=True)
class Identity:
    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.cert = self._written(f"{name}.crt", self._signed(self._name, self._key, is_authority=True))

    def identity(self, name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert = self._written(f"{name}.crt", self._signed(subject, key, is_authority=False))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self._folder / f"{name}.key").write_bytes(pem)
        return Identity(cert, self._folder / f"{name}.key")

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )

    def _written(self, name: str, cert: x509.Certificate) -> Path:
        path = self._folder / name
        path.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return path


def client_tls(authority: Authority, identity: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if identity is not None:
        context.load_cert_chain(identity.cert, identity.key)
    return context


async def test_verified_client_certificate_replaces_a_token(tmp_path: Path, registry: CollectorRegistry) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server, prometheus, unknown = ours.identity("server"), ours.identity("prometheus"), theirs.identity("stranger")
    tls = server_tls(str(server.cert), str(server.key), str(ours.cert))
    async with public_metrics(registry, ScriptedReviewer(good={"t"}), tls) as url:
        assert (await get(url, tls=client_tls(ours, prometheus)))[0] == 200
        assert (await get(url, tls=client_tls(ours)))[0] == 401
        assert (await get(url, token="t", tls=client_tls(ours)))[0] == 200
        with pytest.raises(aiohttp.ClientError):
            await get(url, tls=client_tls(ours, unknown))


async def test_client_certificate_without_ca_is_ignored(tmp_path: Path, registry: CollectorRegistry) -> None:
    ours = Authority(tmp_path, "ours")
    server = ours.identity("server")
    async with public_metrics(
        registry, ScriptedReviewer(good=set()), server_tls(str(server.cert), str(server.key))
    ) as url:
        assert (await get(url, tls=client_tls(ours, ours.identity("prometheus"))))[0] == 401


async def test_broken_request_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_health("127.0.0.1:0", alive={}, ready={}) as at:
        assert at is not None
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nAuthorizat\x84on: Bearer secret\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
    assert caplog.records == []
