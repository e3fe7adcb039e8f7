"""CAs of the clients of a virtual node: their sources, and their replacement while the server runs."""

import ssl
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig, Tls
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import CONFIGMAPS
from tapestry.nodeproxy.client_cas import (
    AUTHENTICATION_CONFIGMAP,
    PublishedClientCas,
    kubelet_tls,
    published_client_cas,
)

from .world import World

REFUSED = (aiohttp.ClientError, ssl.SSLError, ConnectionError)


def configmap_with(cas: str) -> Object:
    return {**object_named(AUTHENTICATION_CONFIGMAP, "kube-system"), "data": {"client-ca-file": cas}}


async def test_client_cas_come_from_the_virtual_cluster(caplog: Any) -> None:
    api = InProcessApi([CONFIGMAPS], now=lambda: datetime.now(UTC))
    client = Client(api)
    assert await published_client_cas(client) == ""
    assert "kubelet.clientCa" in caplog.text
    await client.create(CONFIGMAPS, configmap_with("a CA"))
    assert await published_client_cas(client) == "a CA"


async def test_our_api_server_publishes_its_client_cas(world: World, tmp_path: Path) -> None:
    theirs, tls = world.other_authority.certificate_pem(), Tls(client_ca=str(world.other_authority.certificate_file))
    config = ApiServerConfig(backend="memory", file_rootpath=str(tmp_path), secure_address="127.0.0.1:0", tls=tls)
    async with run_apiserver(config) as served:
        published = await published_client_cas(Client(InProcessTransport(served.server, APISERVER_USER)))
    assert published == CertificateAuthority(tmp_path / "pki").certificate_pem() + theirs


async def test_configured_ca_wins(world: World) -> None:
    world.other_authority.certificate_pem()
    theirs = str(world.other_authority.certificate_file)
    (known,) = kubelet_tls(theirs, world.authority.certificate_pem()).get_ca_certs()
    assert known["serialNumber"] == serial_of(world.other_authority)
    assert kubelet_tls("", "").verify_mode is ssl.CERT_NONE


def serial_of(authority: CertificateAuthority) -> str:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.load_verify_locations(cadata=authority.certificate_pem())
    return str(found.get_ca_certs()[0]["serialNumber"])


async def test_changed_cas_verify_new_connections(world: World) -> None:
    old, new = (each.client_certificate("operator", []) for each in (world.authority, world.other_authority))
    published = PublishedClientCas(world.serving)
    assert await world.ask_with(old) == 200
    for comment in ("", "# \u00c7a va\n"):
        published.on_change(None, configmap_with(comment + world.other_authority.certificate_pem()))
        assert await world.ask_with(new) == 200
        with pytest.raises(REFUSED):
            await world.ask_with(old)
    world.serving.use(world.serving.pair)  # another serving certificate keeps them
    assert await world.ask_with(new) == 200


async def test_cas_that_are_published_later_are_used(world: World) -> None:
    world.serving.verify_clients(partial(kubelet_tls, "", ""))
    certificate = world.authority.client_certificate("operator", [])
    assert await world.ask_with(certificate) == 401
    PublishedClientCas(world.serving).on_change(None, configmap_with(world.authority.certificate_pem()))
    assert await world.ask_with(certificate) == 200


@pytest.mark.parametrize(
    "text", [None, "", " ", "no CA", "\u00c7", "\0", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
async def test_missing_and_invalid_cas_change_nothing(world: World, text: str | None) -> None:
    published = PublishedClientCas(world.serving)
    published.on_change(None, configmap_with(text) if text is not None else None)
    assert await world.ask_with(world.authority.client_certificate("operator", [])) == 200
    with pytest.raises(REFUSED):
        await world.ask_with(world.other_authority.client_certificate("operator", []))
