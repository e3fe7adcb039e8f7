"""A transport with scripted responses, and verbs to call on it."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream
from tapestry.kube.errors import ApiError, TooManyRequests, TransportError
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import PODS, Resource

BINDINGS = Resource("cloud.tencent.com", "v1beta1", "ClusterBinding", "clusterbindings", namespaced=False)
POD = "/api/v1/namespaces/default/pods/web"
A_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7"},
    "spec": {"nodeName": "n1"},
}
UNSEEN = object_named("web", "default")  # never stored, so without UID and resourceVersion


@dataclass(frozen=True)
class BufferedStream:
    """A response as a stream of small chunks, optionally endless."""

    response: Response

    @property
    def status(self) -> int:
        return self.response.status

    async def chunks(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self.response.body), 8):
            yield self.response.body[begin : begin + 8]
        while "endless" in self.response.headers:
            yield b"x" * 4096


class ScriptedTransport:
    """A transport that responds from a list and records requests.  The last response is repeated."""

    def __init__(self, *responses: Response | TransportError) -> None:
        self.responses = deque(responses)
        self.requests: list[Request] = []
        self.is_closed = False

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        response = self.responses.popleft() if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, TransportError):
            raise response
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        yield BufferedStream(await self.send(request))

    def abort(self) -> None:
        raise AssertionError("abort is not expected")

    async def close(self) -> None:
        self.is_closed = True


def response_of(body: Any = None, status: int = 200, **headers: str) -> Response:
    return Response(status, {name.replace("_", "-"): text for name, text in headers.items()}, msgspec.json.encode(body))


def error_response(error: ApiError, **headers: str) -> Response:
    return response_of(error.status(), error.code, **headers)


def transport_error(*, maybe_sent: bool) -> TransportError:
    return TransportError("the wire was cut", maybe_sent=maybe_sent)


GOOD = response_of({"kind": "Any", "status": {"allowed": True}})
BUSY = TooManyRequests(429, "TooManyRequests", "come back later")

Verb = Callable[[Client], Awaitable[Any]]
WRITES: dict[str, Verb] = {
    "create": lambda client: client.create(PODS, UNSEEN),
    "replace": lambda client: client.replace(PODS, A_POD),
    "patch": lambda client: client.patch(PODS, A_POD, {}),
    "apply": lambda client: client.apply(PODS, A_POD),
    "delete": lambda client: client.delete(PODS, A_POD),
    "evict": lambda client: client.evict(A_POD),
}


class NotLeading(Exception):
    pass


def fence_of(*terms: bool) -> Callable[[], None]:
    """Return a fence that allows or rejects calls, in the given order."""
    remaining = iter(terms)

    def fence() -> None:
        if not next(remaining):
            raise NotLeading

    return fence
