"""A server process with the part of the Kubernetes API that the benchmarks need.

It serves one custom resource, Widgets, for lists and watches. A watch sends nothing until a POST to /rounds. Then it
sends one MODIFIED event for each Widget, so that two changes of one object are never merged. All responses are encoded
before the first request.

    with running(objects=1_000, rounds=10) as url:
        ...
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from tapestry.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, Resource

WIDGETS = Resource("bench.example.com", "v1", "Widget", "widgets")
SMALL = CONFIGMAPS.path("default", "small")
"""Path of an object of 140 bytes."""


@contextmanager
def running(objects: int, rounds: int) -> Iterator[str]:
    """Yield the URL of a server that stops at the end of the context, or with this process."""
    command = [sys.executable, "-m", __name__, str(objects), str(rounds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()  # closes its input, on which it exits


def widget(number: int, round: int) -> dict[str, Any]:
    """Return a custom resource of 1.5 kB in its version of a round."""
    return {
        "apiVersion": WIDGETS.api_version,
        "kind": WIDGETS.kind,
        "metadata": {
            "name": f"widget-{number:05d}",
            "namespace": f"team-{number % 20:02d}",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1_000_000 * (round + 1) + number),
            "generation": round + 1,
            "creationTimestamp": "2026-01-05T08:00:00Z",
            "labels": {"app.kubernetes.io/name": "shop", "app.kubernetes.io/part-of": f"tenant-{number % 50}"},
            "annotations": {"example.com/contact": "shop@example.com"},
            "managedFields": [
                managed("kubectl-apply", ("image", "replicas", "port", "limits", "schedule")),
                managed("widget-operator", ("phase", "observedGeneration", "conditions", "endpoint")),
            ],
        },
        "spec": {
            "image": "images.example.com/shop/front:1.4.2",
            "replicas": round + 1,
            "port": 8080,
            "limits": {"cpu": "500m", "memory": "512Mi"},
            "schedule": "*/5 * * * *",
            "hosts": [f"widget-{number:05d}.shop.example.com"],
        },
        "status": {
            "phase": "Ready",
            "observedGeneration": round,
            "endpoint": f"http://10.1.{number // 250}.{number % 250}:8080",
            "conditions": [
                {
                    "type": kind,
                    "status": "True",
                    "reason": "AsExpected",
                    "message": "nothing to report",
                    "lastTransitionTime": "2026-01-05T08:00:04Z",
                }
                for kind in ("Ready", "Synced")
            ],
        },
    }


def managed(manager: str, fields: tuple[str, ...]) -> dict[str, Any]:
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": WIDGETS.api_version,
        "time": "2026-01-05T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {f"f:{field}": {} for field in fields}},
    }


class Api:
    """Request handlers. Rounds are sent to one watcher at a time."""

    def __init__(self, objects: int, rounds: int) -> None:
        widget_list = {
            "apiVersion": WIDGETS.api_version,
            "kind": f"{WIDGETS.kind}List",
            "metadata": {"resourceVersion": "999999", "continue": ""},
            "items": [widget(number, 0) for number in range(objects)],
        }
        self._list = msgspec.json.encode(widget_list)
        self._rounds = [
            b"".join(
                msgspec.json.encode({"type": "MODIFIED", "object": widget(number, round)}) + b"\n"
                for number in range(objects)
            )
            for round in range(1, rounds + 1)
        ]
        self._due: asyncio.Queue[bytes] = asyncio.Queue()

    def app(self) -> web.Application:
        app = web.Application()
        small = msgspec.json.encode({"metadata": {"name": "small", "namespace": "default"}, "data": {"k": "v" * 74}})
        documents = {"/api": {"versions": ["v1"]}, "/apis": {"groups": [group(WIDGETS), group(CRDS)]}}
        for resource in (WIDGETS, CRDS, NAMESPACES):
            documents[resource.path().rpartition("/")[0]] = {"resources": [discovery(resource)]}
        for path, document in documents.items():
            app.router.add_get(path, responding_with(msgspec.json.encode(document)))
        app.router.add_get(SMALL, responding_with(small))
        app.router.add_get(WIDGETS.path(), self.widgets)
        app.router.add_post("/rounds", self.next_round)
        return app

    async def widgets(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query:
            return web.Response(status=400, body=b"{}", content_type="application/json")
        if "watch" not in request.query:
            return web.Response(body=self._list, content_type="application/json")
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while True:
            await stream.write(await self._due.get())

    async def next_round(self, _: web.Request) -> web.Response:
        self._due.put_nowait(self._rounds.pop(0))
        return web.Response()


def responding_with(body: bytes) -> Any:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    return respond


def group(resource: Resource) -> dict[str, Any]:
    version = {"groupVersion": resource.api_version, "version": resource.version}
    return {"name": resource.group, "versions": [version], "preferredVersion": version}


def discovery(resource: Resource) -> dict[str, Any]:
    return {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "verbs": ["get", "list", "watch", "patch"],
    }


async def serve(objects: int, rounds: int) -> None:
    runner = web.AppRunner(Api(objects, rounds).app(), access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
