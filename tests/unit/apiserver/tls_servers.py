"""A server with TLS, a clock that can be advanced, and clients with certificates on open connections."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.user_certificates import UserCertificate, create_certificate
from tapestry.apiserver.app import RunningServer, run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.objects import Object

HOUR = timedelta(hours=1)
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@dataclass
class Clock:
    offset: timedelta = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset


@dataclass
class Connection:
    """A connection of a client that stays open."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def whoami(self, token: str = "") -> str:
        """Return the user name, or the reason of an error."""
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"POST {WHOAMI} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        async with asyncio.timeout(10):
            response_head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(response_head.partition("content-length: ")[2].partition("\r\n")[0])
            body = json.loads(await self.reader.readexactly(length))
        return str(body["reason"] if "reason" in body else body["status"]["userInfo"]["username"])

    @property
    def server_certificate(self) -> x509.Certificate:
        return x509.load_der_x509_certificate(self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))

    @property
    def server_issuer(self) -> x509.Name:
        return self.server_certificate.issuer


@dataclass
class TlsServer:
    """A server with the CA in its data folder."""

    running: RunningServer
    folder: Path
    clock: Clock
    connections: list[Connection] = field(default_factory=list)

    @property
    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(self.folder / "pki")

    def new_certificate(self, user: str) -> UserCertificate:
        return create_certificate(self.folder, user, ["devs"], HOUR, datetime.now(UTC))

    async def connect(self, ca: str = "", certificate: UserCertificate | None = None) -> Connection:
        """Connect as a client that trusts these CAs, by default the current ones."""
        context = ssl.create_default_context(cadata=ca or self.authority.certificate_pem())
        if certificate is not None:
            file = self.folder / f"{certificate.serial}.pem"
            file.write_bytes(certificate.certificate_pem + certificate.key_pem)
            context.load_cert_chain(file)
        host, _, port = self.running.addresses["secure"].rpartition(":")
        streams = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        self.connections.append(Connection(*streams))
        return self.connections[-1]

    async def wait_for_published(self, pem: str) -> None:
        """Wait until the CAs of clients are these."""
        subscription = self.running.store.watch("configmaps", "kube-system", "extension-apiserver-authentication")
        async with asyncio.timeout(10):
            while self.published()["client-ca-file"] != pem:
                await subscription.next_events()
        self.running.store.unwatch("configmaps", subscription)

    def published(self) -> Object:
        version = self.running.store.get("configmaps", "kube-system", "extension-apiserver-authentication")
        assert version is not None
        data: Object = json.loads(version.raw)["data"]
        return data


@asynccontextmanager
async def run_tls_server(folder: Path, **options: Any) -> AsyncIterator[TlsServer]:
    config = ApiServerConfig(
        **{"backend": "memory", "secure_address": "127.0.0.1:0", "file_rootpath": str(folder), **options}
    )
    clock = Clock()
    async with run_apiserver(config, clock) as running:
        world = TlsServer(running, folder, clock)
        yield world
        for each in world.connections:
            each.writer.close()
