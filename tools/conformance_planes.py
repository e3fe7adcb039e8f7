"""A plane for conformance tests, among busy planes of the same process.

The path of its URL selects the plane, because e2e.test ignores `tls-server-name`. Each busy plane gets two writes a
second from one client, and another one follows them with an informer.
"""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from conformance_clusters import TAPESTRY, node_alive, private, running, wait_for_log
from tapestry.apis.planes import PLANES
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.controller.informer import Informer
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS
from tapestry.local.kubernetes import free_ports

BUSY_PLANES = 50
WRITE_SECONDS = 0.5
OPEN_SECONDS = 60.0
OBJECTS = 100
"""Objects of a busy plane, after its first writes."""


@contextlib.contextmanager
def busy_process(folder: Path, assets: Path) -> Iterator[Path]:
    """Run `tapestry planes run` with a plane for tests and the busy ones."""
    data, log = folder / "planes", folder / "planes.log"
    environment = {**os.environ, "TAPESTRY_LOG_FORMAT": "json"}
    address = f"127.0.0.1:{free_ports(1)[0]}"  # the planes publish it, so it must be known before they open
    with running([TAPESTRY, "planes", "run", "--data", data, "--bind-address", address], log, environment) as process:
        wait_for_log(process, log, "planes process started")
        tested, *busy = asyncio.run(created_planes(data / "kubeconfig", folder))
        write_kubectl(folder / "kubectl", assets)
        with load_on(busy), node_alive([assets / "kubectl", "--kubeconfig", tested]):
            yield tested


def write_kubectl(script: Path, assets: Path) -> None:
    """Write a kubectl whose proxy keeps the path of the server's URL, which kubectl does only on request."""
    option = 'case " $* " in *" proxy "*) set -- "$@" --append-server-path ;; esac'
    script.write_text(f'#!/bin/sh\n{option}\nexec {assets / "kubectl"} "$@"\n')
    script.chmod(0o700)


async def created_planes(management: Path, folder: Path) -> list[Path]:
    """Create the planes, and return the kubeconfigs of their administrators."""
    async with client_of(management) as client:
        return [await created_plane(client, f"plane-{number}", folder) for number in range(BUSY_PLANES + 1)]


async def created_plane(management: Client, name: str, folder: Path) -> Path:
    await management.create(PLANES, object_named(name) | {"spec": {}})
    await wait_for(management, PLANES, name, until=is_open, timeout=OPEN_SECONDS)
    body = msgspec.json.encode({"seconds": 24 * 3600, "byPath": True})
    response = await management.transport.send(Request("POST", f"/apiext/v1/planes/{name}/kubeconfig", {}, body))
    if response.status != 200:
        raise SystemExit(f"no kubeconfig of {name}: {response.body.decode()}")
    return private(folder / f"{name}.kubeconfig", msgspec.json.decode(response.body)["kubeconfig"])


def is_open(plane: Object | None) -> bool:
    return value_at(plane, "status", "phase", default="") == "Open"


def client_of(kubeconfig: Path) -> Client:
    return Client(HttpTransport(load_access([kubeconfig], environ=os.environ)))


@contextlib.contextmanager
def load_on(kubeconfigs: list[Path]) -> Iterator[None]:
    """Keep planes busy from a thread of this process."""
    loads = [Load() for _ in kubeconfigs]
    stopped = threading.Event()

    async def run_all() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run(file)) for each, file in zip(loads, kubeconfigs, strict=True)]
            await asyncio.to_thread(stopped.wait)
            for task in tasks:
                task.cancel()

    thread = threading.Thread(target=asyncio.run, args=[run_all()])
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        idlest = min(loads, key=lambda each: each.writes)
        print(
            f"{len(loads)} busy planes: {sum(each.writes for each in loads)} writes, at least {idlest.writes} in each, "
            f"and {sum(each.events for each in loads)} events"
        )


class Load:
    """Clients of one busy plane."""

    def __init__(self) -> None:
        self.writes = 0
        self.events = 0

    async def run(self, kubeconfig: Path) -> None:
        async with client_of(kubeconfig) as writer, client_of(kubeconfig) as reader, asyncio.TaskGroup() as group:
            informer: Informer[Object] = Informer(reader, CONFIGMAPS)
            informer.on_change(self._count)
            group.create_task(informer.run())
            for number in itertools.count():
                await writer.create(CONFIGMAPS, object_named(f"load-{number}", "default"))
                await asyncio.sleep(WRITE_SECONDS)
                self.writes += 1
                if number >= OBJECTS:
                    oldest = await writer.get(CONFIGMAPS, f"load-{number - OBJECTS}", "default")
                    await writer.delete(CONFIGMAPS, oldest)
                    await asyncio.sleep(WRITE_SECONDS)
                    self.writes += 1

    def _count(self, _: Object | None, __: Object | None) -> None:
        self.events += 1
