"""A fake admission webhook for tests: a real HTTPS server that responds as the test demands."""

import base64
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.objects import Object

Say = Callable[[Object], Any]
"""Return the `response` for the `request` of a review, or an HTTP response; may be async."""


@dataclass
class Hook:
    """A running webhook and the requests that it received."""

    port: int
    bundle: str
    say: Say
    requests: list[Object] = field(default_factory=list)
    connections: set[int] = field(default_factory=set)
    """Client ports of the received connections."""

    @property
    def client(self) -> Object:
        return {"url": f"https://127.0.0.1:{self.port}/hook", "caBundle": self.bundle}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        review = msgspec.json.decode(await request.read())
        self.requests.append(review["request"])
        assert request.transport is not None
        self.connections.add(request.transport.get_extra_info("peername")[1])
        response = self.say(review["request"])
        if isawaitable(response):
            response = await response
        if isinstance(response, web.StreamResponse):
            return response
        review_response = {"uid": review["request"]["uid"], **response}
        body = {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": review_response}
        return web.json_response(body)


@asynccontextmanager
async def listening(folder: Path, say: Say, *names: str) -> AsyncIterator[Hook]:
    """Run a webhook on a local port, with a certificate for these names."""
    authority = CertificateAuthority(folder)
    certificate, key = authority.server_certificate(names or ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    hook = Hook(0, base64.b64encode(authority.certificate_pem().encode()).decode(), say)
    runner = web.ServerRunner(web.Server(hook.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    hook.port = runner.addresses[0][1]
    try:
        yield hook
    finally:
        await runner.cleanup()


def allowing(_: Object) -> Object:
    return {"allowed": True}


def denying(message: str = "", code: int = 0) -> Say:
    status = {key: value for key, value in (("message", message), ("code", code)) if value}
    return lambda _: {"allowed": False, "status": status}


def patching(*operations: Object) -> Say:
    patch = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": patch}
