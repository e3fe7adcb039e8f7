"""CPU per object of controllers with 1,000 and with 10,000 objects: it must not grow with their number."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fresh import fresh
from benchmarks.table import Row, alone, say
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.ca_publisher import CaBundle
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controlplane.app import control_plane_manager
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import (
    AUTOSCALERS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SERVICE_ACCOUNTS,
    Resource,
)

SMALL, LARGE = 1_000, 10_000
GROWTH = 1.5
"""Largest accepted ratio of the CPU per object with many and with few objects."""
TIMEOUT = 600.0
CONCURRENCY = 32


def new_claim(number: int, size: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, "storageClassName": ""}
    return {"metadata": {"name": f"c{number}", "namespace": "default"}, "spec": spec}


def new_volume(number: int, size: str) -> Object:
    source = {"hostPath": {"path": "/tmp"}}
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}, "storageClassName": "", **source}
    return {"metadata": {"name": f"v{number}"}, "spec": spec}


def new_deployment(number: int) -> Object:
    labels = {"app": f"app-{number}"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": f"d{number}", "namespace": "default"}, "spec": spec}


def new_pod(number: int) -> Object:
    metadata = {"name": f"p{number}", "namespace": "default", "labels": {"app": f"app-{number}"}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def new_autoscaler(number: int) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"d{number}"}
    return {
        "metadata": {"name": f"h{number}", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 5},
    }


@dataclass(frozen=True)
class Scenario:
    """Objects that exist before the controller starts, and the state in which its work is done."""

    controller: str
    create: Callable[[Client, int], Awaitable[None]]
    resource: Resource
    is_done: Callable[[Object], bool]
    has_retries: bool = False
    """Whether delayed work is part of the scenario, not only the next period."""


async def create_all(client: Client, resource: Resource, objects: Iterable[Object]) -> None:
    remaining = iter(objects)

    async def create_some() -> None:
        for obj in remaining:
            await client.create(resource, obj)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(create_some())


async def create_volumes(client: Client, count: int, volume_size: str) -> None:
    await create_all(client, PERSISTENT_VOLUMES, (new_volume(number, volume_size) for number in range(count)))
    await create_all(client, PERSISTENT_VOLUME_CLAIMS, (new_claim(number, "2Gi") for number in range(count)))


async def create_autoscalers(client: Client, count: int) -> None:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    await create_all(client, DEPLOYMENTS, map(new_deployment, range(count)))
    await create_all(client, PODS, map(new_pod, range(count)))
    await create_all(client, AUTOSCALERS, map(new_autoscaler, range(count)))


def has_phase(phase: str) -> Callable[[Object], bool]:
    return lambda obj: bool(value_at(obj, "status", "phase") == phase)


SCENARIOS = {
    "claims and as many volumes that match": Scenario(
        "volumes",
        lambda client, count: create_volumes(client, count, "2Gi"),
        PERSISTENT_VOLUME_CLAIMS,
        has_phase("Bound"),
    ),
    "claims and as many volumes that are too small": Scenario(
        "volumes",
        lambda client, count: create_volumes(client, count, "1Gi"),
        PERSISTENT_VOLUMES,
        has_phase("Available"),
        has_retries=True,
    ),
    "autoscalers with a Deployment and a pod each": Scenario(
        "horizontalpodautoscalers",
        create_autoscalers,
        AUTOSCALERS,
        lambda obj: bool(value_at(obj, "status", "conditions")),
    ),
}


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[tuple[Any, Client]]:
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(folder))
    async with run_apiserver(config) as served:
        yield served.request_handler, Client(InProcessTransport(served.server, APISERVER_USER))


async def cpu_per_object(name: str, count: int) -> float:
    """Return the microseconds of CPU per object, of the controller and the API server together."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder:
        async with running_server(Path(folder)) as (handler, client):
            await scenario.create(client, count)
            manager = control_plane_manager(
                handler, CaBundle(), [scenario.controller], CertificateAuthority(Path(folder))
            )
            objects = manager.informer(scenario.resource).store
            started = time.process_time()
            async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
                group.create_task(manager.run())
                while True:
                    queues = [each.queue for each in manager.controllers]
                    is_idle = not any(len(each) or (each.delayed and scenario.has_retries) for each in queues)
                    if is_idle and len(objects) == count and all(map(scenario.is_done, objects.list())):
                        break
                    await asyncio.sleep(1)
                manager.stop()
            return (time.process_time() - started) / count * 1e6


def measured(name: str, count: str) -> dict[str, Any]:
    return {"microseconds": asyncio.run(cpu_per_object(name, int(count)))}


def rows() -> Iterator[Row]:
    for name in SCENARIOS:
        say(f"controllers: {name}")
        small, large = (
            fresh("benchmarks.controllers:measured", name, count)["microseconds"] for count in (SMALL, LARGE)
        )
        detail = f"{small:.0f} us of CPU each with {SMALL:,}, {large:.0f} us with {LARGE:,}"
        yield Row(f"{LARGE:,} {name}: growth", large / small, "x", at_most=GROWTH, detail=detail)


if __name__ == "__main__":
    alone(rows)
