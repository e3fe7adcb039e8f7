"""Measurements of the lifecycle service in a process of planes. Each function runs in a new process.

The rate limits are raised, and the client is in a process of its own.
"""

import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import yaml

from benchmarks.sides.client_process import client_process
from benchmarks.sides.planes import run
from benchmarks.sides.vcluster_client import NAMESPACE, PROJECT, many
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.core.requests import APISERVER_USER, CallOrigin
from tapestry.cli.planes import mounted_routes
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, object_named
from tapestry.kube.resources import NAMESPACES
from tapestry.planes.app import PlaneProcess, client_of, run_planes
from tapestry.planes.config import PlanesConfig
from tapestry.tenants.app import run_tenants
from tapestry.vclusters import serving
from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.access.rate_limits import Allowance, Rate, RateLimiter
from tapestry.vclusters.app import prepare_management_api, provided, run_vclusters
from tapestry.vclusters.policy import service_admission
from tapestry.vclusters.serving import ServiceConfig, serve_gateway

IDENTITIES = 8
CLIENT = "benchmarks.sides.vcluster_client"
UNLIMITED = Rate(1e9, 10**9)
WARM_UP = 3
"""Virtual clusters that are created before anything is measured."""
LISTS = 5


class RaisedLimits(RateLimiter):
    """The limits of requests, so high that no request exceeds them."""

    def take(self, rate: Rate, *key: str) -> Allowance:
        del rate
        return super().take(UNLIMITED, *key)


@dataclass(frozen=True)
class Service:
    process: PlaneProcess
    client: Callable[..., Awaitable[Any]]
    """Function that sends a command to the client."""


@asynccontextmanager
async def running_service(*, orchestrated: bool) -> AsyncIterator[Service]:
    """Run a process of planes with the service. Without orchestration, virtual clusters stay as they are written."""
    started: list[Service] = []

    @asynccontextmanager
    async def extension(process: PlaneProcess) -> AsyncIterator[None]:
        management = client_of(process.management)
        async with AsyncExitStack() as stack:
            if orchestrated:
                await stack.enter_async_context(run_tenants(process))
                await stack.enter_async_context(run_vclusters(process))
            else:
                await prepare_management_api(management)
            stack.enter_context(mock.patch.object(serving, "RateLimiter", RaisedLimits))
            addresses = ServiceConfig(rest_address="127.0.0.1:0", grpc_address="127.0.0.1:0")
            listeners = await stack.enter_async_context(serve_gateway(process, addresses, lambda _: None))
            await management.create(NAMESPACES, object_named(NAMESPACE))
            ca, rest = str(process.config.folder / "pki" / "ca.crt"), f"https://{listeners.rest}"
            keys = await create_identities(management)
            client = await stack.enter_async_context(client_process(CLIENT, ca, rest, str(listeners.grpc), *keys))
            started.append(Service(process, client))
            yield

    with TemporaryDirectory() as folder:
        config = PlanesConfig(data=folder, name="here", address="127.0.0.1:0")
        admission = service_admission(provided(config, is_compatible=False))
        async with run_planes(config, mounted_routes, extension=extension, admission=admission):
            yield started[0]


async def create_identities(management: Client) -> list[str]:
    """Create a project with its members, and return an access key of each of them."""
    names = [f"member-{number}" for number in range(IDENTITIES)]
    members = [{"kind": "User", "name": each, "role": "admin"} for each in names]
    await management.create(PROJECTS, {**object_named(PROJECT), "spec": {"members": members}})
    keys = [new_key() for _ in names]
    for name, key in zip(names, keys, strict=True):
        spec = {"principal": name, "secretSha256": key.hash}
        await management.create(ACCESS_KEYS, {**object_named(key.id), "spec": spec})
    return [each.text for each in keys]


def created(count: str, at_once: str) -> dict[str, Any]:
    """Create virtual clusters one after the other, and then many more."""

    async def measure() -> dict[str, Any]:
        async with running_service(orchestrated=True) as service:
            await service.client("create", first=0, count=WARM_UP, at_once=1)
            one, cpu = await service.client("create", first=WARM_UP, count=20, at_once=1), time.process_time()
            many = await service.client("create", first=100, count=int(count), at_once=int(at_once))
            return {
                "p50": statistics.median(one["result"]),
                "worst": max(one["result"]),
                "total": many["seconds"],
                "cpu": time.process_time() - cpu,
                "load": os.getloadavg()[0],
            }

    return run(measure)


def reads(names: str, gets: str, rounds: str) -> dict[str, Any]:
    """List virtual clusters in pages, and get them from our API server, by REST and by gRPC in turns."""
    number, each = int(names), int(gets)

    async def measure() -> dict[str, Any]:
        async with running_service(orchestrated=False) as service:
            await write_vclusters(service.process, number)
            lists, list_cpu = [], []
            for _ in range(LISTS):
                before = time.process_time()
                lists.append((await service.client("list"))["result"])
                list_cpu.append(time.process_time() - before)
            assert all(found["names"] == number for found in lists), lists
            turns: dict[str, list[tuple[float, float]]] = {"api": [], "rest": [], "grpc": []}
            commands = get_commands(service.process.config, each, number)
            for _ in range(int(rounds)):
                for name, command in commands.items():
                    cpu = time.process_time()
                    seconds = (await service.client(**command))["seconds"]
                    turns[name].append((each / seconds, (time.process_time() - cpu) / each))
            best = {
                name: (max(rate for rate, _ in found), min(cpu for _, cpu in found)) for name, found in turns.items()
            }
            return {
                "pages": lists[0]["pages"],
                "lists": [found["list_seconds"] for found in lists],
                "list_cpu": statistics.median(list_cpu),
                "turns": best,
                "load": os.getloadavg()[0],
            }

    return run(measure)


def get_commands(config: PlanesConfig, count: int, names: int) -> dict[str, dict[str, Any]]:
    """Return the commands that get virtual clusters in each way."""
    kubeconfig = yaml.safe_load(config.kubeconfig_file.read_text())
    cluster = kubeconfig["clusters"][0]["cluster"]
    server = {
        "cluster": cluster,
        "token": config.admin_token_file.read_text(),
        "path": VCLUSTERS.path(NAMESPACE),
    }
    reads = {"count": count, "names": names}
    return {
        "api": {"what": "get_objects", **reads, **server},
        "rest": {"what": "get_by_rest", **reads},
        "grpc": {"what": "get_by_grpc", **reads},
    }


async def write_vclusters(process: PlaneProcess, count: int) -> None:
    """Write virtual clusters with the state of running ones, like the orchestrator."""
    management = Client(InProcessTransport(process.management.request_handler, APISERVER_USER, CallOrigin.CONTROLLER))

    async def write(number: int) -> None:
        resources = {"cpuRequest": "100m", "cpuLimit": "1", "memoryRequest": "128Mi", "memoryLimit": "1Gi"}
        spec = {
            "project": PROJECT,
            "kubernetesVersion": "1.34.3",
            "distro": "k8s",
            "replicas": 1,
            "resources": resources,
        }
        labels = {"labels": {"team": "platform", "env": "bench"}}
        new = object_named(f"c{number}", NAMESPACE)
        vcluster = await management.create(VCLUSTERS, {**new, "metadata": new["metadata"] | labels, "spec": spec})
        await management.patch(VCLUSTERS, vcluster, {"status": running_status(vcluster)}, subresource="status")

    await many(count, write)


def running_status(vcluster: Object) -> Object:
    time = vcluster["metadata"]["creationTimestamp"]
    conditions = [
        {"type": each, "status": "True", "reason": "Works", "message": "", "lastTransitionTime": time}
        for each in ("Ready", "Initialized", "FieldsMapped", "HostUnreachable")
    ]
    return {
        "phase": "Running",
        "conditions": conditions,
        "apiServerEndpoint": "https://127.0.0.1:6444",
        "readyReplicas": 1,
        "totalReplicas": 1,
        "readyTime": time,
        "observedGeneration": 1,
    }
