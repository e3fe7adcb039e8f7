"""Test world: two in-process clusters, a whole syncer between them, and the actions of other components.

Time is virtual. The syncer reaches each cluster over a `Link`, which records requests, can reject some of them and can
be cut. Tests perform the actions of kubelets and schedulers with the methods of `World`.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import physical_name, virtual_cluster_label
from tapestry.apis.policies import POLICIES
from tapestry.apis.priorities import PRIORITY_CLASSES
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.client.responses import ENCODER
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import Metrics, Probes
from tapestry.controller.testing import InProcessApi, running_clock
from tapestry.kube import resources
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import ApiError, Forbidden, TransportError
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import EVENTS, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp as kube_timestamp
from tapestry.syncer.app import build_syncer
from tapestry.syncer.components import Syncer
from tapestry.syncer.config import SyncerConfig, SyncerLeaderElection

SERVED = [each for each in vars(resources).values() if isinstance(each, Resource)] + [
    CLUSTER_BINDINGS,
    POLICIES,
    PRIORITY_CLASSES,
]
A_DAY = 24 * 3600.0
NODE = "vnode-east-n1"
MOUNT = "leased"
INSUFFICIENT_CPU = "0/1 nodes are available: 1 Insufficient cpu."

Rejection = Callable[[Request], ApiError | None]
Until = Callable[[Object], bool]


def accept_all(_: Request) -> ApiError | None:
    return None


async def no_delay(_: Request) -> None:
    """Do not delay requests."""


@cache
def ca_certificate() -> str:
    """Return a CA certificate. A kubeconfig without one would load all certificates of the system, which is slow."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "world")])
    not_before = datetime(2020, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, not_before, not_before + timedelta(days=36500))
    certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return base64.b64encode(certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)).decode()


@dataclass
class Clusters:
    """A virtual and a physical cluster, and the actions of components other than the syncer."""

    virtual: Client
    physical: Client

    # -- objects

    async def populate(self, *bindings: str, policy: Object | None = None, **spec: Any) -> None:
        """Create the physical node `n1` and the bindings; `spec` is part of each binding, `policy` of its policy."""
        for client in (self.virtual, self.physical):
            await client.create(NAMESPACES, object_named("kube-system"))
        await self.add_node("n1")
        await self.physical.create(NAMESPACES, object_named(MOUNT))
        for name in bindings:
            await self.add_binding(name, policy, **spec)

    async def add_binding(self, name: str, policy: Object | None = None, **spec: Any) -> None:
        cluster = {"server": f"https://{name}.example", "certificate-authority-data": ca_certificate()}
        entry = {"name": "c", "cluster": cluster}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [entry],
            "users": [{"name": "c", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
        data = {"kubeconfig": base64.b64encode(json.dumps(kubeconfig).encode()).decode()}
        await self.virtual.create(SECRETS, {**object_named(name, keys.SYSTEM_NAMESPACE), "data": data})
        reference = {"name": name, "namespace": keys.SYSTEM_NAMESPACE}
        binding_spec = {
            "clusterID": name,
            "secretRef": reference,
            "mountNamespace": MOUNT,
            "unbindGraceSeconds": 0,
            **spec,
        }
        await self.virtual.create(
            POLICIES, {**object_named(f"{name}-all"), "spec": {"cluster": name, **(policy or {})}}
        )
        await self.virtual.create(CLUSTER_BINDINGS, {**object_named(name), "spec": binding_spec})

    async def set_binding(self, name: str = "east", **spec: Any) -> None:
        await self.virtual.patch(CLUSTER_BINDINGS, object_named(name), {"spec": spec})

    async def add_node(self, name: str, **amounts: str) -> None:
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts}
        await self.physical.create(
            NODES, {**object_named(name), "status": {"capacity": allocatable, "allocatable": allocatable}}
        )

    async def add_foreign_pod(
        self, name: str, node: str, *, ports: Sequence[Object] = (), requests: Object | None = None
    ) -> Object:
        container = {"name": "c", "image": "busybox:1", "ports": list(ports), "resources": {"requests": requests or {}}}
        return await self.physical.create(
            PODS, {**object_named(name, "default"), "spec": {"nodeName": node, "containers": [container]}}
        )

    async def add_pod(
        self,
        name: str = "work",
        *,
        node: str = NODE,
        namespace: str = "default",
        requests: Object | None = None,
        metadata: Object | None = None,
        **spec: Any,
    ) -> Object:
        """Create a virtual pod that is already bound."""
        containers = [{"name": "c", "image": "busybox:1", "resources": {"requests": requests or {}}}]
        full_metadata = {**(metadata or {}), "name": name, "namespace": namespace}
        full_spec = {"nodeName": node, "serviceAccountName": "default", "containers": containers, **spec}
        return await self.virtual.create(PODS, {"metadata": full_metadata, "spec": full_spec})

    async def change_pod(self, patch: Object, name: str = "work", *, subresource: str | None = None) -> None:
        pod = object_named(name, "default")
        await self.virtual.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource=subresource)

    async def debug_pod(self, **container: Any) -> None:
        """Add an ephemeral container, like `kubectl debug`."""
        containers = [{"name": "debug", "image": "busybox:1", **container}]
        await self.change_pod({"spec": {"ephemeralContainers": containers}}, subresource="ephemeralcontainers")

    async def delete_pod(self, name: str = "work", *, grace: int | None = None) -> None:
        await self.virtual.delete(PODS, object_named(name, "default"), grace_seconds=grace)

    # -- kubelets and schedulers of the physical cluster

    async def place(self, name: str = "work", node: str = "n1") -> None:
        """Bind the twin to a node, like the physical scheduler."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", **await self.twin_ref(name), "target": target}
        await self.physical.create(PODS, binding, subresource="binding")

    async def mark_unschedulable(
        self, name: str = "work", message: str = "0/1 nodes are available: 1 Insufficient cpu."
    ) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await self.set_twin_status(name, conditions=[{**condition, "lastTransitionTime": self.timestamp()}])

    async def start(self, name: str = "work") -> None:
        """Report that the twin runs."""
        if "nodeName" not in (await self.twin(name))["spec"]:
            await self.place(name)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.timestamp()}
        await self.set_twin_status(name, phase="Running", podIP="10.1.0.1", conditions=[ready])

    async def end(self, phase: str = "Succeeded", name: str = "work") -> None:
        """Report that the twin has ended."""
        await self.set_twin_status(name, phase=phase)

    async def stop(self, name: str = "work") -> None:
        """Delete the twin at once."""
        await self.physical.delete(PODS, await self.twin_ref(name), grace_seconds=0)

    async def set_twin(self, patch: Object, name: str = "work") -> None:
        await self.physical.patch(PODS, await self.twin_ref(name), patch, type=PatchType.STRATEGIC)

    async def set_twin_status(self, name: str = "work", **status: Any) -> None:
        ref = await self.twin_ref(name)
        await self.physical.patch(PODS, ref, {"status": status}, type=PatchType.STRATEGIC, subresource="status")

    async def run_pod(self, name: str = "work", **options: Any) -> None:
        """Create a bound virtual pod and wait until its twin runs."""
        await self.add_pod(name, **options)
        await self.wait_for_pod(MAPPED, name)
        await self.start(name)
        await self.wait_for_pod(phase("Running"), name)

    # -- reading

    async def pod(self, name: str = "work", namespace: str = "default") -> Object:
        return await self.virtual.get(PODS, name, namespace)

    async def twin(self, name: str = "work", namespace: str = "default", *, binding: str = "east") -> Object:
        ref = await self.twin_ref(name, namespace, binding=binding)
        return await self.physical.get(PODS, ref["metadata"]["name"], MOUNT)

    async def twin_ref(self, name: str = "work", namespace: str = "default", *, binding: str = "east") -> Object:
        """Return name and namespace of the pod's twin."""
        cluster = virtual_cluster_label(uid_of(await self.virtual.get(NAMESPACES, "kube-system")))
        uid = uid_of(await self.virtual.get(CLUSTER_BINDINGS, binding))
        return object_named(physical_name(cluster, uid, namespace, name), MOUNT)

    async def twins(self) -> list[Object]:
        return await self.physical.list(PODS, MOUNT)

    async def remaining_pods(self) -> list[str]:
        """Return the names of the pods that are not being deleted."""
        return [name_of(pod) for pod in await self.virtual.list(PODS, "default") if not is_deleting(pod)]

    async def condition(self, type: str, name: str = "work") -> tuple[str, str] | None:
        """Return status and reason of a pod's condition."""
        found = find_condition(value_at(await self.pod(name), "status", "conditions"), type)
        return (found["status"], found["reason"]) if found else None

    async def phase_and_reason(self, name: str = "work") -> tuple[str, str | None]:
        status = (await self.pod(name))["status"]
        return status["phase"], status.get("reason")

    async def allocatable(self, resource: str = "cpu", node: str = NODE) -> str:
        amount: str = value_at(await self.virtual.get(NODES, node), "status", "allocatable", resource)
        return amount

    async def events(self, reason: str) -> list[Object]:
        return [event for event in await self.virtual.list(EVENTS) if event["reason"] == reason]

    async def wait_for_pod(self, until: Until, name: str = "work", *, timeout: float = 60) -> Object:
        found = await wait_for(
            self.virtual, PODS, name, "default", until=lambda pod: pod is not None and until(pod), timeout=timeout
        )
        assert found is not None
        return found

    async def wait_until_pod_is_gone(self, name: str = "work", *, timeout: float = 60) -> None:
        await wait_for(self.virtual, PODS, name, "default", until=lambda pod: pod is None, timeout=timeout)

    async def wait_for_twin(self, until: Until = bool, name: str = "work", *, timeout: float = 60) -> Object:
        twin_name = (await self.twin_ref(name))["metadata"]["name"]
        found = await wait_for(
            self.physical, PODS, twin_name, MOUNT, until=lambda pod: pod is not None and until(pod), timeout=timeout
        )
        assert found is not None
        return found

    async def wait_until_twin_is_gone(self, name: str = "work", *, timeout: float = 60) -> None:
        twin_name = (await self.twin_ref(name))["metadata"]["name"]
        await wait_for(self.physical, PODS, twin_name, MOUNT, until=lambda pod: pod is None, timeout=timeout)

    def timestamp(self) -> str:
        return kube_timestamp(running_clock().now())


@dataclass
class Link:
    """Connection of the syncer to one cluster."""

    api: InProcessApi
    rejection: Rejection = accept_all
    before: Callable[[Request], Awaitable[None]] = no_delay
    """Awaited before a request is sent or rejected."""
    is_cut: bool = False
    requests: list[Request] = field(default_factory=list)
    _transports: list["LinkTransport"] = field(default_factory=list)

    def connect(self) -> Transport:
        self._transports.append(LinkTransport(self, self.api.connect()))
        return self._transports[-1]

    def cut(self) -> None:
        """Reject all requests from now on, and abort those in progress."""
        self.is_cut = True
        for transport in self._transports:
            transport.abort()

    def restore(self) -> None:
        self.is_cut = False

    def writes(self, *words: str) -> list[str]:
        """Return the writes that contain all of `words`, as `PATCH /api/v1/...`."""
        found = [str(request) for request in self.requests if request.method != "GET"]
        return [each for each in found if all(word in each for word in words)]

    def check(self, request: Request) -> None:
        if self.is_cut:
            raise TransportError(f"{request}: the network is down", maybe_sent=False)


@dataclass(frozen=True)
class LinkTransport:
    """One transport over a link."""

    link: Link
    connection: Transport

    async def send(self, request: Request) -> Response:
        self.link.check(request)
        self.link.requests.append(request)
        await self.link.before(request)
        error = self.link.rejection(request)
        if error is not None:
            return Response(error.code, {}, ENCODER.encode(error.status()))
        return await self.connection.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        self.link.check(request)
        async with self.connection.stream(request) as stream:
            yield stream

    def abort(self) -> None:
        self.connection.abort()

    async def close(self) -> None:
        await self.connection.close()


@dataclass
class World(Clusters):
    """Bound clusters and their syncers. The test's own clients are never rejected or cut."""

    up: Link
    down: Link
    started: list[Syncer] = field(default_factory=list)
    """The syncers that were started, in order."""

    # -- the syncer

    @asynccontextmanager
    async def syncer(self, binding: str = "east", **settings: Any) -> AsyncIterator[Syncer]:
        """Run the syncer of a binding; enter once the virtual node of `n1` exists."""
        clock = running_clock()
        quiet = {"metrics": Metrics(address=""), "probes": Probes(address="")}
        options = {
            "silence_seconds": A_DAY,
            "leader_election": SyncerLeaderElection(enabled=False),
            **quiet,
            **settings,
        }
        config = SyncerConfig(binding=binding, **options)
        manager = Manager(config, self.up.connect, identity=binding, now=clock.now, monotonic=clock.monotonic)
        parts = await build_syncer(config, manager, connect=lambda _: self.down.connect(), monotonic=clock.monotonic)
        self.started.append(parts)
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            await wait_for(self.virtual, NODES, f"vnode-{binding}-n1", until=bool, timeout=A_DAY)
            yield parts
            manager.stop()


async def new_world(*bindings: str, **spec: Any) -> World:
    """Create two clusters with the physical node `n1`; `spec` is part of the bindings."""
    apis = [InProcessApi(SERVED, now=running_clock().now) for _ in range(2)]
    world = World(*(Client(api.connect()) for api in apis), *map(Link, apis))
    await world.populate(*(bindings or ("east",)), **spec)
    return world


def rejecting(method: str, end: str, error: ApiError) -> Rejection:
    """Reject requests with one method and path suffix."""
    return lambda request: error if request.method == method and request.path.endswith(end) else None


class Gate:
    """Hold requests with one method and path suffix until it is opened."""

    def __init__(self, method: str, end: str) -> None:
        self._method, self._end = method, end
        self._reached, self._opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> None:
        if request.method == self._method and request.path.endswith(self._end):
            self._reached.set()
            await self._opened.wait()

    async def reached(self) -> None:
        await self._reached.wait()

    def open(self) -> None:
        self._opened.set()


def forbidden(message: str, **details: Any) -> Forbidden:
    return Forbidden(403, "Forbidden", message, details=details)


def phase(expected: str) -> Until:
    return lambda pod: bool(value_at(pod, "status", "phase") == expected)


def has_condition(type: str, status: str, reason: str) -> Until:
    """Return a predicate for pods with that condition."""

    def until(pod: Object) -> bool:
        found = find_condition(value_at(pod, "status", "conditions"), type)
        return found is not None and (found["status"], found.get("reason")) == (status, reason)

    return until


MAPPED = has_condition(keys.MAPPED_CONDITION, "True", "Mapped")
