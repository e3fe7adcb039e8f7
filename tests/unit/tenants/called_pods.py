"""Simulated pods of tenants with real servers behind their ports, reached by port-forward through the host cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object, annotations_of, object_named
from tapestry.kube.resources import PODS, SERVICES
from tapestry.local.kubelet_streams import StreamRejected
from tapestry.local.simulated_kubelet import SimulatedRuntime

from ..apiserver.hooks import Hook, Say, listening
from .running_tenants import HostWorld, host_world, pod_named, wait_for_pod

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Ports:
    """Local ports behind the ports of pods, which their kubelets connect to."""

    local: dict[tuple[str, int], int] = field(default_factory=dict)
    """By the key of a pod in its plane, and the port."""
    dialed: list[tuple[str, int]] = field(default_factory=list)

    async def dial(self, _: SimulatedRuntime, twin: Object, port: int) -> Connection:
        annotations = annotations_of(twin)
        key = f"{annotations[keys.VIRTUAL_POD_NAMESPACE]}/{annotations[keys.VIRTUAL_POD_NAME]}"
        self.dialed.append((key, port))
        if (key, port) not in self.local:
            raise StreamRejected(f"nothing listens on port {port}")
        return await asyncio.open_connection("127.0.0.1", self.local[key, port])


@dataclass(frozen=True)
class CalledPods:
    """A world with a tenant whose pods can be called."""

    world: HostWorld
    tenant: str
    client: Client
    ports: Ports
    folder: Path

    async def add_pod(self, name: str = "guard", namespace: str = "default", **spec: Any) -> Object:
        """Create a pod with a label `app` of the same name, and wait until it is ready."""
        pod = pod_named(name, namespace, **spec)
        pod["metadata"]["labels"] = {"app": name}
        pod["spec"]["containers"][0]["ports"] = [{"name": "hook", "containerPort": 9443}]
        await self.client.create(PODS, pod)
        return await wait_for_pod(self.client, name, is_ready, namespace)

    async def add_service(self, name: str = "guard", namespace: str = "default", **spec: Any) -> None:
        """Create a Service for the pods of `add_pod`."""
        given = {"selector": {"app": name}, "ports": [{"name": "https", "port": 443, "targetPort": "hook"}], **spec}
        await self.client.create(SERVICES, {**object_named(name, namespace), "spec": given})

    @asynccontextmanager
    async def serving(self, say: Say, key: str = "default/guard", port: int = 9443) -> AsyncIterator[Hook]:
        """Run a webhook in a pod, whose certificate is for its Service."""
        namespace, name = key.split("/")
        async with listening(self.folder / "pki" / name, say, f"{name}.{namespace}.svc") as hook:
            self.ports.local[key, port] = hook.port
            try:
                yield hook
            finally:
                del self.ports.local[key, port]


def is_ready(pod: Object | None) -> bool:
    return pod is not None and is_condition_true(pod, "Ready")


@asynccontextmanager
async def called_pods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CalledPods]:
    """Run a world with one tenant."""
    ports = Ports()

    async def dial(runtime: SimulatedRuntime, twin: Object, port: int) -> Connection:
        return await ports.dial(runtime, twin, port)

    monkeypatch.setattr(SimulatedRuntime, "dial", dial)
    async with host_world(folder, nodes=1) as world:
        tenant = await world.add_tenant("blue")
        yield CalledPods(world, tenant, world.tenant_client(tenant), ports, folder)
