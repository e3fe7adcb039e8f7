"""Two clusters of this process, a whole syncer between them, and whoever else has a part there.

Time is virtual.  The syncer's way to each cluster is a `Link`: it counts what is asked, can be told to refuse some of
it, and can be cut.  What kubelets and schedulers do is done by the test, in words of `World`.
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
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection, Metrics, Probes
from tapestry.controller.testing import InProcessApi, running_clock
from tapestry.kube import resources
from tapestry.kube.conditions import find_condition
from tapestry.kube.errors import ApiError, Forbidden, TransportError
from tapestry.kube.objects import Object, is_deleting, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import EVENTS, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.kube.times import timestamp
from tapestry.syncer.app import build_syncer
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.context import SyncContext

SERVED = [each for each in vars(resources).values() if isinstance(each, Resource)] + [
    CLUSTER_BINDINGS,
    POLICIES,
    PRIORITY_CLASSES,
]
A_DAY = 24 * 3600.0
NODE = "vnode-east-n1"
MOUNT = "leased"
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."

Refusal = Callable[[Request], ApiError | None]
Until = Callable[[Object], bool]


def nothing(_: Request) -> ApiError | None:
    return None


async def at_once(_: Request) -> None:
    """Requests do not wait."""


@cache
def authority() -> str:
    """A certificate that signs others: without one of its own a kubeconfig takes all that the system knows, slowly."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "world")])
    born = datetime(2020, 1, 1, tzinfo=UTC)
    draft = x509.CertificateBuilder(name, name, key.public_key(), 1, born, born + timedelta(days=36500))
    signed = draft.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return base64.b64encode(signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)).decode()


@dataclass
class Clusters:
    """A virtual and a physical cluster, and what others than a syncer do there."""

    virtual: Client
    physical: Client

    # -- what there is

    async def populate(self, *bindings: str, policy: Object | None = None, **spec: Any) -> None:
        """The physical node `n1`, and bindings; `spec` goes into each, and `policy` into that of its policy."""
        for client in (self.virtual, self.physical):
            await client.create(NAMESPACES, object_named("kube-system"))
        await self.add_node("n1")
        await self.physical.create(NAMESPACES, object_named(MOUNT))
        for name in bindings:
            await self.add_binding(name, policy, **spec)

    async def add_binding(self, name: str, policy: Object | None = None, **spec: Any) -> None:
        cluster = {"server": f"https://{name}.example", "certificate-authority-data": authority()}
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
        given = {"clusterID": name, "secretRef": reference, "mountNamespace": MOUNT, "unbindGraceSeconds": 0, **spec}
        await self.virtual.create(
            POLICIES, {**object_named(f"{name}-all"), "spec": {"cluster": name, **(policy or {})}}
        )
        await self.virtual.create(CLUSTER_BINDINGS, {**object_named(name), "spec": given})

    async def set_binding(self, name: str = "east", **spec: Any) -> None:
        binding = await self.virtual.get(CLUSTER_BINDINGS, name)
        await self.virtual.patch(CLUSTER_BINDINGS, binding, {"spec": spec})

    async def add_node(self, name: str, **amounts: str) -> None:
        have = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts}
        await self.physical.create(NODES, {**object_named(name), "status": {"capacity": have, "allocatable": have}})

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
        """A virtual pod that is bound already."""
        containers = [{"name": "c", "image": "busybox:1", "resources": {"requests": requests or {}}}]
        place = {**(metadata or {}), "name": name, "namespace": namespace}
        given = {"nodeName": node, "serviceAccountName": "default", "containers": containers, **spec}
        return await self.virtual.create(PODS, {"metadata": place, "spec": given})

    async def change_pod(self, patch: Object, name: str = "work", *, subresource: str | None = None) -> None:
        pod = object_named(name, "default")
        await self.virtual.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource=subresource)

    async def debug_pod(self, **container: Any) -> None:
        """What `kubectl debug` does: have a container beside those that the pod came with."""
        containers = [{"name": "debug", "image": "busybox:1", **container}]
        await self.change_pod({"spec": {"ephemeralContainers": containers}}, subresource="ephemeralcontainers")

    async def delete_pod(self, name: str = "work", *, grace: int | None = None) -> None:
        await self.virtual.delete(PODS, object_named(name, "default"), grace_seconds=grace)

    # -- what kubelets and schedulers do below

    async def place(self, name: str = "work", node: str = "n1") -> None:
        """The physical scheduler has found a place for the twin."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", **await self.twin_place(name), "target": target}
        await self.physical.create(PODS, binding, subresource="binding")

    async def refuse_place(
        self, name: str = "work", message: str = "0/1 nodes are available: 1 Insufficient cpu."
    ) -> None:
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await self.set_twin_status(name, conditions=[{**said, "lastTransitionTime": self.moment()}])

    async def start(self, name: str = "work") -> None:
        """The twin runs."""
        if "nodeName" not in (await self.twin(name))["spec"]:
            await self.place(name)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": self.moment()}
        await self.set_twin_status(name, phase="Running", podIP="10.1.0.1", conditions=[ready])

    async def end(self, phase: str = "Succeeded", name: str = "work") -> None:
        """The twin has ended."""
        await self.set_twin_status(name, phase=phase)

    async def stop(self, name: str = "work") -> None:
        """The twin is no more: it was on its way out and has stopped, or somebody removed it."""
        await self.physical.delete(PODS, await self.twin_place(name), grace_seconds=0)

    async def set_twin(self, patch: Object, name: str = "work") -> None:
        await self.physical.patch(PODS, await self.twin_place(name), patch, type=PatchType.STRATEGIC)

    async def set_twin_status(self, name: str = "work", **status: Any) -> None:
        where = await self.twin_place(name)
        await self.physical.patch(PODS, where, {"status": status}, type=PatchType.STRATEGIC, subresource="status")

    async def run_pod(self, name: str = "work", **options: Any) -> None:
        """A virtual pod that is bound, and whose twin runs."""
        await self.add_pod(name, **options)
        await self.wait_for_pod(MAPPED, name)
        await self.start(name)
        await self.wait_for_pod(phase("Running"), name)

    # -- looking

    async def pod(self, name: str = "work", namespace: str = "default") -> Object:
        return await self.virtual.get(PODS, name, namespace)

    async def twin(self, name: str = "work", namespace: str = "default", *, binding: str = "east") -> Object:
        place = await self.twin_place(name, namespace, binding=binding)
        return await self.physical.get(PODS, place["metadata"]["name"], MOUNT)

    async def twin_place(self, name: str = "work", namespace: str = "default", *, binding: str = "east") -> Object:
        """What the twin of that pod is called, and where it is."""
        cluster = virtual_cluster_label(uid_of(await self.virtual.get(NAMESPACES, "kube-system")))
        uid = uid_of(await self.virtual.get(CLUSTER_BINDINGS, binding))
        return object_named(physical_name(cluster, uid, namespace, name), MOUNT)

    async def twins(self) -> list[Object]:
        return await self.physical.list(PODS, MOUNT)

    async def staying(self) -> list[str]:
        """The pods that are there and not on their way out."""
        return [name_of(pod) for pod in await self.virtual.list(PODS, "default") if not is_deleting(pod)]

    async def condition(self, type: str, name: str = "work") -> tuple[str, str] | None:
        """The status and the reason of a pod's condition."""
        found = find_condition(value_at(await self.pod(name), "status", "conditions"), type)
        return (found["status"], found["reason"]) if found else None

    async def ended(self, name: str = "work") -> tuple[str, str | None]:
        """The pod's phase, and why."""
        status = (await self.pod(name))["status"]
        return status["phase"], status.get("reason")

    async def lent(self, resource: str = "cpu", node: str = NODE) -> str:
        found: str = value_at(await self.virtual.get(NODES, node), "status", "allocatable", resource)
        return found

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
        place = (await self.twin_place(name))["metadata"]["name"]
        found = await wait_for(
            self.physical, PODS, place, MOUNT, until=lambda pod: pod is not None and until(pod), timeout=timeout
        )
        assert found is not None
        return found

    async def wait_until_twin_is_gone(self, name: str = "work", *, timeout: float = 60) -> None:
        place = (await self.twin_place(name))["metadata"]["name"]
        await wait_for(self.physical, PODS, place, MOUNT, until=lambda pod: pod is None, timeout=timeout)

    def moment(self) -> str:
        return timestamp(running_clock().now())


@dataclass
class Link:
    """The syncer's way to one cluster."""

    api: InProcessApi
    refusal: Refusal = nothing
    before: Callable[[Request], Awaitable[None]] = at_once
    """What a request waits for before it is sent or refused."""
    is_cut: bool = False
    asked: list[Request] = field(default_factory=list)
    _ends: list["End"] = field(default_factory=list)

    def connect(self) -> Transport:
        self._ends.append(End(self, self.api.connect()))
        return self._ends[-1]

    def cut(self) -> None:
        """From now on nothing goes through, and what was under way is lost."""
        self.is_cut = True
        for end in self._ends:
            end.abort()

    def mend(self) -> None:
        self.is_cut = False

    def writes(self, *words: str) -> list[str]:
        """The writes that had all of `words` in them, as `PATCH /api/v1/...`."""
        found = [str(request) for request in self.asked if request.method != "GET"]
        return [each for each in found if all(word in each for word in words)]

    def check(self, request: Request) -> None:
        if self.is_cut:
            raise TransportError(f"{request}: the network is down", maybe_sent=False)


@dataclass(frozen=True)
class End:
    """One transport over a link."""

    link: Link
    connection: Transport

    async def send(self, request: Request) -> Response:
        self.link.check(request)
        self.link.asked.append(request)
        await self.link.before(request)
        error = self.link.refusal(request)
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
    """Clusters that are bound, under any number of names, and what their syncers do; nothing refuses or cuts the
    clients of the test itself."""

    up: Link
    down: Link
    sites: list[SyncContext] = field(default_factory=list)
    """Of each syncer that ran, the last at the end."""

    # -- the syncer

    @asynccontextmanager
    async def syncer(self, binding: str = "east", **settings: Any) -> AsyncIterator[SyncContext]:
        """The syncer of a binding at work, once the virtual node of `n1` is there."""
        clock = running_clock()
        quiet = {"metrics": Metrics(address=""), "probes": Probes(address="")}
        given = {"silence_seconds": A_DAY, "leader_election": LeaderElection(), **quiet, **settings}
        config = SyncerConfig(binding=binding, **given)
        manager = Manager(config, self.up.connect, identity=binding, now=clock.now, monotonic=clock.monotonic)
        site = await build_syncer(config, manager, connect=lambda _: self.down.connect(), monotonic=clock.monotonic)
        self.sites.append(site)
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run())
            await wait_for(self.virtual, NODES, f"vnode-{binding}-n1", until=bool, timeout=A_DAY)
            yield site
            manager.stop()


async def a_world(*bindings: str, **spec: Any) -> World:
    """Two clusters, of which the physical one has the node `n1`; `spec` is of the bindings."""
    apis = [InProcessApi(SERVED, now=running_clock().now) for _ in range(2)]
    world = World(*(Client(api.connect()) for api in apis), *map(Link, apis))
    await world.populate(*(bindings or ("east",)), **spec)
    return world


def refusing(method: str, end: str, error: ApiError) -> Refusal:
    """Refuse one method where paths end so."""
    return lambda request: error if request.method == method and request.path.endswith(end) else None


class Gate:
    """Holds requests of one method whose paths end so, from the first one on, until it is opened."""

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


def forbidden(message: str) -> Forbidden:
    return Forbidden(403, "Forbidden", message)


def phase(wanted: str) -> Until:
    return lambda pod: bool(value_at(pod, "status", "phase") == wanted)


def said(type: str, status: str, reason: str) -> Until:
    """Whether a pod has such a condition."""

    def until(pod: Object) -> bool:
        found = find_condition(value_at(pod, "status", "conditions"), type)
        return found is not None and (found["status"], found.get("reason")) == (status, reason)

    return until


MAPPED = said(keys.MAPPED_CONDITION, "True", "Mapped")
