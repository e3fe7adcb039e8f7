"""The Tapestry side of a pod list: an Informer with a transport that answers from memory."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fresh import held_bytes
from benchmarks.pods import PAGE
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response, Stream
from tapestry.controller.app import configure_process, freeze_heap, run_app
from tapestry.controller.config import ManagerConfig
from tapestry.controller.informer import Informer
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import PODS

CHUNK = 128 << 10
"""Bytes that a socket delivers at a time if the sender is fast."""


@dataclass(frozen=True)
class Prepared:
    """A transport with one list, as pages or as the start of a watch. Later watches stay silent."""

    body: bytes
    pages: list[bytes]
    """Empty if the list is streamed."""

    async def send(self, request: Request) -> Response:
        return Response(200, {}, self.pages[int(request.query.get("continue", 0)) // PAGE])

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        if "sendInitialEvents" not in request.query:
            yield PreparedStream(200, b"")
        elif self.pages:
            yield PreparedStream(400, b"{}")
        else:
            yield PreparedStream(200, self.body)

    def abort(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class PreparedStream:
    status: int
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        for begin in range(0, len(self.body), CHUNK):
            yield self.body[begin : begin + CHUNK]
        if self.status == 200:
            await asyncio.Event().wait()


INDEXERS: dict[str, Indexer] = {
    "node": lambda pod: (value_at(pod, "spec", "nodeName", default=""),),
    "namespace": lambda pod: (pod["metadata"]["namespace"],),
}


def projection(pod: Object) -> Object:
    """Return the fields of a pod that the leasing of nodes needs: identity, node and requests."""
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "metadata": {field: metadata[field] for field in ("name", "namespace", "uid", "resourceVersion")},
        "spec": {
            "nodeName": spec.get("nodeName"),
            "containers": [{"resources": {"requests": each["resources"]["requests"]}} for each in spec["containers"]],
        },
        "status": {"phase": pod["status"]["phase"]},
    }


TRANSFORMS: dict[str, Transform] = {"slim": slim, "projection": projection}


def filled(file: str, transform: str) -> dict[str, float]:
    """Return the CPU seconds until the store holds the list in `file`, and its memory in bytes.

    A file named `pages` has one response per line. A file named `events` is the start of a watch.
    """
    configure_process(ManagerConfig())
    body = Path(file).read_bytes()
    transport = Prepared(body, body.splitlines() if Path(file).name == "pages" else [])
    measured: dict[str, float] = {}

    async def fill() -> None:
        informer = Informer(Client(transport), PODS, transform=TRANSFORMS[transform], indexers=INDEXERS)
        before, started = held_bytes(), time.process_time()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(informer.run())
            await informer.synced.wait()
            measured["cpu"] = time.process_time() - started
            freeze_heap()
            measured["held"] = held_bytes() - before
            measured["objects"] = len(informer.store)
            running.cancel()

    run_app(fill)
    return measured
