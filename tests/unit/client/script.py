"""A server that says what is written down for it, and verbs to ask it with."""

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
UNSEEN = object_named("web", "default")  # no server has seen it, so it has neither UID nor resourceVersion


@dataclass(frozen=True)
class Whole:
    """An answer as a stream of small pieces, endless where it says so."""

    answer: Response

    @property
    def status(self) -> int:
        return self.answer.status

    async def chunks(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self.answer.body), 8):
            yield self.answer.body[begin : begin + 8]
        while "endless" in self.answer.headers:
            yield b"x" * 4096


class Script:
    """A transport that answers from a list and keeps what it was asked.  The last answer is given for ever."""

    def __init__(self, *answers: Response | TransportError) -> None:
        self.answers = deque(answers)
        self.asked: list[Request] = []
        self.is_closed = False

    async def send(self, request: Request) -> Response:
        self.asked.append(request)
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        yield Whole(await self.send(request))

    def abort(self) -> None:
        raise AssertionError("nobody aborts here")

    async def close(self) -> None:
        self.is_closed = True


def answer(body: Any = None, status: int = 200, **headers: str) -> Response:
    return Response(status, {name.replace("_", "-"): text for name, text in headers.items()}, msgspec.json.encode(body))


def refusal(error: ApiError, **headers: str) -> Response:
    return answer(error.status(), error.code, **headers)


def lost(*, maybe_sent: bool) -> TransportError:
    return TransportError("the wire was cut", maybe_sent=maybe_sent)


GOOD = answer({"kind": "Any", "status": {"allowed": True}})
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
    """A fence that lets us pass or not, in turn."""
    left = iter(terms)

    def fence() -> None:
        if not next(left):
            raise NotLeading

    return fence
