"""A listener with planes in this process, and clients that connect to it in any way."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.planes.plane_listener import PlaneListener
from tapestry.planes.plane_names import PlaneNames
from tapestry.planes.plane_set import PlaneEntry, PlaneSet
from tapestry.planes.plane_tls import PlaneTls

TIMEOUT = 20.0
IDLE_TIMEOUT = timedelta(minutes=10)
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
MAPS = "/api/v1/namespaces/default/configmaps"
Files = tuple[Path, Path]


@dataclass(frozen=True)
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def user(self) -> str:
        name: str = json.loads(self.body)["status"]["userInfo"]["username"]
        return name

    @property
    def message(self) -> str:
        message: str = json.loads(self.body)["message"]
        return message


@dataclass
class TlsClient:
    """One connection with raw reads and writes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(
        self, method: str, path: str, body: bytes = b"", *, host: str = "planes", token: str = "", **headers: str
    ) -> HttpResponse:
        self.send(method, path, body, host=host, token=token, **headers)
        return await self.response(has_body=method != "HEAD")

    def send(
        self, method: str, path: str, body: bytes = b"", *, host: str = "planes", token: str = "", **headers: str
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def response(self, *, has_body: bool = True) -> HttpResponse:
        async with asyncio.timeout(TIMEOUT):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", 0)) if has_body else 0)
        return HttpResponse(int(first.split()[1]), headers, body)

    async def whoami(self, *, prefix: str = "", **more: Any) -> HttpResponse:
        return await self.request("POST", f"{prefix}{WHOAMI}", b"{}", Content_Type="application/json", **more)

    async def event(self) -> dict[str, Any]:
        """Return the next event of a watch, whose chunks have one event each."""
        async with asyncio.timeout(TIMEOUT):
            size = int(await self.reader.readline(), 16)
            chunk = await self.reader.readexactly(size + 2)
        event: dict[str, Any] = json.loads(chunk)
        return event

    async def is_closed(self) -> bool:
        async with asyncio.timeout(TIMEOUT):
            try:
                return await self.reader.read() == b""
            except (ConnectionError, ssl.SSLError):
                return True


@dataclass
class ListeningPlanes:
    folder: Path
    planes: PlaneSet
    listener: PlaneListener
    names: PlaneNames
    address: tuple[str, int]
    clients: list[TlsClient] = field(default_factory=list)
    tokens: dict[tuple[str, str], str] = field(default_factory=dict)
    """Tokens by plane and user."""

    def add(self, plane_id: str, **options: Any) -> PlaneEntry:
        """Add a plane with tokens of `jane`, who has no rights, and of `root`, who has all."""
        for user, groups in (("jane", ()), ("root", ("system:masters",))):
            _, token = create_token(self.folder / plane_id, user, groups, timedelta(hours=1), datetime.now(UTC))
            self.tokens[plane_id, user] = token
        options = {"controllers": ["none"], **options}
        config = ApiServerConfig(file_rootpath=str(self.folder / plane_id), **options)
        return self.planes.add(plane_id, config, idle_timeout=IDLE_TIMEOUT)

    async def opened(self, plane_id: str, **options: Any) -> PlaneEntry:
        entry = self.add(plane_id, **options)
        assert await self.planes.open(entry) is not None, entry.message
        return entry

    def authority(self, plane_id: str) -> CertificateAuthority:
        authority = CertificateAuthority(self.folder / plane_id / "pki")
        authority.certificate_pem()
        return authority

    def admin(self, plane_id: str) -> Files:
        return self.authority(plane_id).client_certificate("admin", ["system:masters"])

    def kubeconfig(self, plane_id: str, *, by_path: bool) -> Path:
        """Write a kubeconfig for a plane: by server name with a certificate, or by path with a token."""
        server = f"https://{self.address[0]}:{self.address[1]}"
        certificate, key = self.admin(plane_id)
        if by_path:
            process_ca = str(self.folder / "process" / "pki" / "ca.crt")
            cluster = {"server": f"{server}/planes/{plane_id}", "certificate-authority": process_ca}
            user = {"token": self.tokens[plane_id, "root"]}
        else:
            ca, name = str(self.authority(plane_id).certificate_file), self.names.server_name(plane_id)
            cluster = {"server": server, "certificate-authority": ca, "tls-server-name": name}
            user = {"client-certificate": str(certificate), "client-key": str(key)}
        file = self.folder / f"{plane_id}-by-{'path' if by_path else 'name'}.yaml"
        file.write_text(json.dumps(kubeconfig_document(plane_id, cluster, user)))
        return file

    def tls(self, files: Files | None = None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        """Return the context of a client that does not verify the server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if files is not None:
            context.load_cert_chain(*files)
        if version is not None:
            context.maximum_version = version
        return context

    def verifying_tls(self, plane_id: str, files: Files | None = None) -> ssl.SSLContext:
        """Return the context of a client that verifies the server with the CA of a plane."""
        context = ssl.create_default_context(cafile=str(self.authority(plane_id).certificate_file))
        if files is not None:
            context.load_cert_chain(*files)
        return context

    async def connect(
        self, plane_id: str = "", tls: ssl.SSLContext | None = None, address: tuple[str, int] | None = None
    ) -> TlsClient:
        """Connect with the server name of a plane, or without one of a plane."""
        name = self.names.server_name(plane_id) if plane_id else "planes"
        reader, writer = await asyncio.open_connection(
            *(address or self.address), ssl=tls or self.tls(), server_hostname=name
        )
        self.clients.append(TlsClient(reader, writer))
        return self.clients[-1]


@asynccontextmanager
async def listening_planes(folder: Path, *, hold_seconds: float = 5.0) -> AsyncIterator[ListeningPlanes]:
    with closing(ServerThreads()) as threads:
        async with asyncio.TaskGroup() as group:
            planes, names = PlaneSet(group, threads), PlaneNames(extra_names=("planes",))
            tls = PlaneTls(folder / "process", names, planes.config_of)
            listener = PlaneListener(planes, tls, group, hold_seconds=hold_seconds)
            http_server = await listener.listen("127.0.0.1", 0)
            running = ListeningPlanes(folder, planes, listener, names, http_server.addresses[0][:2])
            try:
                yield running
            finally:
                await planes.close_all()
                for client in running.clients:
                    client.writer.close()
                await http_server.stop()
