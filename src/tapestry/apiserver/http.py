"""The server on a socket: aiohttp in front, `Server` behind."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web

from tapestry.apiserver import refusals
from tapestry.apiserver.authentication import Authenticator, Credentials
from tapestry.apiserver.codec import JSON, LONGEST_BODY
from tapestry.apiserver.requests import Call
from tapestry.apiserver.server import Answer, Server, refused
from tapestry.apiserver.watches import Watching
from tapestry.kube.errors import ApiError

KUBECTL = "kubectl"


class Listener:
    """Serves `Server` over HTTP; each request is somebody's, or is refused."""

    def __init__(self, server: Server, authenticate: Authenticator, *, agent_refused: bool = False) -> None:
        self._server = server
        self._authenticate = authenticate
        self._agent_refused = agent_refused

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            call = await self._call(request)
        except ApiError as error:
            return response(refused(error))
        answer = await self._server.answer(call)
        return await stream(request, answer) if isinstance(answer, Watching) else response(answer)

    async def _call(self, request: web.BaseRequest) -> Call:
        user = self._authenticate(credentials_of(request))
        if self._agent_refused and request.headers.get("User-Agent", "").startswith(KUBECTL):
            raise refusals.agent_refused()
        body = b""
        if request.body_exists:
            if (request.content_length or 0) > LONGEST_BODY:
                raise refusals.too_large(LONGEST_BODY)
            body = (
                await request.content.read(LONGEST_BODY + 1) if request.content_length is None else await request.read()
            )
            if len(body) > LONGEST_BODY:
                raise refusals.too_large(LONGEST_BODY)
        headers = {name.lower(): value for name, value in request.headers.items()}
        return Call(request.method, request.path, dict(request.query), headers, body, user)


def credentials_of(request: web.BaseRequest) -> Credentials:
    transport, headers = request.transport, request.headers
    peer = transport.get_extra_info("peername") if transport is not None else None
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    return Credentials(
        bearer=bearer.strip() if scheme.lower() == "bearer" else "",
        certificate=subject_of(tls.getpeercert() or {}) if tls is not None else {},
        peer=peer[0] if peer else "",
        host=headers.get("Host", ""),
        origin=headers.get("Origin", ""),
        agent=headers.get("User-Agent", ""),
    )


def subject_of(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parts in certificate.get("subject", ()):
        for name, value in parts:
            found.setdefault(name, []).append(value)
    return found


def response(answer: Answer) -> web.Response:
    headers = {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private", **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


async def stream(request: web.BaseRequest, watching: Watching) -> web.StreamResponse:
    """Send a watch, its head at once: clients wait for that."""
    found = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    found.enable_chunked_encoding()
    await found.prepare(request)
    with suppress(ConnectionError):
        async for chunk in watching.chunks():
            await found.write(chunk)
        await found.write_eof()
    return found


async def serve(listener: Listener, host: str, port: int, tls: ssl.SSLContext | None = None) -> web.ServerRunner:
    """Listen; the address is in `runner.addresses`.  The caller cleans the runner up."""
    runner = web.ServerRunner(web.Server(listener.handle, access_log=None), shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls, backlog=1024).start()
    return runner
