"""Test environment with a virtual cluster, a physical cluster and a syncer process between them.

Tests share control planes.  Each `BoundClusters` has a separate binding, mount namespace and set of nodes, and leases
no other nodes.  No kubelet runs: tests write the status that a kubelet would write.
"""

import asyncio
import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS
from tapestry.apis.names import physical_name, virtual_cluster_label, virtual_node_name
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controller import Informer
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import (
    EMPTY_MAPPING,
    Object,
    annotations_of,
    is_deleting,
    name_of,
    object_named,
    uid_of,
    value_at,
)
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import CRDS, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.manager.joining import PRIORITY_CLASSES, priority_class

from .forked import ForkedTapestry
from .planes import Plane

TAPESTRY = Path(sys.executable).with_name("tapestry")
LENT_TO = "lent-to"
"""Label that distinguishes the nodes of one `BoundClusters` from others in the same cluster."""
TIMEOUT = 45.0
"""Default timeout of the wait functions in seconds.  A syncer starts slowly on a busy machine."""

Until = Callable[[Object], bool]
Syncer = subprocess.Popen[bytes] | ForkedTapestry


@dataclass(frozen=True)
class BoundClusters:
    """A binding and its two clusters.  The name of the binding is also its clusterID."""

    virtual: Client
    physical: Client
    virtual_plane: Plane
    name: str
    mount: str
    folder: Path

    # -- objects of the clusters

    async def add_node(self, name: str, *, labels: dict[str, str] | None = None, **amounts: str) -> Object:
        """Create a ready physical node that only this binding leases, by default with 4 CPUs and 8Gi."""
        metadata = {"name": name, "labels": {LENT_TO: self.name, **(labels or {})}}
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "110", **amounts}
        made = await self.physical.create(NODES, new_object("Node", metadata))
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready("True")]}
        return await self.physical.patch(NODES, object_named(name_of(made)), {"status": status}, subresource="status")

    async def add_policy(self, name: str, *, below: bool = False, **spec: Any) -> Object:
        """Create a policy of the operator, or of the owner with `below`."""
        return await (self.physical if below else self.virtual).create(POLICIES, self.new_policy(name, **spec))

    def new_policy(self, name: str, **spec: Any) -> Object:
        return new_object(
            POLICIES.kind, {"name": f"{self.name}-{name}"}, POLICIES.api_version, spec={"cluster": self.name, **spec}
        )

    async def set_policy(self, name: str, *, below: bool = False, **spec: Any) -> None:
        client = self.physical if below else self.virtual
        await client.patch(POLICIES, object_named(f"{self.name}-{name}"), {"spec": spec})

    async def drop_policy(self, name: str, *, below: bool = False) -> None:
        await (self.physical if below else self.virtual).delete(POLICIES, object_named(f"{self.name}-{name}"))

    async def add_foreign_pod(
        self, name: str, node: str, *, ports: list[Object] | None = None, **requests: str
    ) -> None:
        """Create a pod of the owner on a physical node."""
        await self.physical.create(PODS, new_pod(f"{self.name}-{name}", node, ports=ports or [], requests=requests))

    async def drop_foreign_pod(self, name: str) -> None:
        await self.physical.delete(PODS, object_named(f"{self.name}-{name}", "default"), grace_seconds=0)

    async def bind_pod(self, name: str, node: str, **spec: Any) -> Object:
        """Create a pod in the virtual cluster, bound to the virtual node of `node`."""
        return await self.virtual.create(PODS, new_pod(f"{self.name}-{name}", self.above(node), **spec))

    async def run_pod(self, name: str, node: str, **spec: Any) -> Object:
        """Create a pod whose twin is bound to a physical node.  Call `end_twin` to end it as a kubelet would."""
        pod = await self.bind_pod(name, node, **spec)
        twin = await self.wait_for_twin(name)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        where = {"name": name_of(twin), "namespace": self.mount}
        await self.physical.create(PODS, new_object("Binding", where, target=target), subresource="binding")
        return pod

    async def end_twin(self, name: str) -> None:
        """Delete the twin without grace, as a kubelet does at the end."""
        await self.physical.delete(PODS, object_named(await self.twin_name(name), self.mount), grace_seconds=0)

    async def end_pod(self, name: str) -> None:
        """Delete the pod without grace, as a kubelet does at the end."""
        await self.virtual.delete(PODS, object_named(f"{self.name}-{name}", "default"), grace_seconds=0)

    async def set_binding(self, **spec: Any) -> None:
        await self.virtual.patch(CLUSTER_BINDINGS, object_named(self.name), {"spec": spec})

    async def set_kubeconfig(self, text: str) -> None:
        data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
        await self.virtual.patch(SECRETS, object_named(self.name, keys.SYSTEM_NAMESPACE), {"data": data})

    def above(self, node: str) -> str:
        """Return the name of the virtual node."""
        return virtual_node_name(self.name, node)

    # -- waiting

    async def wait_for_binding(self, until: Until, *, timeout: float = TIMEOUT) -> Object:
        return await wait_until(self.virtual, CLUSTER_BINDINGS, self.name, until, timeout=timeout)

    async def wait_for_policy(self, name: str, until: Until, *, below: bool = False) -> Object:
        client = self.physical if below else self.virtual
        return await wait_until(client, POLICIES, f"{self.name}-{name}", until)

    async def wait_for_virtual_node(self, node: str, until: Until = bool, *, timeout: float = TIMEOUT) -> Object:
        return await wait_until(self.virtual, NODES, self.above(node), until, timeout=timeout)

    async def wait_until_virtual_node_is_gone(self, node: str) -> None:
        await wait_until_gone(self.virtual, NODES, self.above(node))

    async def twin_name(self, name: str) -> str:
        """Return the name of the twin of the pod `name`."""
        binding = await self.virtual.get(CLUSTER_BINDINGS, self.name)
        system = await self.virtual.get(NAMESPACES, "kube-system")
        cluster = virtual_cluster_label(uid_of(system))
        return physical_name(cluster, uid_of(binding), "default", f"{self.name}-{name}")

    async def wait_for_twin(self, name: str, until: Until = bool, *, timeout: float = TIMEOUT) -> Object:
        return await wait_until(self.physical, PODS, await self.twin_name(name), until, self.mount, timeout=timeout)

    async def wait_until_pod_is_gone(self, name: str, *, timeout: float = TIMEOUT) -> None:
        await wait_until_gone(self.virtual, PODS, f"{self.name}-{name}", "default", timeout=timeout)

    async def wait_until_twin_is_gone(self, name: str, *, timeout: float = TIMEOUT) -> None:
        await wait_until_gone(self.physical, PODS, await self.twin_name(name), self.mount, timeout=timeout)

    async def set_twin_status(self, name: str, **status: Any) -> None:
        """Write the status of the twin as a kubelet does."""
        target = object_named(await self.twin_name(name), self.mount)
        await self.physical.patch(PODS, target, {"status": status}, subresource="status")

    async def wait_for_pod(self, name: str, until: Until, *, timeout: float = TIMEOUT) -> Object:
        return await wait_until(self.virtual, PODS, f"{self.name}-{name}", until, "default", timeout=timeout)

    # -- the syncer

    @contextmanager
    def syncer(self, *, forked: bool = True, leader_elect: bool = False, **settings: str) -> Iterator[Syncer]:
        """Run `tapestry syncer` for this binding.  It must exit cleanly on SIGTERM and log no traceback.

        If it is not `forked`, its memory and its start are those of a new process.
        """
        command = ["syncer", "--binding", self.name, "--kubeconfig", self.virtual_plane.kubeconfig]
        command += ["--allow-loopback"]
        command += [
            f"--leader-elect={str(leader_elect).lower()}",
            "--metrics-bind-address",
            "",
            "--health-probe-bind-address",
            "",
        ]
        command += ["--audit", self.audit]
        environ = {**os.environ, **{f"TAPESTRY_{name.upper()}": value for name, value in settings.items()}}
        if forked:
            process: Syncer = ForkedTapestry(command, environ, self.log)
        else:
            with self.log.open("ab") as log:
                process = subprocess.Popen([TAPESTRY, *command], env=environ, stderr=log)
        try:
            yield process
            process.terminate()
            assert process.wait(30) == 0, self.log.read_text()
            faults = [line for line in self.log.read_text().splitlines() if '"error"' in line and "Traceback" in line]
            assert not faults, faults
        finally:
            process.kill()
            process.wait()

    @property
    def log(self) -> Path:
        return self.folder / "syncer.log"

    @property
    def audit(self) -> Path:
        return self.folder / "audit.jsonl"

    def writes(self) -> list[Object]:
        """Return the writes in the audit log of the syncer, which lags behind by up to 0.2 seconds.

        Writes that were refused or got no answer are left out: stale caches and shutdown cause them.
        """
        entries = map(json.loads, self.audit.read_text().splitlines())
        return [each for each in entries if each.get("code", 500) < 300]


@asynccontextmanager
async def bound_clusters(
    virtual: Plane, physical: Plane, folder: Path, *, name: str = "", **spec: Any
) -> AsyncIterator[BoundClusters]:
    """Create a binding with `spec` between two clusters.  The virtual cluster must have our kinds."""
    name = name or f"c{secrets.token_hex(4)}"
    async with client_of(virtual) as above, client_of(physical) as below:
        clusters = BoundClusters(above, below, virtual, name, f"{name}-mount", folder)
        await give(below, NAMESPACES, new_object("Namespace", {"name": clusters.mount}))
        await give(below, PRIORITY_CLASSES, priority_class())
        for namespace in (keys.SYSTEM_NAMESPACE, keys.HOST_PORTS_NAMESPACE):
            await give(above, NAMESPACES, new_object("Namespace", {"name": namespace}))
        await above.create(SECRETS, new_kubeconfig_secret(name, physical.kubeconfig.read_text()))
        selected = {"key": LENT_TO, "operator": "In", "values": [name]}
        given = {
            "clusterID": name,
            "secretRef": {"name": name, "namespace": keys.SYSTEM_NAMESPACE},
            "mountNamespace": clusters.mount,
            "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [selected]}]},
            **spec,
        }
        binding = new_object(CLUSTER_BINDINGS.kind, {"name": name}, CLUSTER_BINDINGS.api_version, spec=given)
        await above.create(CLUSTER_BINDINGS, binding)
        yield clusters


@asynccontextmanager
async def client_of(plane: Plane) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load_access([plane.kubeconfig], environ=os.environ)))
    try:
        yield client
    finally:
        await client.close()


async def install_kinds(plane: Plane) -> None:
    """Install our CustomResourceDefinitions and wait until they are served."""
    async with client_of(plane) as client:
        for kind in (CLUSTER_BINDING, POLICY):
            definition = crd(kind)
            await give(client, CRDS, definition)
            await wait_until(client, CRDS, name_of(definition), lambda found: is_condition_true(found, "Established"))


async def give(client: Client, resource: Resource, obj: Object) -> None:
    """Create an object unless it exists."""
    try:
        await client.create(resource, obj)
    except AlreadyExists:
        return


async def wait_until(
    client: Client,
    resource: Resource,
    name: str,
    until: Until,
    namespace: str | None = None,
    *,
    timeout: float = TIMEOUT,
) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=timeout
    )
    assert found is not None
    return found


async def wait_until_gone(
    client: Client, resource: Resource, name: str, namespace: str | None = None, *, timeout: float = TIMEOUT
) -> None:
    await wait_for(client, resource, name, namespace, until=lambda obj: obj is None, timeout=timeout)


async def wait_for_all(
    client: Client,
    resource: Resource,
    namespace: str | None,
    until: Callable[[list[Object]], bool],
    *,
    labels: str = "",
    fields: str = "",
    timeout: float = TIMEOUT,
) -> list[Object]:
    """Wait until `until` holds for the list of selected objects and return the list."""
    informer = Informer(client, resource, namespace=namespace, labels=labels, fields=fields)
    changed = asyncio.Event()
    informer.on_change(lambda _old, _new: changed.set())
    informer.after_sync(changed.set)
    async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        while not (informer.synced.is_set() and until(list(informer.store.list()))):
            await changed.wait()
            changed.clear()
        running.cancel()
    return list(informer.store.list())


async def wait_for_exit(process: Syncer) -> int:
    """Wait for a process to end and return its exit code."""
    return await asyncio.to_thread(process.wait, TIMEOUT)


# -- objects


def new_object(kind: str, metadata: Object, api_version: str = "v1", **content: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def new_pod(
    name: str, node: str, *, ports: Sequence[Object] = (), requests: Mapping[str, str] = EMPTY_MAPPING, **spec: Any
) -> Object:
    container = {"name": "c", "image": "none", "ports": list(ports), "resources": {"requests": {**requests}}}
    return new_object(
        "Pod", {"name": name, "namespace": "default"}, spec={"nodeName": node, "containers": [container], **spec}
    )


def new_kubeconfig_secret(name: str, kubeconfig: str) -> Object:
    metadata = {"name": name, "namespace": keys.SYSTEM_NAMESPACE}
    return new_object("Secret", metadata, stringData={"kubeconfig": kubeconfig})


def ready(status: str) -> Object:
    return {"type": "Ready", "status": status, "reason": "Told", "lastTransitionTime": "2026-01-01T00:00:00Z"}


# -- predicates on objects


def allocatable_is(**amounts: str) -> Until:
    return lambda node: all(value_at(node, "status", "allocatable", key) == value for key, value in amounts.items())


def tainted(key: str) -> Until:
    return lambda node: taint_named(node, key) is not None


def untainted(key: str) -> Until:
    return lambda node: taint_named(node, key) is None


def readiness(node: Object) -> str | None:
    conditions = value_at(node, "status", "conditions", default=[])
    return next((each["status"] for each in conditions if each["type"] == "Ready"), None)


def has_deletion_timestamp(obj: Object) -> bool:
    return is_deleting(obj)


def annotated(key: str, value: str) -> Until:
    return lambda obj: annotations_of(obj).get(key) == value
