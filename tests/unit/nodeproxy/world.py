"""A virtual node with one pod, its kubelet API, and a scripted physical API server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.delegated_auth import DelegatedAuth
from tapestry.client.http_transport import HttpTransport
from tapestry.controller.testing import InProcessApi
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import TOKEN_REVIEWS
from tapestry.nodeproxy.kubelet import KubeletServer, kubelet_tls, serve_kubelet
from tapestry.nodeproxy.logs import LogRelay, TwinLookup
from tapestry.process.addresses import Address
from tapestry.process.probes import bound_socket, serve_app

NODE, POD, TWIN, MOUNT = "vnode-east-n1", "web", "web-7gfvdrrhrawakrtc", "leased"
LOG = f"/containerLogs/default/{POD}/c"
LOOPBACK = Address("127.0.0.1", 0)
TOKENS = {"operator's": "operator", "guest's": "guest"}
RIGHT = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": NODE}

Writing = Callable[[web.StreamResponse, web.Request], Awaitable[None]]


def a_pod() -> Object:
    spec = {"nodeName": NODE, "initContainers": [{"name": "first"}], "containers": [{"name": "c"}, {"name": "d"}]}
    return {"metadata": {"name": POD, "namespace": "default", "uid": "u1"}, "spec": spec}


async def two_lines(answer: web.StreamResponse, _: web.Request) -> None:
    await answer.write(b"one\ntwo\n")


def abort_connection(request: web.BaseRequest) -> None:
    """Close the connection without a response."""
    assert request.transport is not None
    request.transport.abort()


@dataclass
class Physical:
    """The log endpoint of the physical API server, for one twin."""

    writing: Writing = two_lines
    refusal: ApiError | None = None
    is_mute: bool = False
    queries: list[dict[str, str]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client disconnected."""

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        if self.refusal is not None:
            return web.json_response(self.refusal.status(), status=self.refusal.code)
        if self.is_mute:
            abort_connection(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            await self.writing(answer, request)
        finally:
            self.ended.set()
        return answer


@dataclass
class World:
    """Requests and their results.  Only the operator may call `NODE`."""

    authority: CertificateAuthority
    other_authority: CertificateAuthority
    physical: Physical
    url: str = ""
    pods: dict[str, Object] = field(default_factory=dict)
    twin: Object | None = field(default_factory=lambda: {"metadata": {"name": TWIN, "namespace": MOUNT}})
    reviews: list[Object] = field(default_factory=list)
    """Reviews that the virtual API server received."""
    refusal: ApiError | None = None
    """Error that it raises instead of responding."""

    def review(self, review: Object) -> Object:
        if self.refusal is not None:
            raise self.refusal
        spec = review["spec"]
        if review["kind"] == TOKEN_REVIEWS.kind:
            name = TOKENS.get(spec["token"])
            return {"authenticated": name is not None, **({"user": {"username": name}} if name else {})}
        self.reviews.append(spec)
        return {"allowed": spec["user"] == "operator" and spec["resourceAttributes"]["name"] in (NODE, "")}

    async def ask(self, path: str = LOG, who: str = "operator's", method: str = "GET") -> tuple[int, str]:
        """Return the kubelet's response to a request with a token, or without one."""
        async with self.asking(path, who, method) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def asking(
        self,
        path: str = LOG,
        who: str = "operator's",
        method: str = "GET",
        certificate: tuple[Path, Path] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(*certificate)
        headers = {"Authorization": f"Bearer {who}"} if who else {}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.request(method, self.url + path, headers=headers) as answer,
        ):
            yield answer

    async def ask_with(self, certificate: tuple[Path, Path]) -> int:
        async with self.asking(who="", certificate=certificate) as answer:
            return answer.status


@asynccontextmanager
async def a_world(folder: Path, places: int = 64) -> AsyncIterator[World]:
    world = World(CertificateAuthority(folder / "ours"), CertificateAuthority(folder / "theirs"), Physical())
    world.pods[key_of(a_pod())] = a_pod()
    virtual = InProcessApi([], now=lambda: datetime.now(UTC), review=world.review)
    app = web.Application()
    app.router.add_get(f"/api/v1/namespaces/{MOUNT}/pods/{TWIN}/log", world.physical.log)
    tls = kubelet_tls("127.0.0.1", "", "", "", world.authority.certificate_pem())
    async with serve_app(app, bound_socket(LOOPBACK)) as port:
        physical = Client(HttpTransport(Access(f"http://127.0.0.1:{port}")))
        twins = TwinLookup(world.pods.get, lambda _: world.twin, physical)
        kubelet = KubeletServer(DelegatedAuth(Client(virtual)), LogRelay(twins, asyncio.Semaphore(places)))
        async with serve_kubelet(kubelet, LOOPBACK, tls) as at:
            world.url = f"https://{at}"
            yield world
        await physical.close()
