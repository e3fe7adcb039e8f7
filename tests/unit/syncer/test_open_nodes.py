"""Nodes of a host cluster that are open now: windows, kill switches, cordons, selectors and limits."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding
from tapestry.apis.policies import POLICIES
from tapestry.controller import ObjectCache
from tapestry.controller.store import Store
from tapestry.kube.objects import Object, name_of
from tapestry.kube.resources import CSI_NODES, NAMESPACES, NODES, PODS, SECRETS, Resource
from tapestry.syncer.admission import Wait
from tapestry.syncer.caches import Caches
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import LeaseCache, Shortages
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.open_nodes import OpenNodes, is_relevant_change
from tapestry.syncer.translate.host_placement import HostPlacement
from tapestry.syncer.translate.nodes import HOSTNAME

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)
IDENTITY = Identity("blue", "uid-1", "plane", "tenant-blue", "", is_tenant=True, schedules_on_host=True)
DAY = {"timeWindows": [{"start": "08:00", "end": "20:00"}]}
NIGHT = {"timeWindows": [{"start": "20:00", "end": "08:00"}]}


def cache_of(resource: Resource, objects: Iterable[Object] = ()) -> ObjectCache:
    synced = asyncio.Event()
    synced.set()
    cache: ObjectCache = ObjectCache(resource, Store({"physical": lambda _: [], "node": lambda _: []}), synced)
    for each in objects:
        cache.store.put(name_of(each), each)
    return cache


def new_node(name: str, annotations: Object | None = None, *, unschedulable: bool = False, **labels: str) -> Object:
    metadata = {"name": name, "uid": name, "labels": {HOSTNAME: name, **labels}, "annotations": annotations or {}}
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"metadata": metadata, "spec": {"unschedulable": unschedulable}, "status": {"allocatable": amounts}}


def new_policy(name: str = "all", **spec: Any) -> Object:
    metadata = {"name": name, "uid": name, "creationTimestamp": "2023-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"cluster": "east", **spec}}


def new_binding(**spec: Any) -> Object:
    content = {"clusterID": "blue", "virtualCluster": "plane", "hostCluster": "east", **spec}
    return {"metadata": {"name": "blue", "uid": "uid-1"}, "spec": content}


def new_pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}


@dataclass
class Host:
    """Nodes of a host cluster and policies for them, at a time that tests advance."""

    nodes: list[Object]
    policies: list[Object] = field(default_factory=lambda: [new_policy()])
    owner_policies: list[Object] = field(default_factory=list)
    namespace: Object = field(default_factory=lambda: {"metadata": {"name": "tenant-blue"}})
    binding: Object = field(default_factory=new_binding)
    time: datetime = MIDNIGHT

    def __post_init__(self) -> None:
        self.caches = Caches(
            identity=IDENTITY,
            bindings=cache_of(CLUSTER_BINDINGS, [self.binding]),
            operator_policies=cache_of(POLICIES, self.policies),
            virtual_nodes=cache_of(NODES),
            virtual_pods=cache_of(PODS),
            owner_policies=cache_of(POLICIES, self.owner_policies),
            physical_nodes=cache_of(NODES, self.nodes),
            physical_pods=cache_of(PODS),
            mount_namespaces=cache_of(NAMESPACES, [self.namespace]),
            secrets=cache_of(SECRETS),
            virtual_csi_nodes=cache_of(CSI_NODES),
            placeholders=cache_of(PODS),
            csi_nodes=cache_of(CSI_NODES),
        )
        self.current = CurrentBinding(IDENTITY, self.caches.bindings, self.caches.mount_namespaces)
        leases = LeaseCache(
            *(self.current, self.caches, Ledger(), Shortages(self.now), SyncerConfig(binding="blue")),
            *(lambda _: None, lambda: None),
        )
        self.open_nodes = OpenNodes(self.caches, leases, self.now)

    def now(self) -> datetime:
        return self.time

    def tenant(self) -> Binding:
        found = self.current.get()
        assert found is not None
        return found

    def put_node(self, node: Object) -> None:
        """Change a node, as the watch of the host cluster reports it."""
        store = self.caches.physical_nodes.store
        before = store.get(name_of(node))
        store.put(name_of(node), node)
        self.open_nodes.on_physical_node_change(before, node)

    def placement(self, **spec: Any) -> HostPlacement | Wait:
        return self.open_nodes.placement(new_pod(**spec), self.tenant())

    def names(self, **spec: Any) -> list[str]:
        """Return the names of the candidates of a pod."""
        placement = self.placement(**spec)
        return list(placement.hostnames) if isinstance(placement, HostPlacement) else []

    def wait(self, **spec: Any) -> Wait:
        placement = self.placement(**spec)
        assert isinstance(placement, Wait)
        return placement


def test_all_nodes_of_an_open_host_are_candidates() -> None:
    host = Host([new_node("n2"), new_node("n1")])
    assert host.names() == ["n1", "n2"]
    assert host.open_nodes.next_change(host.tenant()) is None


def test_no_policy_means_no_nodes() -> None:
    host = Host([new_node("n1")], policies=[])
    assert host.wait() == Wait(
        "NoNodes",
        "the host cluster has no open node: the node is withdrawn (NoPolicy): it takes no new pods",
        None,
    )


def test_host_without_nodes_is_reported() -> None:
    assert Host([]).wait().message == "the host cluster has no open node: it has no nodes"


def test_nodes_without_hostnames_of_their_own_are_reported() -> None:
    twins = [new_node("n1", **{HOSTNAME: "same"}), new_node("n2", **{HOSTNAME: "same"})]
    assert Host([*twins, new_node("n3")]).names() == ["n3"]
    assert "no host name of their own" in Host(twins).wait().message


def test_hostname_of_a_closed_node_is_no_candidate() -> None:
    """The scheduler of the host cluster would choose any node with that name, also the closed one."""
    closed = new_node("n2", {keys.RECLAIM: keys.RECLAIM_NOW}, **{HOSTNAME: "n1"})
    host = Host([new_node("n1"), closed, new_node("n3")])
    assert host.names() == ["n3"]
    host.put_node(new_node("n2", {keys.RECLAIM: keys.RECLAIM_NOW}))
    assert host.names() == ["n1", "n3"]


def test_window_opens_and_closes_nodes() -> None:
    host = Host([new_node("n1")], policies=[new_policy(**DAY)])
    wait = host.wait()
    assert (wait.reason, wait.until) == ("NoNodes", MIDNIGHT + timedelta(hours=8))
    assert "it opens at 2024-01-01T08:00:00Z" in wait.message
    host.time += timedelta(hours=8)
    assert host.names() == ["n1"]
    assert host.open_nodes.next_change(host.tenant()) is not None
    host.time += timedelta(hours=12)
    assert host.wait().until == MIDNIGHT + timedelta(hours=32)


def test_next_change_is_that_of_any_node() -> None:
    """Each window edge comes with the computation of the nodes that it opens or closes, with no event."""
    by_label = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "at", "operator": "In", "values": ["night"]}]}]}
    policies = [new_policy("always"), new_policy("night", nodeSelector=by_label, **NIGHT)]
    policies[0]["spec"]["nodeSelector"] = {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "at", "operator": "DoesNotExist"}]}]
    }
    host = Host([new_node("a"), new_node("b", at="night")], policies=policies)
    edges = []
    for _ in range(6):
        change = host.open_nodes.next_change(host.tenant())
        assert change is not None
        edges.append((host.time.hour, host.time.minute, host.names()))
        host.time = change
    opened = [names for hour, _, names in edges if hour >= 20 or hour < 8]
    assert opened
    assert all(names == ["a", "b"] for names in opened)
    assert (8, 0, ["a"]) in edges


@pytest.mark.parametrize("side", ["policies", "owner_policies"])
def test_both_sides_must_be_open(side: str) -> None:
    sides = {"policies": [new_policy(**DAY)], "owner_policies": [new_policy(**DAY)]}
    sides[side] = [new_policy(**NIGHT)]
    host = Host([new_node("n1")], **sides)
    for hour in range(24):
        host.time = MIDNIGHT + timedelta(hours=hour)
        assert host.names() == []


def test_kill_switch_of_a_node_closes_only_it() -> None:
    host = Host([new_node("n1"), new_node("n2")])
    assert host.names() == ["n1", "n2"]
    host.put_node(new_node("n1", {keys.RECLAIM: keys.RECLAIM_NOW}))
    assert host.names() == ["n2"]
    host.put_node(new_node("n2", {keys.RECLAIM: keys.RECLAIM_NOW}))
    assert "the owner has reclaimed the node" in host.wait().message
    host.put_node(new_node("n1"))
    assert host.names() == ["n1"]


def test_kill_switch_of_the_namespace_closes_all() -> None:
    host = Host([new_node("n1"), new_node("n2")])
    assert host.names() == ["n1", "n2"]
    marked = {"metadata": {"name": "tenant-blue", "annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
    host.caches.mount_namespaces.store.put("tenant-blue", marked)
    assert host.wait().until is None
    host.caches.mount_namespaces.store.put("tenant-blue", host.namespace)
    assert host.names() == ["n1", "n2"]


def test_cordoned_and_deleted_nodes_are_no_candidates() -> None:
    host = Host([new_node("n1"), new_node("n2"), new_node("n3")])
    host.put_node(new_node("n1", unschedulable=True))
    gone = new_node("n2")
    gone["metadata"]["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    host.put_node(gone)
    assert host.names() == ["n3"]
    host.put_node(new_node("n3", unschedulable=True))
    assert "cordoned" in host.wait().message


def test_binding_and_policy_select_nodes() -> None:
    expression = {"key": "pool", "operator": "In", "values": ["lent"]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    nodes = [new_node("n1", pool="lent"), new_node("n2", pool="kept"), new_node("n3")]
    assert Host(nodes, policies=[new_policy(nodeSelector=selector)]).names() == ["n1"]
    assert Host(nodes, binding=new_binding(nodeSelector=selector)).names() == ["n1"]


@pytest.mark.parametrize(
    ("limits", "is_used"),
    [
        ({"resourceLimits": [{"resource": "cpu", "percent": 50}]}, False),
        ({"resourceLimits": [{"resource": "memory", "quantity": "1Gi"}]}, False),
        ({"resourceLimits": [{"resource": "cpu", "quantity": "0"}]}, False),
        ({"totalLimits": [{"resource": "cpu", "quantity": "100"}]}, False),
        ({"resourceLimits": [{"resource": "cpu", "percent": 100}]}, True),
        ({"resourceLimits": [{"resource": "cpu", "quantity": "64"}]}, True),
        ({"resourceLimits": [{"resource": "example.com/gpu", "quantity": "0"}]}, True),
    ],
)
def test_nodes_with_limited_amounts_are_not_used(limits: Object, is_used: bool) -> None:
    host = Host([new_node("n1")], policies=[new_policy(**limits)])
    assert host.names() == (["n1"] if is_used else [])
    if not is_used:
        assert "placement virtual" in host.wait().message


def test_limit_of_one_node_spares_the_others() -> None:
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    half = [{"resource": "cpu", "percent": 50}]
    owner = [new_policy("half", nodeSelector=selector, resourceLimits=half)]
    assert Host([new_node("n1"), new_node("n2")], owner_policies=owner).names() == ["n2"]


def test_pod_gets_the_open_nodes_that_it_matches() -> None:
    host = Host([new_node("n1", disk="ssd"), new_node("n2", disk="hdd"), new_node("n3", disk="ssd")])
    host.put_node(new_node("n3", unschedulable=True, disk="ssd"))
    assert host.names(nodeSelector={"disk": "ssd"}) == ["n1"]
    wait = host.wait(nodeSelector={"disk": "nvme"})
    assert wait.reason == "NodeNotMatched"
    assert "none of the 2 open nodes matches" in wait.message
    host.put_node(new_node("n2", disk="nvme"))
    assert host.names(nodeSelector={"disk": "nvme"}) == ["n2"]


def test_matched_pod_waits_for_the_next_window() -> None:
    host = Host([new_node("n1")], policies=[new_policy(**NIGHT)])
    wait = host.wait(nodeSelector={"disk": "ssd"})
    change = host.open_nodes.next_change(host.tenant())
    assert (wait.reason, wait.until) == ("NodeNotMatched", change)


def test_most_frequent_reasons_come_first() -> None:
    reclaimed = [new_node(f"r{number}", {keys.RECLAIM: keys.RECLAIM_NOW}) for number in range(3)]
    cordoned = [new_node(f"c{number}", unschedulable=True) for number in range(2)]
    message = Host([*cordoned, *reclaimed]).wait().message
    assert message.index("reclaimed") < message.index("cordoned")


def test_nodes_are_computed_again_only_when_needed() -> None:
    host = Host([new_node("n1")], policies=[new_policy(**DAY)])
    host.time += timedelta(hours=9)
    known = host.open_nodes.open_nodes(host.tenant())
    host.time += timedelta(minutes=1)
    heartbeat = new_node("n1")
    heartbeat["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    host.put_node(heartbeat)
    assert host.open_nodes.open_nodes(host.tenant()) is known
    host.caches.operator_policies.store.put("all", new_policy())
    assert host.open_nodes.open_nodes(host.tenant()) is not known


def changed(**metadata: Any) -> Object:
    node = new_node("n1")
    return {**node, "metadata": {**node["metadata"], **metadata}}


@pytest.mark.parametrize(
    ("node", "is_relevant"),
    [
        (None, True),
        (new_node("n1"), False),
        (changed(resourceVersion="2"), False),
        (changed(labels={HOSTNAME: "other"}), True),
        (changed(annotations={keys.RECLAIM: keys.RECLAIM_NOW}), True),
        (changed(deletionTimestamp="2024-01-01T00:00:00Z"), True),
        (new_node("n1", unschedulable=True), True),
        ({**new_node("n1"), "spec": {"unschedulable": False, "taints": [{"key": "a", "effect": "NoSchedule"}]}}, True),
        ({**new_node("n1"), "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}}}, True),
        ({**new_node("n1"), "status": {**new_node("n1")["status"], "nodeInfo": {"kernelVersion": "6"}}}, False),
    ],
)
def test_relevant_changes_are_those_of_leases_and_matches(node: Object | None, is_relevant: bool) -> None:
    assert is_relevant_change(new_node("n1"), node) is is_relevant
    assert is_relevant_change(node, new_node("n1")) is is_relevant
