"""Authorization of requests to the kubelet API of a virtual node."""

import ssl
from datetime import UTC, datetime
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
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import object_named
from tapestry.kube.resources import CONFIGMAPS
from tapestry.nodeproxy.kubelet import AUTHENTICATION_CONFIGMAP, kubelet_tls, published_client_cas

from .world import NODE, RIGHT, World


@pytest.mark.parametrize(("who", "code"), [("", 401), ("made up", 401), ("guest's", 403), ("operator's", 200)])
async def test_token_is_authorized_by_its_user(world: World, who: str, code: int) -> None:
    assert (await world.ask(who=who))[0] == code


@pytest.mark.parametrize(("user", "code"), [("operator", 200), ("guest", 403)])
async def test_client_certificate_authenticates_but_does_not_authorize(world: World, user: str, code: int) -> None:
    assert await world.ask_with(world.authority.client_certificate(user, ["a-group"])) == code
    assert world.reviews == [{"user": user, "groups": ["a-group"], "resourceAttributes": RIGHT}]


async def test_certificate_of_unknown_ca_ends_the_connection(world: World) -> None:
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await world.ask_with(world.other_authority.client_certificate("operator", []))
    assert world.reviews == []


async def test_request_needs_permission_on_the_node(
    world: World,
) -> None:
    await world.ask()
    await world.ask("/containerLogs/default/none/c")
    assert [each["resourceAttributes"]["name"] for each in world.reviews] == [NODE, ""]
    assert (await world.ask("/containerLogs/default/none/c", who="guest's"))[0] == 403


async def test_other_paths_are_not_found(world: World) -> None:
    for path in ("/run/default/web/c?cmd=id", "/pods", "/metrics", "/", "/exec/default/web", "/exec/default/web/c/d/e"):
        assert (await world.ask(path, method="POST"))[0] == 404
        assert world.reviews[-1]["resourceAttributes"] == {**RIGHT, "verb": "create", "name": ""}
        assert (await world.ask(path, who="guest's"))[0] == 403
        assert (await world.ask(path, who=""))[0] == 401


async def test_log_is_only_read(world: World) -> None:
    assert (await world.ask(method="POST"))[0] == 405


async def test_unreachable_virtual_cluster_denies_all_requests(world: World) -> None:
    world.refusal = Forbidden(403, "Forbidden", "the syncer may not ask")
    assert await world.ask() == (503, "the API server cannot authenticate the request now")


# -- certificates


async def test_client_cas_come_from_the_virtual_cluster(caplog: Any) -> None:
    api = InProcessApi([CONFIGMAPS], now=lambda: datetime.now(UTC))
    client = Client(api)
    assert await published_client_cas(client) == ""
    assert "kubelet.clientCa" in caplog.text
    await client.create(
        CONFIGMAPS, {**object_named(AUTHENTICATION_CONFIGMAP, "kube-system"), "data": {"client-ca-file": "a CA"}}
    )
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
