"""A process of planes, and the cluster-admin of one of them, who attacks the others, their process and its machine."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.unit.planes.listening_planes import Files, HttpResponse, TlsClient

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.client.client import Client
from tapestry.kube.objects import EMPTY_MAPPING, Object, name_of, object_named
from tapestry.kube.resources import CONFIGMAPS, CRDS, EVENTS, NAMESPACES, SECRETS

from .plane_clients import client_of, created_plane, plane_kubeconfig, token_of, wait_for_phase
from .servers import PlanesProcess

DOMAIN = "planes.tapestry.local"
CANARY = "canary-of-the-neighbour"
"""Text that only the neighbour may see."""
REASON = "unpaid-since-May"
SECRET = "/api/v1/namespaces/default/secrets/canary"
SIGNING_REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LIMITS = {"objects": 700, "bytes": "24Mi", "watches": 20, "requestsInFlight": 9}
TIMEOUT = 20.0
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
Calls = list[str]


@dataclass
class HostileTenant:
    """What the cluster-admin of plane A has, and more than a real one knows: the ids of the other planes."""

    process: PlanesProcess
    ids: dict[str, str]
    """Ids of the planes `a`, `b` (a neighbour), `asleep` and `suspended`."""
    token: str
    """Token of a member of `system:masters` in A."""
    certificate: Files
    """Client certificate of a member of `system:masters` in A."""
    management: Client
    own: Client
    neighbour: Client
    session: aiohttp.ClientSession
    """Session with the token of A, by path."""
    port: int
    """Port of this machine that nobody may call."""
    calls: Calls
    folder: Path
    """Folder for files of the tenant."""
    signed: Files | None = None
    """Client certificate of the user `admin`, signed by A through a CertificateSigningRequest."""
    clients: list[TlsClient] = field(default_factory=list)

    @property
    def values(self) -> dict[str, str]:
        """Values for the placeholders in the requests of attempts."""
        _, _, own_port = self.process.address.rpartition(":")
        return {
            **self.ids,
            "b-in-capitals": self.ids["b"].upper(),
            "port": str(self.port),
            "own_port": own_port,
            "token": self.token,
        }

    def format(self, text: str) -> str:
        for name, value in self.values.items():
            text = text.replace(f"<{name}>", value)
        return text

    def files(self, credentials: str) -> Files | None:
        return {"certificate": self.certificate, "signed": self.signed}.get(credentials)

    async def connect(self, server_name: str = "", files: Files | None = None) -> TlsClient:
        """Connect with a server name; without one, the path selects the plane. The server is not verified."""
        context = tls_context(files)
        host, _, port = self.process.address.rpartition(":")
        name = self.format(server_name) or "localhost"
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
        self.clients.append(TlsClient(reader, writer))
        return self.clients[-1]

    async def request(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        server_name: str = "",
        credentials: str = "token",
        host: str = "localhost",
        headers: Mapping[str, str] = EMPTY_MAPPING,
    ) -> HttpResponse:
        """Send a request on a new connection. All texts may have placeholders such as `<b>`."""
        client = await self.connect(server_name, self.files(credentials))
        content = b"" if body is None else json.dumps(body).encode()
        more = {name.replace("-", "_"): self.format(value) for name, value in headers.items()}
        more.setdefault("Content_Type", JSON)
        token = self.token if credentials == "token" else ""
        with closing(client.writer):
            return await client.request(
                method, self.format(target), content, host=self.format(host), token=token, **more
            )

    async def at_home(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
        """Send a request to A over a kept connection."""
        url = f"{self.process.url}/planes/{self.ids['a']}{self.format(path)}"
        async with self.session.request(method, url, json=body, **options) as response:
            return response.status, await response.text()

    async def created_at_home(self, path: str, body: Any) -> None:
        status, text = await self.at_home("POST", path, body)
        assert status == 201, text

    async def at_home_until(self, method: str, path: str, body: Any, wanted: int) -> str:
        """Repeat a request until it has a status, which depends on something that happens soon."""
        async with asyncio.timeout(TIMEOUT):
            while (answer := await self.at_home(method, path, body))[0] != wanted:
                pass
        return answer[1]

    async def check_neighbour_answers(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            assert (await self.neighbour.get(SECRETS, "canary", "default"))["type"] == "Opaque"

    async def phase(self, name: str) -> str:
        plane = await self.management.get(PLANES, name)
        phase: str = plane["status"]["phase"]
        return phase


def tls_context(files: Files | None = None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(*files)
    if version is not None:
        context.maximum_version = version
    return context


@asynccontextmanager
async def hostile_tenant(folder: Path) -> AsyncIterator[HostileTenant]:
    """Run the process with its planes; one is asleep, and one suspended."""
    async with AsyncExitStack() as stack:
        process = PlanesProcess(folder / "data")
        await asyncio.to_thread(process.start)
        stack.callback(process.kill)
        management = await stack.enter_async_context(client_of(process.kubeconfig))
        planes = {
            "asleep": await created_plane(management, "asleep", idleSeconds=10),
            "a": await created_plane(management, "a", limits=LIMITS),
            "b": await created_plane(management, "b"),
            "suspended": await created_plane(management, "suspended"),
        }
        for name in ("asleep", "suspended"):
            file = await plane_kubeconfig(management, name, folder / f"{name}.kubeconfig")
            async with client_of(file) as client:
                await create_canary(client)
        await management.patch(
            PLANES, object_named("suspended"), {"spec": {"state": "Suspended", "suspendReason": REASON}}
        )
        await wait_for_phase(management, "suspended", "Suspended")
        await wait_for_phase(management, "asleep", "Asleep")
        await management.patch(PLANES, object_named("asleep"), {"spec": {"idleSeconds": 3600}})
        clients = []
        for name in ("a", "b"):
            file = await plane_kubeconfig(management, name, folder / f"{name}.kubeconfig", byPath=True)
            clients.append(await stack.enter_async_context(client_of(file)))
        await create_canary(clients[1])
        ids = {name: plane_id(plane) for name, plane in planes.items()}
        token = token_of(folder / "a.kubeconfig")
        calls: Calls = []
        port = await stack.enter_async_context(silent_listener(calls))
        session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(ssl=tls_context(), limit=0),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        )
        await stack.enter_async_context(session)
        authority = CertificateAuthority(process.folder / "planes" / ids["a"] / "pki")
        certificate = authority.client_certificate("admin", ["system:masters"])
        tenant = HostileTenant(*(process, ids, token, certificate, management, *clients, session, port, calls, folder))
        tenant.signed = await signed_certificate(tenant)
        for id in ids.values():
            await tenant.connect(f"{id}.{DOMAIN}")  # the first handshake creates the serving certificate
        try:
            yield tenant
        finally:
            for each in tenant.clients:
                each.writer.close()


async def create_canary(client: Client) -> None:
    """Create objects that show the canary, and a kind of its own."""
    canary = object_named("canary", "default")
    await client.create(SECRETS, canary | {"type": "Opaque", "stringData": {"key": CANARY}})
    await client.create(CONFIGMAPS, canary | {"data": {"key": CANARY}})
    await client.create(NAMESPACES, object_named(CANARY))
    regarding = {"kind": "ConfigMap", "name": "canary", "namespace": "default"}
    await client.create(EVENTS, canary | {"involvedObject": regarding, "reason": "Canary", "message": CANARY})
    await client.create(CRDS, definition("canaries", f"{CANARY}.example.com"))


def definition(plural: str, group: str, **spec: Any) -> Object:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"plural": plural, "kind": plural.title()}
    body = {"group": group, "scope": "Namespaced", "names": names, "versions": [version], **spec}
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": body}


@asynccontextmanager
async def silent_listener(calls: Calls) -> AsyncIterator[int]:
    """Listen on the loopback addresses of this machine, and record each connection."""

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(handle, "0.0.0.0", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def signed_certificate(tenant: HostileTenant, name: str = "admin") -> Files:
    """Let A sign a client certificate, which its cluster-admin may approve."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    encoded = base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()
    spec = {"request": encoded, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}
    await tenant.created_at_home(SIGNING_REQUESTS, {"metadata": {"name": name}, "spec": spec})
    condition = {"type": "Approved", "status": "True", "reason": "Own", "message": ""}
    await tenant.at_home(
        *("PATCH", f"{SIGNING_REQUESTS}/{name}/approval", {"status": {"conditions": [condition]}}),
        headers={"Content-Type": MERGE_PATCH},
    )
    async with asyncio.timeout(TIMEOUT):
        certificate = ""
        while not certificate:
            _, text = await tenant.at_home("GET", f"{SIGNING_REQUESTS}/{name}")
            certificate = json.loads(text)["status"].get("certificate", "")
    files = tenant.folder / f"{name}.crt", tenant.folder / f"{name}.key"
    files[0].write_bytes(base64.b64decode(certificate))
    files[1].write_bytes(
        key.private_bytes(
            *(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
    )
    return files


@contextmanager
def unchanged_files(tenant: HostileTenant) -> Iterator[None]:
    """Check that files of other planes and of the process appear or disappear in no attempt."""
    before = files_of_others(tenant)
    yield
    changed = files_of_others(tenant) ^ before
    assert not changed, changed


def files_of_others(tenant: HostileTenant) -> set[str]:
    """Return the files outside the folder of plane A, without those that a database has only while it is open."""
    own = tenant.process.folder / "planes" / tenant.ids["a"]
    found = (each for each in tenant.process.folder.rglob("*") if not each.is_relative_to(own))
    return {str(each) for each in found if not each.name.endswith(("-wal", "-shm", "-journal"))}


async def state_of_neighbour(tenant: HostileTenant) -> dict[str, Any]:
    """Return what no attempt may change."""
    objects = {
        resource.plural: {(name_of(each), each["metadata"]["uid"]) for each in await tenant.neighbour.list(resource)}
        for resource in (SECRETS, CONFIGMAPS, NAMESPACES, CRDS)
    }
    records = [
        (name_of(each), each["spec"], each["status"]["phase"], each["status"]["epoch"])
        for each in await tenant.management.list(PLANES)
    ]
    return {**objects, "planes": records, "pid": tenant.process.pid}
