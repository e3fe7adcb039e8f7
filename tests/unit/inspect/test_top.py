"""Leased, requested and used resources: sums, order and sources of usage."""

import base64
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, binding_of
from tapestry.apis.policies import POLICIES
from tapestry.cli import top as command
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.controller.testing import InProcessApi, run, running_clock
from tapestry.inspect.metrics import KubeletAccess, UsageReader, kubelet_url, summary_amounts
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import QueryError
from tapestry.inspect.top import UsageReport, loads_table, sorted_loads, usage_report
from tapestry.kube.objects import Object, object_named, with_type_meta
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import NAMESPACES, NODES, POD_METRICS, PODS, SECRETS
from tapestry.local import control_planes
from tapestry.syncer.translate.pods import twin_name

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://east.example"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}
VIRTUAL_RESOURCES = (CLUSTER_BINDINGS, POLICIES, NAMESPACES, NODES, PODS, SECRETS)


@dataclass
class World:
    """Virtual cluster with the binding east and its nodes n1 and n2."""

    virtual: Client
    physical: Client
    queries: Queries
    binding: Object = field(default_factory=dict)

    async def bind(self, identity: str) -> None:
        data = {"kubeconfig": base64.b64encode(json.dumps(KUBECONFIG).encode()).decode()}
        await self.virtual.create(SECRETS, {**object_named("east", keys.SYSTEM_NAMESPACE), "data": data})
        reference = {"name": "east", "namespace": keys.SYSTEM_NAMESPACE}
        spec = {"clusterID": "e1", "secretRef": reference, "mountNamespace": "leased"}
        created = await self.virtual.create(
            CLUSTER_BINDINGS, with_type_meta(CLUSTER_BINDINGS, {**object_named("east"), "spec": spec})
        )
        status = {"status": {"identity": identity}}
        self.binding = await self.virtual.patch(CLUSTER_BINDINGS, created, status, subresource="status")
        labels = {keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL, keys.CLUSTER_BINDING_UID: created["metadata"]["uid"]}
        for name in ("n1", "n2"):
            about = {"labels": labels, "annotations": {keys.PHYSICAL_NODE_NAME: name}}
            node_status = {"allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2", "pods": "50"}}
            await self.virtual.create(NODES, {"metadata": {"name": f"vnode-e1-{name}", **about}, "status": node_status})

    async def run(self, name: str, node: str, phase: str = "Running", **requests: str) -> str:
        """Create a pod with a twin; return the name of the twin."""
        mapped = {"type": keys.MAPPED_CONDITION, "status": "True", "reason": "Mapped", "message": f"uid-of-{name}"}
        container = {"name": "c", "image": "busybox:1", "resources": {"requests": requests, "limits": requests}}
        pod = {**object_named(name, "default"), "spec": {"nodeName": node, "containers": [container]}}
        created = await self.virtual.create(PODS, pod)
        status = {"status": {"phase": phase, "conditions": [mapped]}}
        created = await self.virtual.patch(PODS, created, status, subresource="status")
        identity = (await self.virtual.get(NAMESPACES, "kube-system"))["metadata"]["uid"]
        return twin_name(created, binding_of(self.binding, identity))

    async def top(self, binding: str | None = None, kubelets: Mapping[str, KubeletAccess] | None = None) -> UsageReport:
        return await usage_report(
            self.queries, UsageReader(self.virtual, self.queries.connect, kubelets or {}), binding
        )


async def measure(client: Client, namespace: str, name: str, cpu: str, memory: str) -> None:
    containers = [{"name": "c", "usage": {"cpu": cpu, "memory": memory}}]
    await client.create(
        POD_METRICS, with_type_meta(POD_METRICS, {**object_named(name, namespace), "containers": containers})
    )


def in_a_world(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    *,
    virtual_metrics: bool = False,
    physical_metrics: bool = True,
) -> None:
    """Run a scenario; `virtual_metrics` and `physical_metrics` select the clusters with a metrics API."""

    async def main() -> None:
        clock = running_clock()
        physical_api = InProcessApi(
            [NAMESPACES, NODES, PODS, *([POD_METRICS] if physical_metrics else [])], now=clock.now
        )
        virtual = Client(
            InProcessApi([*VIRTUAL_RESOURCES, *([POD_METRICS] if virtual_metrics else [])], now=clock.now).connect()
        )
        physical = Client(physical_api.connect())
        await virtual.create(NAMESPACES, object_named("kube-system"))
        identity = (await physical.create(NAMESPACES, object_named("kube-system")))["metadata"]["uid"]
        world = World(virtual, physical, Queries(virtual, lambda _: physical_api.connect(), clock.now()))
        await world.bind(identity)
        await scenario(world)

    run(main())


def test_loads_are_sums_of_physical_metrics() -> None:
    async def scenario(world: World) -> None:
        for name, node, cpu in (
            ("web", "vnode-e1-n1", "1500m"),
            ("db", "vnode-e1-n1", "500m"),
            ("job", "vnode-e1-n2", "1"),
        ):
            twin = await world.run(name, node, cpu=cpu, memory="1Gi")
            await measure(world.physical, "leased", twin, "123456789n", "100Mi")
        await measure(world.physical, "leased", "somebody-elses", "9", "9Gi")
        found = await world.top()
        (east,) = found.clusters()
        assert (east.nodes, east.pods, east.leased["cpu"], east.requested["cpu"]) == (2, 3, "8", "3")
        assert east.used == {"cpu": "372m", "memory": "300Mi"}  # each rounded up to a millicore
        assert [(each.name, each.used) for each in found.nodes()] == [
            ("vnode-e1-n1", {"cpu": "248m", "memory": "200Mi"}),
            ("vnode-e1-n2", {"cpu": "124m", "memory": "100Mi"}),
        ]
        assert {each.name: (each.node, each.requested["cpu"]) for each in found.pods("default")} == {
            "web": ("vnode-e1-n1", "1500m"),
            "db": ("vnode-e1-n1", "500m"),
            "job": ("vnode-e1-n2", "1"),
        }
        assert found.pods("elsewhere") == []
        assert found.missing_usage_messages() == []

    in_a_world(scenario)


def test_metrics_of_virtual_cluster_are_preferred() -> None:
    async def scenario(world: World) -> None:
        await world.run("web", "vnode-e1-n1", cpu="1")
        await measure(world.virtual, "default", "web", "250m", "64Mi")
        (east,) = (await world.top()).clusters()
        assert east.used == {"cpu": "250m", "memory": "64Mi"}

    in_a_world(scenario, virtual_metrics=True, physical_metrics=False)


def test_requests_and_message_replace_missing_metrics() -> None:
    async def scenario(world: World) -> None:
        await world.run("small", "vnode-e1-n1", cpu="1")
        await world.run("large", "vnode-e1-n1", cpu="2")
        found = await world.top()
        (sentence,) = found.missing_usage_messages()
        assert sentence.startswith("the usage of the pods of east is not shown: it has no metrics API")
        pods = sorted_loads(found.pods(None), "cpu")
        assert [(each.name, each.used) for each in pods] == [("large", None), ("small", None)]
        assert "small  vnode-e1-n1  -/1  -/0" in loads_table(pods)
        assert max(map(len, loads_table(pods).splitlines())) <= 80

    in_a_world(scenario, physical_metrics=False)


def test_unreachable_kubelets_are_reported() -> None:
    async def scenario(world: World) -> None:
        await world.physical.create(NODES, object_named("n1"))
        await world.run("web", "vnode-e1-n1", cpu="1")
        found = await world.top(
            kubelets={world.binding["status"]["identity"]: Access}
        )  # a server that is not a kubelet
        (sentence,) = found.missing_usage_messages()
        assert "a kubelet did not answer: GET /stats/summary: 404" in sentence

    in_a_world(scenario)


def test_ended_pods_do_not_count() -> None:
    async def scenario(world: World) -> None:
        await world.run("done", "vnode-e1-n1", phase="Succeeded", cpu="1")
        (east,) = (await world.top()).clusters()
        assert (east.pods, east.requested["cpu"], east.used) == (0, "0", {"cpu": "0", "memory": "0"})

    in_a_world(scenario)


def test_missing_binding_is_an_error() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(QueryError, match="known are: east"):
            await world.top("west")

    in_a_world(scenario)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("cpu", ["vnode-e1-n2", "vnode-e1-n1"]),
        ("memory", ["vnode-e1-n1", "vnode-e1-n2"]),
        ("name", ["vnode-e1-n1", "vnode-e1-n2"]),
    ],
)
def test_largest_load_is_first(order: Any, names: list[str]) -> None:
    async def scenario(world: World) -> None:
        for node, cpu, memory in (("n1", "1", "2Gi"), ("n2", "2", "1Gi")):
            twin = await world.run(f"on-{node}", f"vnode-e1-{node}", cpu=cpu)
            await measure(world.physical, "leased", twin, cpu, memory)
        assert [each.name for each in sorted_loads((await world.top()).nodes(), order)] == names

    in_a_world(scenario)


def test_wide_table_has_percentages_and_other_resources() -> None:
    async def scenario(world: World) -> None:
        twin = await world.run("train", "vnode-e1-n1", **{"cpu": "1", "memory": "4Gi", "nvidia.com/gpu": "1"})
        await measure(world.physical, "leased", twin, "2", "2Gi")
        nodes = sorted_loads((await world.top()).nodes(), "cpu")
        header, first, second = (line.split() for line in loads_table(nodes, wide=True).splitlines())
        assert header[-1] == "OTHER"
        assert first == [
            "vnode-e1-n1",
            "east",
            "1",
            "4",
            "1",
            "25%",
            "2",
            "50%",
            "8Gi",
            "4Gi",
            "50%",
            "2Gi",
            "25%",
            "nvidia.com/gpu=1/2",
        ]
        assert second[-1] == "nvidia.com/gpu=0/2"

    in_a_world(scenario)


def test_empty_table_is_a_sentence() -> None:
    assert "nothing is lent" in loads_table([])


def test_kubelet_summary_is_parsed() -> None:
    summary = {
        "node": {},
        "pods": [
            {
                "podRef": {"name": "a", "namespace": "n"},
                "cpu": {"usageNanoCores": 1},
                "memory": {"workingSetBytes": 4096},
            },
            {"podRef": {"name": "just-started", "namespace": "n"}, "cpu": {}, "memory": {}},
        ],
    }
    assert dict(summary_amounts(summary)) == {"n/a": {"cpu": parse_quantity("1m"), "memory": parse_quantity(4096)}}


def test_kubelet_url_is_from_node() -> None:
    status = {
        "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.7"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
    }
    assert kubelet_url({"metadata": {"name": "n1"}, "status": status}) == "https://10.0.0.7:10251"


def test_certificate_name_matches_control_plane() -> None:
    assert command.KUBELET_CLIENT == control_planes.KUBELET_CLIENT
