"""Lifecycle of a binding, from join to unjoin, with exactly the granted permissions.

Manager and syncers are pods with their own service accounts, run as processes of this machine. In the physical cluster
they have the permissions that `tapestry join` grants. The test fails on missing and on unused permissions. It consists
of steps: if you add a permission, add its use to a step. Streaming lists are disabled in the API servers, so that the
`list` permissions are used too.
"""

import asyncio
import base64
import http.client
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.apis.names import node_metrics_path, physical_name, syncer_lease_name, syncer_name
from tapestry.apis.ownership import owner_selector
from tapestry.apis.permissions import (
    MANAGER_PERMISSIONS,
    SERVING_SIGNER,
    SYNCER_AUTHENTICATION,
    SYNCER_BINDING,
    SYNCER_CLAIMS,
    SYNCER_HOST_PORTS,
    SYNCER_IN_PHYSICAL,
    SYNCER_IN_VIRTUAL,
    SYNCER_KUBECONFIG,
    SYNCER_LEADER_ELECTION,
    SYNCER_NODE_LEASES,
    SYNCER_NODES,
    SYNCER_PODS,
    SYNCER_SECRETS,
    SYNCER_SERVING_SECRET,
    SYNCER_STREAMS,
    SYNCER_TOKENS,
    SYNCER_VOLUME_READS,
    SYNCER_VOLUMES,
    Permission,
    Placeholder,
    with_object_names,
)
from tapestry.apis.policies import POLICIES
from tapestry.apis.serving_certificates import serving_secret_name
from tapestry.apiserver.core.certificate_requests import alternative_names, parse_request
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.logs import pod_log
from tapestry.client.options import PatchType
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.controller import Informer
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import (
    Object,
    annotations_of,
    labels_of,
    name_of,
    namespace_of,
    object_named,
    uid_of,
    value_at,
)
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CRDS,
    CSI_NODES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
    VERTICAL_AUTOSCALERS,
    Resource,
)
from tapestry.local import nodes
from tapestry.local.control_planes import kubelet_flags, kubelet_manager
from tapestry.local.kubernetes import ControlPlane
from tapestry.local.nodes import new_node
from tapestry.local.simulated_kubelet import SIMULATED_NODES

from .installation import SYSTEM, Installation, client_of, running_installation, tapestry
from .permission_audit import PermissionAudit, permission_errors

MOUNT = "tapestry-leased"
NODE = "vnode-east-n1"
DRIVER = "csi.example"
SYNCER_RESOURCES = (
    *(SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    *(DISRUPTION_BUDGETS, SERVICES, DEPLOYMENTS),
)
ELECTION = {"leaseSeconds": 5, "deadlineSeconds": 3, "retrySeconds": 1}
MANAGER_SETTINGS = {
    "TAPESTRY_LEADER_ELECTION_LEASE_SECONDS": "5",
    "TAPESTRY_LEADER_ELECTION_DEADLINE_SECONDS": "3",
    "TAPESTRY_LEADER_ELECTION_RETRY_SECONDS": "1",
    "TAPESTRY_SYNCER_KUBELET_SERVICE": "true",
}
SYNCER_SETTINGS = {"checkSeconds": 5, "silenceSeconds": 4, "leaderElection": ELECTION}
"""Short periods, so that the steps take seconds."""

SPDY_HEADERS = (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io"))
WEBSOCKET_HEADERS = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
)

EXCEPTIONS = {
    "the manager": {
        f"approve signers {SERVING_SIGNER}": "checked when a request is approved",
    }
    | {
        f"{verb} {kind}": "checked when a role or its binding is written"
        for verb in ("bind", "escalate")
        for kind in ("clusterroles", "roles")
    },
}
"""Permissions that no request shows, by account, and their purpose."""


def permission_audits(above: ControlPlane, below: ControlPlane, account: str) -> list[PermissionAudit]:
    manager_places = {Placeholder.MANAGER_NAMESPACE: SYSTEM, Placeholder.KUBECONFIG_NAMESPACE: SYSTEM}
    syncer_places = {
        **manager_places,
        Placeholder.SYNCER_LEASE: syncer_lease_name("east"),
        Placeholder.KUBECONFIG_SECRET: "east",
        Placeholder.SERVING_SECRET: serving_secret_name(syncer_name("east")),
        Placeholder.BINDING: "east",
    }
    physical_places = {
        Placeholder.MOUNT_NAMESPACE: MOUNT,
        Placeholder.SYNCER_ACCOUNT_NAMESPACE: MOUNT,
        Placeholder.SYNCER_ACCOUNT: account,
    }
    syncer_permissions = (
        *(*SYNCER_IN_VIRTUAL, *SYNCER_LEADER_ELECTION, *SYNCER_HOST_PORTS, *SYNCER_NODE_LEASES, *SYNCER_KUBECONFIG),
        *SYNCER_AUTHENTICATION,
        *(*SYNCER_BINDING, *SYNCER_VOLUME_READS, *with_object_names(SYNCER_NODES, [NODE])),
        *in_default((*SYNCER_PODS, *SYNCER_CLAIMS)),
        *in_default(with_object_names(SYNCER_SECRETS, ["settings"])),
        *in_default(with_object_names(SYNCER_TOKENS, ["default"])),
        *SYNCER_SERVING_SECRET,
    )
    physical_permissions = (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES, *SYNCER_STREAMS)
    return [
        PermissionAudit("the manager", SYSTEM, "tapestry-manager", above, MANAGER_PERMISSIONS, manager_places),
        PermissionAudit("a syncer above", SYSTEM, syncer_name("east"), above, syncer_permissions, syncer_places),
        PermissionAudit("a syncer below", MOUNT, account, below, physical_permissions, physical_places),
    ]


def in_default(permissions: Iterable[Permission]) -> list[Permission]:
    """Return permissions in the namespace of the pods."""
    return [replace(each, namespace="default") for each in permissions]


@dataclass
class World:
    """Both clusters with administrator access, and the installation of Tapestry."""

    above: ControlPlane
    below: ControlPlane
    virtual: Client
    physical: Client
    installed: Installation

    async def tapestry(self, *command: object) -> str:
        return await asyncio.to_thread(tapestry, *command, "--kubeconfig", self.above.kubeconfig)

    async def join(self) -> None:
        """Create the binding, which says what is synced, and join the cluster."""
        spec = {
            "clusterID": "east",
            "secretRef": {"name": "east", "namespace": SYSTEM},
            "mountNamespace": MOUNT,
            "disableNodeDefaultTaint": True,
            "serviceNamespaces": ["default"],
            "allowedVolumes": {"drivers": [DRIVER], "volumeHandles": ["data"]},
            "unbindGraceSeconds": 0,
        }
        await self.virtual.create(CLUSTER_BINDINGS, {**new_object(CLUSTER_BINDINGS, "east"), "spec": spec})
        await self.tapestry("join", "east", "--cluster-kubeconfig", self.below.kubeconfig, "--lease", "50%")
        await wait_for_object(self.virtual, NODES, NODE, lambda node: node["status"]["allocatable"]["cpu"] == "2")
        await wait_for_object(
            self.virtual, CLUSTER_BINDINGS, "east", lambda binding: is_condition_true(binding, "SyncerReady")
        )

    async def binding(self) -> Binding:
        system = await self.virtual.get(NAMESPACES, "kube-system")
        return binding_of(await self.virtual.get(CLUSTER_BINDINGS, "east"), uid_of(system))

    async def name_below(self, name: str, namespace: str = "default") -> str:
        binding = await self.binding()
        return physical_name(binding.virtual_cluster, binding.uid, namespace, name)

    async def permission_audits(self) -> list[PermissionAudit]:
        (account,) = await self.physical.list(SERVICE_ACCOUNTS, MOUNT, labels=keys.VIRTUAL_CLUSTER)
        return permission_audits(self.above, self.below, name_of(account))

    async def kill_syncers(self) -> None:
        for pid in await self.installed.pids(syncer_name("east")):
            os.kill(pid, signal.SIGKILL)


# -- steps


async def create_volume_claim(world: World) -> None:
    """Create a volume and a claim. This is an early step because Kubernetes binds them slowly."""
    await world.virtual.create(PERSISTENT_VOLUMES, new_volume("data"))
    await world.virtual.create(PERSISTENT_VOLUME_CLAIMS, new_claim("data"))


async def read_metrics(world: World) -> None:
    """Read metrics off loopback with a token."""
    for deployment in ("tapestry-manager", syncer_name("east")):
        log = "".join(await world.installed.logs(deployment))
        (*_, port) = re.findall(r'"metrics":"0\.0\.0\.0:(\d+)"', log)
        status, page = await asyncio.to_thread(metrics_at, int(port), world.above.token)
        assert (status, "tapestry_is_leader" in page) == (200, True)


async def kill_syncers_and_occupy_node_name(world: World) -> None:
    """Kill the syncers, and take the name of the next virtual node. The new syncers choose another name."""
    await world.kill_syncers()
    await world.virtual.create(NODES, object_named("vnode-east-n2"))
    await world.physical.create(NODES, physical_node("n2"))
    await wait_for_any(world.virtual, NODES, lambda node: annotations_of(node).get(keys.PHYSICAL_NODE_NAME) == "n2")
    await world.virtual.delete(NODES, object_named("vnode-east-n2"))


async def change_leases(world: World) -> None:
    """Change the Leases until a leader gets a conflict on renewal and reads its Lease."""
    numbers = map(str, count())

    async def change_lease(election: str) -> None:
        patch = {"metadata": {"annotations": {"number": next(numbers)}}}
        await world.virtual.patch(LEASES, object_named(election, SYSTEM), patch)

    manager, syncer, _ = await world.permission_audits()
    await wait_until_used(manager, "get leases", partial(change_lease, "tapestry-manager"))
    await wait_until_used(syncer, "get leases", partial(change_lease, syncer_lease_name("east")))


async def change_syncer_objects(world: World) -> None:
    """Remove the labels of the manager's objects, so that its caches miss them, and report a Deployment as down."""
    uid = uid_of(await world.virtual.get(CLUSTER_BINDINGS, "east"))
    ours = f"{keys.CLUSTER_BINDING_UID}={uid}"
    for resource in SYNCER_RESOURCES:
        for obj in await world.virtual.list(resource, labels=ours):
            nothing = {"metadata": {"labels": {keys.MANAGED_BY: None, keys.CLUSTER_BINDING_UID: None}}}
            await world.virtual.patch(resource, reference_to(obj), nothing)
            marked = lambda found: labels_of(found).get(keys.CLUSTER_BINDING_UID) == uid  # noqa: E731
            await wait_for_object(world.virtual, resource, name_of(obj), marked, namespace_of(obj))
    for _ in range(2):
        down = {"status": {"availableReplicas": 0, "readyReplicas": 0}}
        world.above.pause("kube-controller-manager")  # it would correct the status too early
        try:
            await world.virtual.patch(
                DEPLOYMENTS, object_named(syncer_name("east"), SYSTEM), down, subresource="status"
            )
            await wait_for_object(
                world.virtual, CLUSTER_BINDINGS, "east", lambda binding: not is_condition_true(binding, "SyncerReady")
            )
        finally:
            world.above.resume("kube-controller-manager")
        await wait_for_object(
            world.virtual, CLUSTER_BINDINGS, "east", lambda binding: is_condition_true(binding, "SyncerReady")
        )


async def certify_and_remove_service(world: World) -> None:
    """Approve certificates for the Service of the syncers, then for their pods, which the API server can reach here."""
    service = await world.virtual.get(SERVICES, syncer_name("east"), SYSTEM)
    address = service["spec"]["clusterIP"]
    address_of = lambda node: node["status"]["addresses"][0]["address"]  # noqa: E731
    await wait_for_object(world.virtual, NODES, NODE, lambda node: address_of(node) == address)
    await wait_for_any(world.virtual, SIGNING_REQUESTS, lambda each: is_approved_for(each, address))
    container = {"name": "manager", "env": [{"name": "TAPESTRY_SYNCER_KUBELET_SERVICE", "value": "false"}]}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    options = {"type": PatchType.STRATEGIC}
    await world.virtual.patch(DEPLOYMENTS, object_named("tapestry-manager", SYSTEM), patch, **options)
    await wait_until_deleted(world.virtual, SERVICES, syncer_name("east"), SYSTEM)
    node = await wait_for_object(world.virtual, NODES, NODE, lambda node: address_of(node) != address)
    await wait_for_any(world.virtual, SIGNING_REQUESTS, lambda each: is_approved_for(each, address_of(node)))


def is_approved_for(request: Object, address: str) -> bool:
    names = alternative_names(parse_request(request["spec"]["request"]))
    approved = value_at(request, "status", "conditions", 0, "type") == "Approved"
    return approved and address in {str(each.value) for each in names}


async def autoscale_syncer(world: World) -> None:
    """Autoscale the syncer before and after the cluster has the kind, change the VerticalPodAutoscaler, and stop."""

    def condition_is(status: str, reason: str) -> Callable[[Object], bool]:
        return lambda binding: (
            (find_condition(binding["status"]["conditions"], "Autoscaled") or {}).items()
            >= {"status": status, "reason": reason}.items()
        )

    async def set_autoscale(value: str, status: str, reason: str) -> None:
        patch = {"spec": {"syncer": {"autoscale": value}}}
        await world.virtual.patch(CLUSTER_BINDINGS, object_named("east"), patch)
        await wait_for_object(world.virtual, CLUSTER_BINDINGS, "east", condition_is(status, reason))

    syncer = syncer_name("east")
    await set_autoscale("vertical", "False", "KindMissing")
    definition = await world.virtual.create(CRDS, autoscaler_definition())
    await wait_for_object(world.virtual, CRDS, name_of(definition), lambda obj: is_condition_true(obj, "Established"))
    await set_autoscale("none", "False", "Disabled")
    await set_autoscale("vertical", "True", "Autoscaled")
    autoscaler = await world.virtual.get(VERTICAL_AUTOSCALERS, syncer, SYSTEM)
    assert autoscaler["spec"]["targetRef"]["name"] == syncer
    off = {"spec": {"updatePolicy": {"updateMode": "Off"}}}
    await world.virtual.patch(VERTICAL_AUTOSCALERS, autoscaler, off)
    await world.virtual.patch(CLUSTER_BINDINGS, object_named("east"), {"spec": {"syncer": {"args": ["--workers=8"]}}})
    is_auto = lambda obj: obj["spec"]["updatePolicy"]["updateMode"] == "Auto"  # noqa: E731
    await wait_for_object(world.virtual, VERTICAL_AUTOSCALERS, syncer, is_auto, SYSTEM)
    await set_autoscale("none", "False", "Disabled")
    await wait_until_deleted(world.virtual, VERTICAL_AUTOSCALERS, syncer, SYSTEM)


def autoscaler_definition() -> Object:
    """Return the definition of the kind VerticalPodAutoscaler, without its schema."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    kind, plural, group = VERTICAL_AUTOSCALERS.kind, VERTICAL_AUTOSCALERS.plural, VERTICAL_AUTOSCALERS.group
    version = {
        "name": VERTICAL_AUTOSCALERS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/63797"}
    return {
        "metadata": {"name": f"{plural}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


async def update_virtual_node(world: World) -> None:
    """Change the CSI drivers, the used host ports and the policies of a node."""
    drivers = [{"name": DRIVER, "nodeID": "n1"}, {"name": "csi.other", "nodeID": "n1"}]
    await world.physical.create(CSI_NODES, {**object_named("n1"), "spec": {"drivers": drivers[:1]}})
    await wait_for_object(world.virtual, CSI_NODES, NODE, lambda node: len(node["spec"]["drivers"]) == 1)
    await world.physical.patch(CSI_NODES, object_named("n1"), {"spec": {"drivers": drivers}})
    await wait_for_object(world.virtual, CSI_NODES, NODE, lambda node: len(node["spec"]["drivers"]) == 2)
    port = {"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}
    await world.physical.create(
        PODS, {**object_named("web", "default"), "spec": {"nodeName": "n1", "containers": [port]}}
    )
    await wait_for_any(world.virtual, PODS, lambda pod: pod["spec"].get("nodeName") == NODE, keys.HOST_PORTS_NAMESPACE)
    await world.physical.delete(PODS, object_named("web", "default"), grace_seconds=0)
    await world.virtual.create(POLICIES, {**new_object(POLICIES, "ours"), "spec": {"cluster": "east"}})
    await wait_for_object(world.virtual, POLICIES, "ours", lambda policy: value_at(policy, "status", "nodes") == 2)


async def run_pod_with_dependencies(world: World) -> None:
    """Run a pod with ConfigMap, Secret, Service and volume, and record the same event for its twin twice."""
    virtual, physical = world.virtual, world.physical
    for resource in (CONFIGMAPS, SECRETS):
        await virtual.create(resource, object_named("settings", "default"))
    ports = [{"port": 80}]
    await virtual.create(SERVICES, {**object_named("web", "default"), "spec": {"ports": ports}})
    labels = {"kubernetes.io/service-name": "web"}
    endpoints = [{"addresses": ["10.1.2.3"]}]
    slice = {"metadata": {"name": "web-1", "namespace": "default", "labels": labels}, "addressType": "IPv4"}
    await virtual.create(ENDPOINT_SLICES, {**slice, "ports": ports, "endpoints": endpoints})
    await virtual.create(PODS, new_pod("work"))
    twin = await wait_for_object(physical, PODS, await world.name_below("work"), bool, MOUNT)
    about = {"kind": "Pod", "namespace": MOUNT, "name": name_of(twin), "uid": uid_of(twin)}
    for number in (1, 2):
        event = {"involvedObject": about, "reason": "Pulled", "message": "it is there", "type": "Normal"}
        await physical.create(EVENTS, {**object_named(f"pulled-{number}", MOUNT), **event})
        is_counted = lambda event, number=number: (event["reason"], event.get("count")) == ("Pulled", number)  # noqa: E731
        await wait_for_any(virtual, EVENTS, is_counted, "default")


async def read_pod_log(world: World) -> None:
    """Read the log of the pod. It is empty because the twin is not scheduled."""
    async with pod_log(world.virtual, "work", "default", {}) as chunks:
        assert [chunk async for chunk in chunks] == []


async def read_usage(world: World) -> None:
    """Read the usage of a virtual node. The physical cluster has no metrics API."""
    node = await world.virtual.get(NODES, NODE)
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    url = f"https://{node['status']['addresses'][0]['address']}:{port}{node_metrics_path(NODE)}"
    headers = {"Authorization": f"Bearer {world.above.token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url, ssl=False) as response:
        assert (response.status, "has no metrics API" in await response.text()) == (503, True)


async def request_streams(world: World) -> None:
    """Request exec, attach and port-forward with both protocols. The twin is not scheduled, so all are refused."""
    transport = world.virtual.transport
    assert isinstance(transport, HttpTransport)
    options = {
        "exec": [("command", "true"), ("stdout", "true")],
        "attach": [("stdout", "true")],
        "portforward": [("ports", "80")],
    }
    for subresource, query in options.items():
        for method, headers in (("POST", SPDY_HEADERS), ("GET", WEBSOCKET_HEADERS)):
            request = Request(method, PODS.path("default", "work", subresource))
            response = await transport.upgrade(request, query, headers)
            assert response.connection is None
            assert b"does not have a host assigned" in response.body


async def change_pod_and_dependencies(world: World) -> None:
    virtual, physical = world.virtual, world.physical
    below = await world.name_below("work")
    await virtual.patch(PODS, object_named("work", "default"), {"metadata": {"labels": {"changed": "yes"}}})
    await wait_for_object(physical, PODS, below, lambda pod: "changed" in labels_of(pod), MOUNT)
    debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}
    options = {"type": PatchType.STRATEGIC}
    await virtual.patch(PODS, object_named("work", "default"), debugger, subresource="ephemeralcontainers", **options)
    await wait_for_object(physical, PODS, below, lambda pod: value_at(pod, "spec", "ephemeralContainers", 0), MOUNT)
    more = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}}
    await virtual.patch(PODS, object_named("work", "default"), more, subresource="resize", **options)
    has_request = lambda pod: value_at(pod, "spec", "containers", 0, "resources", "requests", "cpu") == "200m"  # noqa: E731
    await wait_for_object(physical, PODS, below, has_request, MOUNT)
    copy = await world.name_below("settings")
    for resource in (CONFIGMAPS, SECRETS):
        data = {"data": {"key": base64.b64encode(b"new").decode()}}
        await virtual.patch(resource, object_named("settings", "default"), data)
        await wait_for_object(physical, resource, copy, lambda obj: value_at(obj, "data", "key"), MOUNT)
    await virtual.patch(SERVICES, object_named("web", "default"), {"spec": {"ports": [{"port": 81}]}})
    port = lambda service: value_at(service, "spec", "ports", 0, "port") == 81  # noqa: E731
    await wait_for_any(physical, SERVICES, port, MOUNT)
    await virtual.patch(ENDPOINT_SLICES, object_named("web-1", "default"), {"endpoints": [{"addresses": ["10.1.2.4"]}]})
    address = lambda slice: value_at(slice, "endpoints", 0, "addresses", 0) == "10.1.2.4"  # noqa: E731
    await wait_for_any(physical, ENDPOINT_SLICES, address, MOUNT)


async def grow_volume(world: World) -> None:
    virtual, physical = world.virtual, world.physical
    size = {"storage": "2Gi"}
    await virtual.patch(PERSISTENT_VOLUMES, object_named("data"), {"spec": {"capacity": size}})
    pending = {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}
    await virtual.patch(
        PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), {"status": pending}, subresource="status"
    )
    volume, claim = await world.name_below("data", ""), await world.name_below("data")
    await wait_for_object(physical, PERSISTENT_VOLUMES, volume, lambda each: each["spec"]["capacity"] == size)
    grown = {"status": {"capacity": size}}
    await physical.patch(PERSISTENT_VOLUME_CLAIMS, object_named(claim, MOUNT), grown, subresource="status")
    done = lambda claim: value_at(claim, "status", "capacity") == size  # noqa: E731
    await wait_for_object(virtual, PERSISTENT_VOLUME_CLAIMS, "data", done, "default")


async def remove_owner_labels(world: World) -> None:
    """Remove the owner labels of physical objects for a while. Their names are then taken by foreign objects."""
    *_, audit = await world.permission_audits()
    binding = await world.binding()
    ours = owner_selector(binding.virtual_cluster, binding.uid)
    for resource in (CONFIGMAPS, SECRETS, SERVICES, ENDPOINT_SLICES):
        async with without_labels(world.physical, resource, ours):
            await wait_until_used(audit, f"get {resource.plural}", world.physical.server_version)
    for resource in (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS):
        async with without_labels(world.physical, resource, ours):
            if resource is PERSISTENT_VOLUMES:
                await world.virtual.create(PODS, new_pod("second"))
            await wait_until_used(audit, f"get {resource.plural}", world.physical.server_version)
    await world.virtual.delete(PODS, object_named("second", "default"))


async def lose_twin(world: World) -> None:
    """Delete a twin by force. The syncer reads it live before it ends the pod."""
    await world.virtual.create(PODS, new_pod("lost"))
    twin = await world.name_below("lost")
    await wait_for_object(world.physical, PODS, twin, bool, MOUNT)
    mapped = lambda pod: is_condition_true(pod, keys.MAPPED_CONDITION)  # noqa: E731
    await wait_for_object(world.virtual, PODS, "lost", mapped, "default")
    await world.physical.delete(PODS, object_named(twin, MOUNT), grace_seconds=0)
    await wait_for_object(world.virtual, PODS, "lost", is_pod_terminal, "default")
    await world.virtual.delete(PODS, object_named("lost", "default"))


async def remove_csi_drivers(world: World) -> None:
    """Delete the CSINode of the physical node. When a node is deleted, the garbage collector can be first."""
    await world.physical.delete(CSI_NODES, object_named("n1"))
    await wait_until_deleted(world.virtual, CSI_NODES, NODE)


@asynccontextmanager
async def without_labels(client: Client, resource: Resource, labels: str) -> AsyncIterator[None]:
    """Remove the owner labels from all selected objects, and restore them on exit."""
    label_keys = (keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING_UID)
    found = await client.list(resource, labels=labels)
    assert found
    for obj in found:
        await client.patch(resource, reference_to(obj), {"metadata": {"labels": dict.fromkeys(label_keys)}})
    yield
    for obj in found:
        removed = {key: labels_of(obj)[key] for key in label_keys}
        await client.patch(resource, reference_to(obj), {"metadata": {"labels": removed}})


async def delete_service(world: World) -> None:
    await world.virtual.delete(SERVICES, object_named("web", "default"))
    is_deleted = lambda found: not any(name_of(each).startswith("web-") for each in found)  # noqa: E731
    await wait_for_list(world.physical, SERVICES, MOUNT, is_deleted)


async def pause_physical_api_server(world: World) -> None:
    """Pause the API server until the tolerations of virtual pods are held, and resume it."""
    world.below.pause("kube-apiserver")
    try:
        held = lambda pod: keys.HELD_TOLERATIONS in annotations_of(pod)  # noqa: E731
        await wait_for_object(world.virtual, PODS, "work", held, "default")
    finally:
        world.below.resume("kube-apiserver")
    await wait_for_object(world.virtual, PODS, "work", lambda pod: not held(pod), "default")


async def end_lease(world: World) -> None:
    """Close the window with a grace period, reclaim a node at once, and delete another node."""
    (policy,) = await world.physical.list(POLICIES)
    closed = {"timeWindows": [past_window()], "forceReclaim": True}
    gently = {"gracefulReclaimPeriodSeconds": 600, "evictDuringGrace": True}
    await world.physical.patch(POLICIES, policy, {"spec": {**closed, **gently}})
    await wait_until_deleted(world.virtual, PODS, "work", "default")
    await world.physical.patch(POLICIES, object_named(name_of(policy)), {"spec": {"timeWindows": None}})
    await wait_for_object(world.virtual, NODES, NODE, lambda node: not out_of_windows(node))
    await world.virtual.create(PODS, new_pod("more"))
    await wait_for_object(world.physical, PODS, await world.name_below("more"), bool, MOUNT)
    await world.physical.patch(
        NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    )
    await wait_until_deleted(world.virtual, PODS, "more", "default")
    await world.physical.patch(NODES, object_named("n1"), {"metadata": {"annotations": {keys.RECLAIM: None}}})
    await world.physical.delete(NODES, object_named("n2"))
    await wait_for_object(
        world.virtual, CLUSTER_BINDINGS, "east", lambda binding: value_at(binding, "status", "nodes") == 1
    )


async def expire_token_soon(world: World) -> None:
    secret = await world.virtual.get(SECRETS, "east", SYSTEM)
    kubeconfig = yaml.safe_load(base64.b64decode(secret["data"]["kubeconfig"]))
    old = nearly_expired_token(kubeconfig["users"][0]["user"]["token"], world.below.folder / "certs" / "apiserver.key")
    kubeconfig["users"][0]["user"]["token"] = old
    data = base64.b64encode(yaml.safe_dump(kubeconfig).encode()).decode()
    await world.virtual.patch(SECRETS, object_named("east", SYSTEM), {"data": {"kubeconfig": data}})
    renewed = lambda found: value_at(found, "data", "kubeconfig") != data  # noqa: E731
    await wait_for_object(world.virtual, SECRETS, "east", renewed, SYSTEM)


async def unjoin_cluster(world: World) -> None:
    output = await world.tapestry("status")
    assert "east" in output
    await world.tapestry("unjoin", "east", "--cluster-kubeconfig", world.below.kubeconfig)
    assert [node for node in await world.virtual.list(NODES) if name_of(node).startswith("vnode-")] == []


async def join_again_and_unjoin_by_force(world: World) -> None:
    """Unjoin while the cluster is down. Once it is back, the leftovers are deleted."""
    await world.join()
    await world.virtual.create(PODS, new_pod("again"))
    await wait_for_object(world.physical, PODS, await world.name_below("again"), bool, MOUNT)
    world.below.pause("kube-apiserver")
    try:
        await world.tapestry("unjoin", "east", "--force")
        assert await world.virtual.list(CLUSTER_BINDINGS) == []
    finally:
        world.below.resume("kube-apiserver")
    await wait_until_deleted(world.virtual, SECRETS, "east", SYSTEM)
    assert await world.physical.list(PODS, MOUNT) == []


STEPS: tuple[Callable[[World], Any], ...] = (
    create_volume_claim,
    World.join,
    read_metrics,
    kill_syncers_and_occupy_node_name,
    change_leases,
    change_syncer_objects,
    certify_and_remove_service,
    autoscale_syncer,
    update_virtual_node,
    run_pod_with_dependencies,
    read_pod_log,
    read_usage,
    request_streams,
    change_pod_and_dependencies,
    grow_volume,
    remove_owner_labels,
    lose_twin,
    remove_csi_drivers,
    delete_service,
    pause_physical_api_server,
    end_lease,
    expire_token_soon,
    unjoin_cluster,
    join_again_and_unjoin_by_force,
)


@pytest.fixture
def planes(kube_assets: Path, tmp_path: Path) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A virtual and a physical control plane, both with service accounts and audit logs."""
    options = {"controller_manager": True, "fsync": False, "audit": True}
    flags = {"feature-gates": "WatchList=false"}
    virtual_flags = {**flags, **kubelet_flags(tmp_path / "virtual")}
    with (
        ControlPlane(tmp_path / "virtual", kube_assets, scheduler=True, flags=virtual_flags, **options) as virtual,
        ControlPlane(tmp_path / "physical", kube_assets, flags=flags, **options) as physical,
    ):
        yield virtual, physical


@asynccontextmanager
async def running_world(planes: tuple[ControlPlane, ControlPlane], assets: Path, folder: Path) -> AsyncIterator[World]:
    above, below = planes
    virtual, physical = client_of(above), client_of(below)
    try:
        await physical.create(NODES, physical_node("n1"))
        async with (
            ready_nodes(below),
            running_installation(above, assets, folder, MANAGER_SETTINGS, SYNCER_SETTINGS) as installed,
        ):
            yield World(above, below, virtual, physical, installed)
    finally:
        await virtual.close()
        await physical.close()


@asynccontextmanager
async def ready_nodes(plane: ControlPlane) -> AsyncIterator[None]:
    """Keep the nodes of a cluster ready. No pods run there."""
    async with kubelet_manager(plane) as served, asyncio.TaskGroup() as group:
        nodes.install(served.manager, SIMULATED_NODES, lambda: 10250)
        group.create_task(served.manager.run())
        try:
            yield
        finally:
            served.manager.stop()


@pytest.mark.timeout(300)
async def test_binding_lifecycle_uses_exactly_the_granted_permissions(
    planes: tuple[ControlPlane, ControlPlane],
    kube_assets: Path,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with running_world(planes, kube_assets, tmp_path) as world:
        for step in STEPS:
            await step(world)
        found = await world.permission_audits()
    wrong = []
    for audit in found:
        exceptions = EXCEPTIONS.get(audit.label, {})
        wrong += permission_errors(audit, exceptions)
        record_property("figure", f"rights of {audit.label}: {len(audit.granted())}, of them spare: {len(exceptions)}")
    assert wrong == [], "\n".join(wrong)


# -- helpers


async def wait_for_object(
    client: Client, resource: Resource, name: str, until: Callable[[Object], Any], namespace: str | None = None
) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and bool(until(obj)), timeout=40
    )
    assert found is not None
    return found


async def wait_for_any(
    client: Client, resource: Resource, until: Callable[[Object], bool], namespace: str | None = None
) -> None:
    """Wait until at least one object of the kind meets the condition."""
    await wait_for_list(client, resource, namespace, lambda found: any(map(until, found)))


async def wait_for_list(
    client: Client, resource: Resource, namespace: str | None, until: Callable[[list[Object]], bool]
) -> None:
    informer, changed = Informer(client, resource, namespace=namespace), asyncio.Event()
    informer.on_change(lambda _old, _new: changed.set())
    informer.after_sync(changed.set)
    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        while not (informer.synced.is_set() and until(list(informer.store.list()))):
            await changed.wait()
            changed.clear()
        running.cancel()


async def wait_until_used(audit: PermissionAudit, right: str, meanwhile: Callable[[], Any]) -> None:
    """Call `meanwhile` until the audit log shows that the account used the permission."""
    async with asyncio.timeout(60):
        while any(str(unused).startswith(right) for unused in audit.unused()):
            for _ in range(100):
                await meanwhile()


async def wait_until_deleted(client: Client, resource: Resource, name: str, namespace: str | None = None) -> None:
    await wait_for(client, resource, name, namespace, until=lambda obj: obj is None, timeout=40)


def metrics_at(port: int, token: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def reference_to(obj: Object) -> Object:
    """Return a reference with the name and namespace of an object."""
    return object_named(name_of(obj), namespace_of(obj))


def new_object(resource: Resource, name: str) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **object_named(name)}


def physical_node(name: str) -> Object:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return new_node(SIMULATED_NODES, name, amounts)


def new_pod(name: str) -> Object:
    """Return a pod with a token, a ConfigMap, a Secret and a volume."""
    volumes = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    container = {
        "name": "c",
        "image": "i",
        "envFrom": [{"secretRef": {"name": "settings"}}],
        "resources": {"requests": {"cpu": "100m"}},
        "volumeMounts": [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes],
    }
    return {**object_named(name, "default"), "spec": {"nodeName": NODE, "containers": [container], "volumes": volumes}}


def new_volume(name: str) -> Object:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": "default", "name": name},
        "csi": {"driver": DRIVER, "volumeHandle": name},
    }
    return {**object_named(name), "spec": spec}


def new_claim(name: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": name,
    }
    return {**object_named(name, "default"), "spec": spec}


def past_window() -> Object:
    """Return a window that closed an hour ago."""
    start, end = (time.strftime("%H:%M", time.gmtime(time.time() - seconds)) for seconds in (7200, 3600))
    return {"start": start, "end": end, "timeZone": "UTC"}


def out_of_windows(node: Object) -> bool:
    return any(taint["key"] == keys.OUT_OF_TIME_WINDOWS_TAINT for taint in value_at(node, "spec", "taints", default=[]))


def nearly_expired_token(token: str, key: Path) -> str:
    """Return a service account token with one day left, signed with the key of the API server."""
    head, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    now = int(time.time())
    claims |= {"iat": now - 29 * 86400, "nbf": now - 29 * 86400, "exp": now + 86400}
    signed = f"{head}.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}"
    private: Any = load_pem_private_key(key.read_bytes(), None)
    signature = private.sign(signed.encode(), PKCS1v15(), hashes.SHA256())
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
