"""Requests to planes that another process holds, passed on as they arrive."""

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from tapestry.apiserver.core.forwarding import HOP_BY_HOP_HEADERS, UpgradeServer, forward_upgrade
from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.client.access import Access
from tapestry.client.credentials import Credentials, StaticAuthorization, bearer_header
from tapestry.client.tls import Pem, ServerVerification, TlsContextSource
from tapestry.kube.errors import Unavailable
from tapestry.streams.tunnel import Transferred, tunnel

CONNECT_SECONDS = 10.0
MAX_BUFFERED_BYTES = 1 << 18
"""Size up to which a response is read completely before it is sent."""
NOT_FORWARDED = HOP_BY_HOP_HEADERS | {"host", "content-length", "expect"}
"""Headers of requests that are about one connection."""


@dataclass(frozen=True)
class ForwardTarget:
    """A plane at the process that holds it."""

    url: str
    """URL of the plane, maybe with a path."""
    ca_pem: str
    server_name: str = ""
    """Name in the TLS handshake; empty if it is the host of the URL."""
    token: str = ""
    """Token instead of the credentials of the request; empty if these are for the plane."""
    holder: str = ""
    """Name of the process."""

    def access(self) -> Access:
        """Return the access of a client with the token."""
        verification = ServerVerification(Pem("the CA of the plane", self.ca_pem.encode()))
        credentials = Credentials(StaticAuthorization(bearer_header(self.token)), TlsContextSource(verification))
        return Access(self.url, credentials, verification=verification, tls_server_name=self.server_name or None)


class Forwarder:
    """Connections to other processes. Close it in the event loop in which it was used."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                auto_decompress=False, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    async def forward(self, exchange: Exchange, target: ForwardTarget) -> None:
        """Pass on a request and its response. Raises Unavailable if the other process does not answer."""
        headers = [(name, value) for name, value in exchange.header_pairs if name not in NOT_FORWARDED]
        if target.token:
            headers = [(name, value) for name, value in headers if name != "authorization"]
            headers.append(("authorization", f"Bearer {target.token}"))
        if exchange.is_upgrade:
            await self._forward_upgrade(exchange, target, headers)
            return
        length = exchange.headers.get("content-length")
        if length is not None:
            headers.append(("content-length", length))
        try:
            async with self.session.request(
                exchange.method,
                URL(target.url + exchange.target.decode("utf-8", "surrogateescape"), encoded=True),
                headers=headers,
                data=None if exchange.has_no_body else body_of(exchange),
                ssl=tls_context(target.ca_pem),
                server_hostname=target.server_name or None,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as response:
                await send_response(exchange, response)
        except (aiohttp.ClientError, OSError) as error:
            if not exchange.is_response_started:
                raise not_reached(target.holder, error) from error
            exchange.abort()

    async def _forward_upgrade(self, exchange: Exchange, target: ForwardTarget, headers: list[tuple[str, str]]) -> None:
        url = urlsplit(target.url)
        context = tls_context(target.ca_pem)
        server = UpgradeServer(url.hostname or "", url.port or 443, context, no_check, target.server_name)
        lines = [("Host", server.authority), *headers, ("Upgrade", exchange.headers["upgrade"])]
        path = url.path + exchange.target.decode("utf-8", "surrogateescape")
        response = await forward_upgrade(server, exchange.method, path, lines)
        forwarded = {name: value for name, value in response.headers.items() if name not in HOP_BY_HOP_HEADERS}
        if response.connection is None:
            forwarded.pop("content-length", None)
            exchange.send(response.status, forwarded, response.body)
            return
        client = exchange.upgrade({**forwarded, "Upgrade": response.headers.get("upgrade", "")})
        await tunnel(client, response.connection, Transferred())


def no_check(_: str) -> None:
    """Allow every address: a plane cannot choose that of its process."""


def not_reached(holder: str, error: Exception) -> Unavailable:
    why = str(error) or type(error).__name__
    return Unavailable(503, "ServiceUnavailable", f"the process {holder} holds the plane and does not answer: {why}")


async def body_of(exchange: Exchange) -> AsyncIterator[bytes]:
    while data := await exchange.read():
        yield data


async def send_response(exchange: Exchange, response: aiohttp.ClientResponse) -> None:
    headers = {name: value for name, value in response.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) <= MAX_BUFFERED_BYTES and exchange.method != "HEAD":
        body = await response.read()
        headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        exchange.send(response.status, headers, body)
        return
    await exchange.start_stream(response.status, {"Content-Length": length, **headers} if length else headers)
    async for chunk in response.content.iter_any():
        await exchange.send_chunk(chunk)
    exchange.end_stream()


@lru_cache(maxsize=256)
def tls_context(ca_pem: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca_pem)
