"""The syncer, disturbed at every call to either cluster: it must come to the same end each time."""

import asyncio
import base64
import json
from collections.abc import Callable

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import LeaderElection
from tapestry.controller.testing import Scenario, perturb, running_clock
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, named, value_at
from tapestry.kube.resources import CSI_NODES, NAMESPACES, NODES, PODS, SECRETS
from tapestry.syncer.app import syncer
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.virtual_nodes import taint_named

VIRTUAL = [CLUSTER_BINDINGS, POLICIES, NODES, PODS, NAMESPACES, SECRETS, CSI_NODES]
PHYSICAL = [POLICIES, NODES, PODS, NAMESPACES, CSI_NODES]
CONFIG = SyncerConfig(binding="east", name="east", silence_seconds=3600, leader_election=LeaderElection())
A_DAY = 24 * 3600.0

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://east.example:6443"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


async def setup(manager: Manager, physical: Transport) -> None:
    await wait_for(manager.reads, CLUSTER_BINDINGS, "east", until=bool, timeout=A_DAY)
    await syncer(CONFIG, manager, connect=lambda _: physical, monotonic=running_clock().monotonic)


def an_object(kind: str, name: str, api_version: str = "v1", **content: object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}


def a_node(name: str) -> Object:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    return an_object("Node", name, status={"capacity": amounts, "allocatable": amounts, "conditions": [ready]})


def a_policy(name: str, **spec: object) -> Object:
    return an_object("ResourceLeasingPolicy", name, POLICIES.api_version, spec={"cluster": "east", **spec})


async def populate(virtual: Client, physical: Client, policy: Object) -> None:
    for client in (virtual, physical):
        await client.create(NAMESPACES, an_object("Namespace", "kube-system"))
    await physical.create(NAMESPACES, an_object("Namespace", "leased"))
    await physical.create(NODES, a_node("n1"))
    data = {"kubeconfig": base64.b64encode(json.dumps(KUBECONFIG).encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "data": data}
    await virtual.create(SECRETS, {**secret, "metadata": {"name": "east", "namespace": "tapestry-system"}})
    spec = {
        "clusterID": "east",
        "secretRef": {"name": "east", "namespace": "tapestry-system"},
        "mountNamespace": "leased",
    }
    await virtual.create(POLICIES, policy)
    await virtual.create(CLUSTER_BINDINGS, an_object("ClusterBinding", "east", CLUSTER_BINDINGS.api_version, spec=spec))


async def reaches(client: Client, resource, name: str, until: Callable[[Object], bool], namespace=None) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=2 * A_DAY
    )
    assert found is not None
    return found


async def a_binding_comes_and_goes(virtual: Client, physical: Client) -> None:
    await populate(virtual, physical, a_policy("half", resourceLimits=[{"resource": "cpu", "percent": 50}]))
    await reaches(virtual, NODES, "vnode-east-n1", lambda node: value_at(node, "status", "allocatable", "cpu") == "2")
    pod = an_object(
        "Pod", "online", spec={"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    )
    await physical.create(PODS, {**pod, "metadata": {"name": "online", "namespace": "shop"}})
    await reaches(
        virtual, NODES, "vnode-east-n1", lambda node: value_at(node, "status", "allocatable", "cpu") == "1500m"
    )
    await reaches(
        virtual, CLUSTER_BINDINGS, "east", lambda binding: value_at(binding, "status", "leased", "cpu") == "1500m"
    )
    await reaches(virtual, POLICIES, "half", lambda policy: value_at(policy, "status", "leased", "cpu") == "1500m")
    await virtual.delete(CLUSTER_BINDINGS, named("east"))
    await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=A_DAY)
    assert await virtual.list(NODES) == []


async def a_window_closes(virtual: Client, physical: Client) -> None:
    window = {"start": "00:10", "end": "00:20"}
    policy = a_policy("night", timeWindows=[window], forceReclaim=True, gracefulReclaimPeriodSeconds=60)
    await populate(virtual, physical, policy)
    open_ = lambda node: taint_named(node, keys.OUT_OF_TIME_WINDOWS) is None  # noqa: E731
    await reaches(virtual, NODES, "vnode-east-n1", open_)
    pod = an_object("Pod", "work", spec={"nodeName": "vnode-east-n1", "containers": [{"name": "c"}]})
    await virtual.create(PODS, {**pod, "metadata": {"name": "work", "namespace": "default"}})
    await reaches(virtual, NODES, "vnode-east-n1", lambda node: not open_(node))
    going = await reaches(virtual, PODS, "work", lambda pod: "deletionTimestamp" in pod["metadata"], "default")
    assert is_true(going, "DisruptionTarget")
    await virtual.delete(PODS, named("work", "default"), grace_seconds=0)
    await asyncio.sleep(30)


def is_no_heartbeat(call: str) -> bool:
    return (
        call != "GET /version" and not call.startswith("watch") and not (call.startswith("PUT") and "/leases/" in call)
    )


SCENARIOS = [
    Scenario(name, VIRTUAL, setup, world, CONFIG, others=[PHYSICAL], counts=is_no_heartbeat)
    for name, world in {
        "a binding comes and goes": a_binding_comes_and_goes,
        "a window closes": a_window_closes,
    }.items()
]


def test_the_syncer_comes_to_the_same_end_whatever_happens_on_the_way(
    record_property: Callable[[str, object], None],
) -> None:
    reports = [perturb(scenario) for scenario in SCENARIOS]
    cases = sum(report.cases for report in reports)
    record_property("figure", f"perturbed syncer: {cases} replays of {len(reports)} scenarios")
    failed = [str(report) for report in reports if report.failures]
    assert not failed, "\n".join(failed)
