"""Replacement of the serving certificate while the server runs."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from prometheus_client import REGISTRY

from tapestry.apiserver.access.certificates import subject_name
from tapestry.nodeproxy.serving_certificate import KeyPair, Lifetime, lifetime_of, self_signed_pair

from .world import LOG, World

METRIC = "tapestry_kubelet_certificate_expiration_timestamp_seconds"
START = datetime(2026, 1, 1, tzinfo=UTC)


def rsa_pair() -> KeyPair:
    """Return a certificate whose key is of another type than those of `self_signed_pair`."""
    key, name = rsa.generate_private_key(65537, 2048), subject_name("rsa")
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(START).not_valid_after(START + timedelta(days=3650))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return KeyPair(builder.sign(key, hashes.SHA256()).public_bytes(pem), key.private_bytes(pem, *private))


async def request_log(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the status line of a response on an open connection."""
    writer.write(f"GET {LOG} HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer operator's\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    while await reader.readuntil(b"\r\n") != b"0\r\n":
        continue
    await reader.readuntil(b"\r\n")
    return head.partition(b"\r\n")[0]


@asynccontextmanager
async def connection(world: World) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = urlsplit(world.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
    yield reader, writer
    writer.close()
    await writer.wait_closed()


async def served_certificate(world: World) -> bytes:
    async with connection(world) as (_, writer):
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found


def der(pair: KeyPair) -> bytes:
    return pair.leaf().public_bytes(serialization.Encoding.DER)


async def test_new_connections_get_the_new_certificate(world: World) -> None:
    for pair in (world.serving.pair, rsa_pair(), self_signed_pair(["127.0.0.1"])):
        world.serving.use(pair)
        assert await served_certificate(world) == der(pair)
        assert REGISTRY.get_sample_value(METRIC) == lifetime_of(pair).end.timestamp()


async def test_open_connection_survives_a_replacement(world: World) -> None:
    async with connection(world) as streams:
        assert b" 200 " in await request_log(*streams)
        world.serving.use(rsa_pair())
        assert b" 200 " in await request_log(*streams)


async def test_clients_are_still_verified_after_a_replacement(world: World) -> None:
    world.serving.use(rsa_pair())
    assert await world.ask_with(world.authority.client_certificate("operator", [])) == 200
    with pytest.raises((aiohttp.ClientError, OSError)):
        await world.ask_with(world.other_authority.client_certificate("operator", []))


@pytest.mark.parametrize(
    "pair",
    [
        KeyPair(rsa_pair().certificate, self_signed_pair(["x"]).key),
        KeyPair(b"", b""),
        KeyPair(b"not PEM", rsa_pair().key),
        KeyPair(rsa_pair().certificate, b"not PEM"),
    ],
)
async def test_unusable_certificate_changes_nothing(world: World, pair: KeyPair) -> None:
    before = world.serving.pair
    with pytest.raises(ValueError, match=r"."):
        world.serving.use(pair)
    assert world.serving.pair == before
    assert await served_certificate(world) == der(before)


def test_fractions_of_a_lifetime() -> None:
    lifetime = Lifetime(START, START + timedelta(days=10))
    assert lifetime.after(0.8) == START + timedelta(days=8)


def test_key_is_not_printed() -> None:
    assert "PRIVATE KEY" not in repr(self_signed_pair(["a"]))
