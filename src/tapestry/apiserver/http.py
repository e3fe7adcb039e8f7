"""The server on a socket: aiohttp in front, `Server` behind."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

from tapestry.apiserver import refusals
from tapestry.apiserver.codec import JSON, LONGEST_BODY
from tapestry.apiserver.requests import Call, User
from tapestry.apiserver.server import Answer, Server, refused
from tapestry.apiserver.watches import Watching
from tapestry.kube.errors import ApiError

Authenticate = Callable[[web.BaseRequest], Awaitable[User]]
"""Who sent a request; raises Unauthorized."""


class Listener:
    """Serves `Server` over HTTP; each request is somebody's, or is refused."""

    def __init__(self, server: Server, authenticate: Authenticate) -> None:
        self._server = server
        self._authenticate = authenticate

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            call = await self._call(request)
        except ApiError as error:
            return response(refused(error))
        answer = await self._server.answer(call)
        return await stream(request, answer) if isinstance(answer, Watching) else response(answer)

    async def _call(self, request: web.BaseRequest) -> Call:
        user = await self._authenticate(request)
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


async def until_cancelled() -> None:
    await asyncio.Event().wait()
