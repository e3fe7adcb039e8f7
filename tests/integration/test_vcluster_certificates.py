"""Certificates of the service: those of clients by REST and by gRPC, and its own."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from cryptography import x509
from google.protobuf import field_mask_pb2
from google.protobuf.message_factory import GetMessageClass

from tapestry.apiserver.access import certificates, reloading_file
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.revocations import revoke_certificate, revoke_user_certificates
from tapestry.cli.planes import mounted_routes
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.process.addresses import Address
from tapestry.tenants.app import run_tenants
from tapestry.vclusters.app import run_vclusters
from tapestry.vclusters.config import ServiceConfig
from tapestry.vclusters.grpc import certificate_of
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.serving import Listeners, serve_gateway

from ..unit.vclusters.proxied_vclusters import PLUGIN, create_users

LOCAL = "127.0.0.1:0"
Code = grpc.StatusCode
STATUSES = {Code.OK: 200, Code.NOT_FOUND: 404, Code.PERMISSION_DENIED: 403}
MASTERS = ["system:masters"]
Files = tuple[Path, Path]


@dataclass
class World:
    process: PlaneProcess
    listeners: Listeners
    keys: dict[str, str]

    @property
    def authority(self) -> CertificateAuthority:
        """The CA of the management API, which signs client certificates."""
        return CertificateAuthority(self.process.management.folder / "pki")

    @property
    def server_ca(self) -> Path:
        return CertificateAuthority(self.process.config.folder / "pki").certificate_file

    async def rpc(self, method: str, files: Files | None, key: str = "", **fields: Any) -> Code:
        """Return the status of an RPC to the listener that requires client certificates."""
        pair = (files[1].read_bytes(), files[0].read_bytes()) if files is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(self.server_ca.read_bytes(), *pair)
        rpc = RPCS[method]
        async with grpc.aio.secure_channel(str(self.listeners.grpc_mtls), credentials) as channel:
            call = channel.unary_unary(f"/{rpc.containing_service.full_name}/{rpc.name}")
            request = GetMessageClass(rpc.input_type)(**fields).SerializeToString()
            metadata = [("authorization", f"Bearer {key}")] if key else []
            try:
                await call(request, metadata=metadata, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.code()
            return Code.OK

    async def rest(self, method: str, path: str, files: Files, **options: Any) -> int:
        context = ssl.create_default_context(cafile=str(self.server_ca))
        context.load_cert_chain(*files)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http,
            http.request(method, f"https://{self.listeners.rest}{path}", **options) as response,
        ):
            return response.status


@asynccontextmanager
async def new_world(folder: Path) -> AsyncIterator[World]:
    config = PlanesConfig(data=str(folder), name="here", address=LOCAL)
    service = ServiceConfig(rest_address=LOCAL, grpc_address=LOCAL, grpc_mtls_address=LOCAL)
    async with (
        run_planes(config, mounted_routes, extension=run_tenants, admission=PLUGIN) as process,
        run_vclusters(process),
        serve_gateway(process, service, lambda _: None) as listeners,
    ):
        yield World(process, listeners, await create_users(client_of(process.management)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with new_world(tmp_path / "planes") as found:
        yield found


@pytest.mark.parametrize(
    ("user", "groups", "expected"),
    [
        ("vera", [], [Code.OK, Code.PERMISSION_DENIED, Code.PERMISSION_DENIED]),
        ("ada", [], [Code.OK, Code.OK, Code.PERMISSION_DENIED]),
        ("stranger", [], [Code.NOT_FOUND, Code.NOT_FOUND, Code.PERMISSION_DENIED]),
        ("root", MASTERS, [Code.OK, Code.OK, Code.OK]),
    ],
)
async def test_certificates_have_the_roles_of_their_users(
    world: World, user: str, groups: list[str], expected: list[Code]
) -> None:
    files = world.authority.client_certificate(user, groups)
    mask = field_mask_pb2.FieldMask(paths=["description"])
    assert expected == [
        await world.rpc("GetProject", files, name="shop"),
        await world.rpc("UpdateProject", files, project={"name": "shop", "description": "x"}, update_mask=mask),
        await world.rpc("CreateProject", files, project={"name": "by-grpc"}),
    ]
    assert [STATUSES[each] for each in expected] == [
        await world.rest("GET", "/v1/projects/shop", files),
        await world.rest("PATCH", "/v1/projects/shop?updateMask=description", files, json={"description": "y"}),
        await world.rest("POST", "/v1/projects", files, json={"name": "by-rest"}) - (expected[2] is Code.OK),
    ]


async def test_an_access_key_counts_more_than_a_certificate(world: World) -> None:
    files = world.authority.client_certificate("root", MASTERS)
    assert await world.rpc("CreateProject", files, world.keys["vera"], project={"name": "p"}) is Code.PERMISSION_DENIED
    assert await world.rpc("GetProject", files, "tap_wrong", name="shop") is Code.UNAUTHENTICATED


async def test_unknown_certificates_are_refused(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake fails, as that of a listener that requires client certificates."""
    other_ca = CertificateAuthority(tmp_path / "other").client_certificate("root", MASTERS)
    process_ca = CertificateAuthority(world.server_ca.parent).client_certificate("root", MASTERS)
    serving = world.server_ca.with_name("apiserver.crt"), world.server_ca.with_name("apiserver.key")
    monkeypatch.setattr(certificates, "LIFETIME", timedelta(minutes=-30))
    expired = world.authority.client_certificate("expired", MASTERS)
    for files in (None, other_ca, process_ca, serving, expired):
        assert await world.rpc("ListProjects", files) is Code.UNAVAILABLE
    for files in (other_ca, process_ca, serving, expired):
        assert await world.rest("GET", "/v1/projects", files) == 401
    for key, code in (("", Code.UNAVAILABLE), (world.keys["ada"], Code.UNAVAILABLE)):
        assert await world.rpc("ListProjects", None, key) is code


async def test_revoked_certificates_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)
    one, all = (world.authority.client_certificate(name, MASTERS) for name in ("one", "all"))
    for files in (one, all):
        assert await world.rpc("ListProjects", files) is Code.OK
        assert await world.rest("GET", "/v1/projects", files) == 200
    folder, later = world.process.management.folder, datetime.now(UTC) + timedelta(seconds=1)
    serial = x509.load_pem_x509_certificate(one[0].read_bytes()).serial_number
    revoke_certificate(folder, f"{serial:x}", later)
    revoke_user_certificates(folder, "all", later)
    for files in (one, all):
        assert await world.rest("GET", "/v1/projects", files) == 401
        assert await world.rpc("ListProjects", files) is Code.UNAUTHENTICATED


def test_certificate_that_expires_in_a_connection_is_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path)
    current = authority.client_certificate("jane", ["devs"])[0].read_bytes()
    subject = certificate_of({"x509_pem_cert": [current]}, authority.certificate_file)
    assert subject is not None
    assert (subject["commonName"], subject["organizationName"], len(subject["chain"])) == (["jane"], ["devs"], 2)
    monkeypatch.setattr(certificates, "LIFETIME", timedelta(minutes=-30))
    expired = authority.client_certificate("joe", [])[0].read_bytes()
    assert certificate_of({"x509_pem_cert": [expired]}, authority.certificate_file) is None
    assert certificate_of({}, authority.certificate_file) is None


async def serial_of(address: Address | None, authority: Path) -> int:
    """Return the serial number of the certificate that a listener presents to a new connection."""
    assert address is not None
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(certificate).serial_number


async def test_listeners_present_a_renewed_certificate(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = (world.listeners.rest, world.listeners.grpc)
    first = {await serial_of(each, world.server_ca) for each in listeners}
    file = world.server_ca.with_name("apiserver.crt")
    names = x509.load_pem_x509_certificate(file.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "LIFETIME", timedelta(days=29))
        CertificateAuthority(file.parent).server_certificate([str(each.value) for each in names.value])
    second = {await serial_of(each, world.server_ca) for each in listeners}
    expires = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    assert expires - datetime.now(UTC) > timedelta(days=300)
    assert (len(first), len(second), first & second) == (1, 1, set())
    root = world.authority.client_certificate("root", MASTERS)
    assert await world.rpc("ListProjects", root) is Code.OK
    assert await world.rest("GET", "/v1/projects", root) == 200
