"""The bottom-up controllers of the syncer as a process between two real API servers.

Docstrings like "N1." name the scenario in the test list of Kubeocean.  docs/reference/compatibility.md describes the
intended differences.
"""

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, object_named, uid_of, value_at, version_of
from tapestry.kube.pods import taint_named
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CSI_NODES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from tapestry.kube.times import parse_time

from .bound_clusters import (
    LENT_TO,
    TAPESTRY,
    BoundClusters,
    allocatable_is,
    bound_clusters,
    has_deletion_timestamp,
    new_kubeconfig_secret,
    new_object,
    readiness,
    ready,
    tainted,
    untainted,
    wait_for_all,
    wait_for_exit,
    wait_until,
    wait_until_gone,
)
from .planes import Plane

# -- the process and its binding


async def test_ready_node_is_leased_as_a_virtual_node(clusters: BoundClusters) -> None:
    """S1, S2, N1."""
    node = await clusters.add_node(
        f"{clusters.name}-n1", labels={"zone": "east-1", "node-role.kubernetes.io/worker": ""}
    )
    await clusters.add_policy("all")
    with clusters.syncer():
        virtual_node = await clusters.wait_for_virtual_node(
            name_of(node), allocatable_is(cpu="4", memory="8Gi", pods="110")
        )
        binding = await clusters.wait_for_binding(lambda found: value_at(found, "status", "nodes") == 1)
    assert name_of(virtual_node) == f"vnode-{clusters.name}-{name_of(node)}"
    assert value_at(virtual_node, "status", "capacity") == value_at(virtual_node, "status", "allocatable")
    labels = labels_of(virtual_node)
    assert labels["zone"] == "east-1"
    assert "node-role.kubernetes.io/worker" not in labels
    assert labels[keys.CLUSTER_BINDING] == clusters.name
    assert labels[keys.CLUSTER_BINDING_UID] == uid_of(binding)
    assert labels[keys.PHYSICAL_NODE_NAME] == name_of(node)
    assert labels[keys.MANAGED_BY] == keys.TAPESTRY
    assert labels["kubernetes.io/hostname"] == name_of(virtual_node)
    assert taint_named(virtual_node, keys.VNODE_TAINT) == {"key": keys.VNODE_TAINT, "effect": "NoSchedule"}
    system = await clusters.physical.get(NAMESPACES, "kube-system")
    assert value_at(binding, "status", "identity") == uid_of(system)
    assert value_at(binding, "status", "leased", "cpu") == "4"
    assert keys.SYNCER_FINALIZER in binding["metadata"]["finalizers"]
    assert is_condition_true(binding, "Leasing")


def test_syncer_without_a_binding_exits_with_an_error(virtual_plane: Plane) -> None:
    """S3."""
    command = [TAPESTRY, "syncer", "--binding", "nobody", "--kubeconfig", virtual_plane.kubeconfig]
    done = subprocess.run([*command, "--metrics-bind-address", ""], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no ClusterBinding 'nobody'" in done.stderr


async def test_malformed_kubeconfig_withdraws_nothing_until_fixed(
    clusters: BoundClusters, physical_plane: Plane
) -> None:
    """S4.  The process keeps running and starts to work once the Secret is valid."""
    await clusters.add_node(f"{clusters.name}-n1")
    await clusters.add_policy("all")
    await clusters.set_kubeconfig("{")
    with clusters.syncer():
        await clusters.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        await clusters.set_kubeconfig(physical_plane.kubeconfig.read_text())
        await clusters.wait_for_virtual_node(f"{clusters.name}-n1")
        await clusters.set_kubeconfig("apiVersion: v1\nkind: Config\nclusters: 7\n")
        await clusters.add_node(f"{clusters.name}-n2")  # the last valid kubeconfig is still in use
        await clusters.wait_for_virtual_node(f"{clusters.name}-n2")
        await clusters.wait_for_virtual_node(f"{clusters.name}-n1", untainted(keys.WITHDRAWING_TAINT))


async def test_nothing_is_leased_without_a_policy(clusters: BoundClusters) -> None:
    await clusters.add_node(f"{clusters.name}-n1")
    with clusters.syncer():
        binding = await clusters.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        assert find_condition(value_at(binding, "status", "conditions"), "Leasing")["reason"] == "NoPolicy"
        assert value_at(binding, "status", "nodes") == 0
        await clusters.add_policy("all")
        await clusters.wait_for_virtual_node(f"{clusters.name}-n1")


async def test_unbinding_withdraws_everything_and_ends_the_process(
    virtual_plane: Plane, physical_plane: Plane, tmp_path: Path
) -> None:
    """S5."""
    async with bound_clusters(virtual_plane, physical_plane, tmp_path, unbindGraceSeconds=0) as clusters:
        node = f"{clusters.name}-n1"
        await clusters.add_node(node)
        await clusters.add_foreign_pod("online", node, ports=[{"containerPort": 80, "hostPort": 8080}])
        await clusters.add_policy("all")
        await clusters.add_policy("owners", below=True)
        with clusters.syncer() as process:
            await clusters.wait_for_virtual_node(node)
            await clusters.run_pod("work", node)
            await clusters.bind_pod("done", node)
            await clusters.wait_for_twin("done")
            await clusters.set_twin_status("done", phase="Succeeded")
            await clusters.wait_for_pod("done", lambda found: value_at(found, "status", "phase") == "Succeeded")
            await becomes_placeholder(clusters, node, {8080})
            await wait_until(clusters.virtual, LEASES, clusters.above(node), bool, NODE_LEASE_NAMESPACE)
            await clusters.wait_for_policy("owners", lambda found: value_at(found, "status", "nodes") == 1, below=True)
            await clusters.virtual.delete(CLUSTER_BINDINGS, object_named(clusters.name))
            reclaimed = await clusters.wait_for_pod("work", has_deletion_timestamp)
            assert is_condition_true(reclaimed, "DisruptionTarget")
            await clusters.wait_for_virtual_node(
                node, tainted(keys.WITHDRAWING_TAINT)
            )  # the node is deleted after its last pod
            await clusters.wait_for_twin("work", has_deletion_timestamp)
            await clusters.end_twin("work")
            await clusters.wait_until_virtual_node_is_gone(node)
            await wait_until_gone(clusters.virtual, LEASES, clusters.above(node), NODE_LEASE_NAMESPACE)
            await wait_until_gone(clusters.virtual, CLUSTER_BINDINGS, clusters.name)
            assert await wait_for_exit(process) == 0
        assert await placeholders(clusters, node) == []
        assert await clusters.physical.list(PODS, clusters.mount) == []
        owners = await clusters.wait_for_policy("owners", bool, below=True)
        assert value_at(owners, "status", "leases", default=[]) == []
        assert await clusters.physical.get(NODES, node), "nothing of the owner's is touched"


async def test_unbinding_does_not_wait_for_finished_pods(
    virtual_plane: Plane, physical_plane: Plane, tmp_path: Path
) -> None:
    async with bound_clusters(virtual_plane, physical_plane, tmp_path, unbindGraceSeconds=0) as clusters:
        await clusters.add_node(f"{clusters.name}-n1")
        await clusters.add_policy("all")
        with clusters.syncer():
            await clusters.wait_for_virtual_node(f"{clusters.name}-n1")
            pod = await clusters.bind_pod("done", f"{clusters.name}-n1")
            await clusters.virtual.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
            await clusters.virtual.delete(CLUSTER_BINDINGS, object_named(clusters.name))
            await wait_until_gone(clusters.virtual, CLUSTER_BINDINGS, clusters.name)
        assert not has_deletion_timestamp(await clusters.virtual.get(PODS, name_of(pod), "default"))


# -- arithmetic


async def test_foreign_pods_reduce_the_lease_and_policy_removal_withdraws(clusters: BoundClusters) -> None:
    """N3."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_foreign_pod("one", node, cpu="1", memory="2Gi")
    await clusters.add_foreign_pod("two", node, cpu="500m", memory="1Gi")
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2500m", memory="5Gi", pods="108"))
        await clusters.drop_foreign_pod("two")
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="3", memory="6Gi", pods="109"))
        await clusters.drop_policy("all")
        await clusters.wait_until_virtual_node_is_gone(node)


async def test_quantity_limits_the_lease(clusters: BoundClusters) -> None:
    """N4."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_foreign_pod("one", node, cpu="500m", memory="1Gi")
    await clusters.add_policy(
        "some", resourceLimits=[{"resource": "cpu", "quantity": "2"}, {"resource": "memory", "quantity": "4Gi"}]
    )
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2", memory="4Gi"))


async def test_more_generous_policy_wins_for_each_resource(clusters: BoundClusters) -> None:
    """N5 with our semantics: no label on the physical node, `policies-applied` on the virtual node."""
    node = f"{clusters.name}-n1"
    before = await clusters.add_node(node)
    await clusters.add_policy("a", resourceLimits=[{"resource": "cpu", "quantity": "1500m"}])
    await clusters.add_policy(
        "b", resourceLimits=[{"resource": "cpu", "quantity": "1"}, {"resource": "memory", "quantity": "3Gi"}]
    )
    with clusters.syncer():
        virtual_node = await clusters.wait_for_virtual_node(node, allocatable_is(cpu="1500m", memory="3Gi"))
        await clusters.wait_for_policy("b", lambda found: value_at(found, "status", "nodes") == 1)
    assert (
        annotations_of(virtual_node)[keys.POLICIES_APPLIED] == f"operator/{clusters.name}-a,operator/{clusters.name}-b"
    )
    assert version_of(await clusters.physical.get(NODES, node)) == version_of(before), (
        "physical nodes are never written"
    )


async def test_smaller_of_quantity_and_percent_wins(clusters: BoundClusters) -> None:
    """N6."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_foreign_pod("one", node, cpu="1", memory="2Gi")
    cpu = {"resource": "cpu", "quantity": "3", "percent": 50}
    memory = {"resource": "memory", "quantity": "2Gi", "percent": 75}
    await clusters.add_policy("some", resourceLimits=[cpu, memory])
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="1500m", memory="2Gi"))


async def test_owner_policy_limits_the_lease_and_reports_it(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    await clusters.add_policy("owners", below=True, resourceLimits=[{"resource": "cpu", "percent": 25}])
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="1", memory="8Gi"))
        policy = await clusters.wait_for_policy(
            "owners", lambda found: value_at(found, "status", "nodes") == 1, below=True
        )
    [lease] = policy["status"]["leases"]
    assert (lease["clusterBinding"], lease["nodes"], lease["leased"]["cpu"]) == (clusters.name, 1, "1")


# -- content of a virtual node


async def test_labels_taints_and_conditions_follow_the_physical_node(clusters: BoundClusters) -> None:
    """N9."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        taint = {"key": "gpu", "value": "a100", "effect": "NoExecute"}
        changed = {"metadata": {"labels": {"zone": "west"}}, "spec": {"taints": [taint]}}
        await clusters.physical.patch(NODES, object_named(node), changed)
        pressure = {"type": "DiskPressure", "status": "True", "reason": "Full", "lastTransitionTime": MOMENT}
        status = {"conditions": [ready("True"), pressure]}
        await clusters.physical.patch(NODES, object_named(node), {"status": status}, subresource="status")
        virtual_node = await clusters.wait_for_virtual_node(
            node, lambda found: is_condition_true(found, "DiskPressure") and labels_of(found).get("zone") == "west"
        )
        # NoExecute of the owner becomes NoSchedule on the virtual node
        assert taint_named(virtual_node, "gpu") == {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
        await clusters.physical.patch(
            NODES, object_named(node), {"metadata": {"labels": {"zone": None}}, "spec": {"taints": []}}
        )
        await clusters.wait_for_virtual_node(
            node, lambda found: "zone" not in labels_of(found) and untainted("gpu")(found)
        )


async def test_user_changes_on_a_virtual_node_survive(clusters: BoundClusters) -> None:
    """N10."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node, labels={"zone": "east"})
    await clusters.add_policy("all")
    with clusters.syncer():
        virtual_node = await clusters.wait_for_virtual_node(node)
        taints = [*virtual_node["spec"]["taints"], {"key": "team", "value": "a", "effect": "NoSchedule"}]
        edit = {
            "metadata": {"labels": {"team": "a", "zone": "mine"}, "annotations": {"note": "ours"}},
            "spec": {"taints": taints},
        }
        await clusters.virtual.patch(NODES, virtual_node, edit)
        await clusters.physical.patch(NODES, object_named(node), {"metadata": {"labels": {"rack": "7"}}, "spec": SHUT})
        virtual_node = await clusters.wait_for_virtual_node(
            node, lambda found: "rack" in labels_of(found) and tainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT)(found)
        )
    assert (labels_of(virtual_node)["team"], labels_of(virtual_node)["zone"]) == ("a", "mine")
    assert annotations_of(virtual_node)["note"] == "ours"
    assert taint_named(virtual_node, "team") == {"key": "team", "value": "a", "effect": "NoSchedule"}


async def test_cordon_of_the_physical_node_reaches_the_virtual_node(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.physical.patch(NODES, object_named(node), {"spec": SHUT})
        await clusters.wait_for_virtual_node(node, tainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT))
        await clusters.physical.patch(NODES, object_named(node), {"spec": {"unschedulable": None}})
        await clusters.wait_for_virtual_node(node, untainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT))


async def test_csi_drivers_follow_the_physical_node(clusters: BoundClusters) -> None:
    """N19."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.physical.create(CSI_NODES, new_csi_node(node, "disk.example.com"))
    await clusters.add_policy("all")
    with clusters.syncer():
        csi_node = await wait_until(clusters.virtual, CSI_NODES, clusters.above(node), bool)
        assert csi_node["spec"]["drivers"] == new_csi_node(node, "disk.example.com")["spec"]["drivers"]
        assert annotations_of(csi_node)[keys.PHYSICAL_NODE_NAME] == node
        driver = new_csi_node(node, "files.example.com")["spec"]
        await clusters.physical.patch(CSI_NODES, object_named(node), {"spec": driver})
        await wait_until(
            clusters.virtual, CSI_NODES, clusters.above(node), lambda found: drivers_of(found) == ["files.example.com"]
        )
    await clusters.physical.delete(CSI_NODES, object_named(node))  # while the syncer is down
    with clusters.syncer():
        await wait_until_gone(clusters.virtual, CSI_NODES, clusters.above(node))
        await clusters.physical.create(CSI_NODES, new_csi_node(node, "disk.example.com"))
        await wait_until(clusters.virtual, CSI_NODES, clusters.above(node), bool)
        await clusters.physical.delete(NODES, object_named(node))
        await clusters.wait_until_virtual_node_is_gone(node)
        await wait_until_gone(clusters.virtual, CSI_NODES, clusters.above(node))  # although the physical object remains
    assert await clusters.physical.get(CSI_NODES, node)


async def test_placeholder_pod_holds_host_ports_of_foreign_pods(clusters: BoundClusters) -> None:
    """H1."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_foreign_pod("web", node, ports=[host_port(80), host_port(443), host_port(53, "UDP")])
    await clusters.add_foreign_pod("dns", node, ports=[host_port(53, "TCP"), host_port(53, "UDP", "10.0.0.1")])
    await clusters.add_foreign_pod("plain", node, cpu="1")
    await clusters.add_policy("all")
    with clusters.syncer():
        pod = await becomes_placeholder(clusters, node, {80, 443, 53})
        taken = {(each["hostIP"], each["hostPort"], each["protocol"]) for each in ports_of(pod)}
        assert taken == {
            ("0.0.0.0", 80, "TCP"),
            ("0.0.0.0", 443, "TCP"),
            ("0.0.0.0", 53, "TCP"),
            ("0.0.0.0", 53, "UDP"),
            ("10.0.0.1", 53, "UDP"),
        }
        assert pod["spec"]["tolerations"][0] == {"operator": "Exists"}
        await clusters.bind_pod("ours", node, ports=[host_port(9000)])  # the scheduler knows our own pods
        await clusters.add_foreign_pod("new", node, ports=[host_port(8443)])
        await becomes_placeholder(clusters, node, {80, 443, 53, 8443})
        await clusters.drop_foreign_pod("dns")
    await clusters.drop_foreign_pod("web")  # while the syncer is down
    with clusters.syncer():
        await becomes_placeholder(clusters, node, {8443})
        await clusters.drop_foreign_pod("new")
        await becomes_placeholder(clusters, node, set())
        await clusters.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))


# -- heartbeats


async def test_idle_syncer_writes_only_leases(clusters: BoundClusters) -> None:
    """N11.  N12 with our semantics: the physical cluster answers, so leases of unready nodes are renewed."""
    nodes = [f"{clusters.name}-n{number}" for number in range(3)]
    for node in nodes:
        await clusters.add_node(node)
        await clusters.add_foreign_pod(f"on-{node}", node, ports=[host_port(80)], cpu="1")
    await clusters.add_policy("all")
    await clusters.add_policy("owners", below=True)
    with clusters.syncer():
        for node in nodes:
            await clusters.wait_for_virtual_node(node, allocatable_is(cpu="3"))
            await becomes_placeholder(clusters, node, {80})
        status = {"conditions": [ready("False")]}
        await clusters.physical.patch(NODES, object_named(nodes[0]), {"status": status}, subresource="status")
        virtual_node = await clusters.wait_for_virtual_node(nodes[0], lambda found: readiness(found) == "False")
        first = await wait_until(clusters.virtual, LEASES, clusters.above(nodes[0]), bool, NODE_LEASE_NAMESPACE)
        assert first["spec"]["holderIdentity"] == name_of(virtual_node)
        [owner] = first["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", name_of(virtual_node), uid_of(virtual_node))
        second = await renewed(clusters, nodes[0], first)
        writes_before = len(clusters.writes())
        await renewed(clusters, nodes[0], second)
    since = clusters.writes()[writes_before:]
    assert [write for write in since if write["resource"] == LEASES.name and write["verb"] == "replace"]
    assert [write for write in since if write["resource"] != LEASES.name] == []


# -- withdrawal


async def test_unselected_node_is_withdrawn(clusters: BoundClusters) -> None:
    """N2."""
    one, two = f"{clusters.name}-n1", f"{clusters.name}-n2"
    await clusters.add_node(one)
    await clusters.add_node(two, labels={"pool": "spare"})
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(one)
        await clusters.wait_for_virtual_node(two)
        ours = {"key": LENT_TO, "operator": "In", "values": [clusters.name]}
        spare = {"key": "pool", "operator": "In", "values": ["spare"]}
        await clusters.set_binding(nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [ours, spare]}]})
        await clusters.wait_until_virtual_node_is_gone(one)
        await clusters.physical.patch(NODES, object_named(two), {"metadata": {"labels": {"pool": "busy"}}})
        await clusters.wait_until_virtual_node_is_gone(two)
        await clusters.physical.patch(NODES, object_named(two), {"metadata": {"labels": {"pool": "spare"}}})
        await clusters.wait_for_virtual_node(two)


async def test_pods_of_a_withdrawn_node_finish_without_force(clusters: BoundClusters) -> None:
    """N13, N14, N15 without force."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node)
        await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await clusters.drop_policy("all")
        virtual_node = await clusters.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        assert taint_named(virtual_node, keys.WITHDRAWING_TAINT)["effect"] == "NoSchedule"
        # The binding status follows a second later: enough time to delete a pod by mistake.
        await clusters.wait_for_binding(
            lambda found: find_condition(found["status"]["conditions"], "Leasing")["reason"] == "NoPolicy"
        )
        assert not has_deletion_timestamp(await clusters.wait_for_pod("work", bool))
        assert not has_deletion_timestamp(await clusters.wait_for_twin("work"))
        await clusters.set_twin_status("work", phase="Succeeded")
        await clusters.wait_until_virtual_node_is_gone(node)


async def test_pods_of_a_withdrawn_node_leave_on_lease_terms(clusters: BoundClusters) -> None:
    """N13 and N15 with force."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all", forceReclaim=True, gracefulReclaimPeriodSeconds=2)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node)
        await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await clusters.drop_policy("all")
        virtual_node = await clusters.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        reclaimed = await clusters.wait_for_pod("work", has_deletion_timestamp)
        since = parse_time(taint_named(virtual_node, keys.WITHDRAWING_TAINT)["timeAdded"])
        mark = find_condition(reclaimed["status"]["conditions"], "DisruptionTarget")
        assert 2 <= (parse_time(mark["lastTransitionTime"]) - since).total_seconds() <= 10
        await clusters.wait_for_twin("work", has_deletion_timestamp)
        await clusters.end_twin("work")
        await clusters.wait_until_virtual_node_is_gone(node)


async def test_policy_restored_in_time_keeps_the_node(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await clusters.drop_policy("all")
        await clusters.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        await clusters.add_policy("other")
        await clusters.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))
        assert not has_deletion_timestamp(await clusters.wait_for_pod("work", bool))


async def test_deleted_node_loses_pods_and_recreated_node_is_new(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    with clusters.syncer():
        first = await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node)
        await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await clusters.physical.delete(NODES, object_named(node))
        second = await clusters.add_node(node, cpu="2")
        await clusters.wait_for_pod("work", has_deletion_timestamp)
        await clusters.wait_for_twin("work", has_deletion_timestamp)
        await clusters.end_twin("work")
        virtual_node = await clusters.wait_for_virtual_node(node, lambda found: uid_of(found) != uid_of(first))
        assert annotations_of(virtual_node)[keys.PHYSICAL_NODE_UID] == uid_of(second)
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2"))


async def test_node_deleted_while_syncer_is_down_is_withdrawn(clusters: BoundClusters) -> None:
    one, two = f"{clusters.name}-n1", f"{clusters.name}-n2"
    await clusters.add_node(one)
    await clusters.add_node(two)
    await clusters.add_policy("all")
    with clusters.syncer():
        await clusters.wait_for_virtual_node(one)
        await clusters.wait_for_virtual_node(two)
    await clusters.physical.delete(NODES, object_named(one))
    with clusters.syncer():
        await clusters.wait_until_virtual_node_is_gone(one)
        await clusters.wait_for_virtual_node(two, untainted(keys.WITHDRAWING_TAINT))


@pytest.mark.parametrize("switch", ["node", "mount namespace"])
async def test_kill_switch_empties_nodes_within_two_seconds(clusters: BoundClusters, switch: str) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")  # whatever the policy says
    resource, target = (NODES, object_named(node)) if switch == "node" else (NAMESPACES, object_named(clusters.mount))
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        for name in ("one", "two"):
            await clusters.run_pod(name, node, tolerations=[{"operator": "Exists"}])
        await clusters.wait_for_binding(lambda found: value_at(found, "status", "pods") == 2)
        async with asyncio.TaskGroup() as group:  # all at once, because the requests of the test take time too
            leaving = [
                group.create_task(clusters.wait_for_pod(name, has_deletion_timestamp)) for name in ("one", "two")
            ]
            for name in ("one", "two"):
                group.create_task(clusters.wait_for_twin(name, has_deletion_timestamp))
            began = time.monotonic()
            await clusters.physical.patch(
                resource, target, {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
            )
        assert time.monotonic() - began < 2
        assert all(is_condition_true(each.result(), "DisruptionTarget") for each in leaving)
        for name in ("one", "two"):
            await clusters.end_twin(name)
            await clusters.wait_until_pod_is_gone(name)
        await clusters.wait_for_virtual_node(node, tainted(keys.OUT_OF_TIME_WINDOWS_TAINT))
        await clusters.physical.patch(resource, target, {"metadata": {"annotations": {keys.RECLAIM: None}}})
        await clusters.wait_for_virtual_node(node, untainted(keys.OUT_OF_TIME_WINDOWS_TAINT))


async def test_missing_required_owner_policy_withdraws_nodes(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    await clusters.add_policy("owners", below=True)
    mark = {"metadata": {"labels": {keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED}}}
    await clusters.physical.patch(NAMESPACES, object_named(clusters.mount), mark)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.drop_policy("owners", below=True)
        await clusters.wait_until_virtual_node_is_gone(node)
        await clusters.physical.patch(
            NAMESPACES, object_named(clusters.mount), {"metadata": {"labels": {keys.OWNER_POLICY: None}}}
        )
        await clusters.wait_for_virtual_node(node)


async def test_invalid_policy_evicts_no_pod(clusters: BoundClusters) -> None:
    """A schema cannot list time zones, so only the syncer detects an unknown one."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("night", forceReclaim=True, resourceLimits=[{"resource": "cpu", "quantity": "2"}])
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2"))
        await clusters.bind_pod("work", node)
        await clusters.wait_for_policy("night", lambda found: is_condition_true(found, "Valid"))
        wrong = {"timeWindows": [{"start": "00:00", "end": "00:01"}], "timeZone": "Mars/Olympus"}
        await clusters.set_policy("night", **wrong)
        policy = await clusters.wait_for_policy("night", lambda found: not is_condition_true(found, "Valid"))
        assert "spec.timeZone" in find_condition(policy["status"]["conditions"], "Valid")["message"]
        await clusters.add_foreign_pod("one", node, cpu="3")  # a syncer that has seen this pod has seen the policy
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="1"))
        await clusters.wait_for_virtual_node(node, untainted(keys.OUT_OF_TIME_WINDOWS_TAINT))
        assert not has_deletion_timestamp(await clusters.wait_for_pod("work", bool))
    with clusters.syncer():  # the next process knows the last valid spec too
        await clusters.drop_foreign_pod("one")
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2"))
        assert not has_deletion_timestamp(await clusters.wait_for_pod("work", bool))


# -- credentials and cluster identity


async def test_expired_credentials_withdraw_nothing_and_new_ones_are_used(
    clusters: BoundClusters, physical_plane: Plane
) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    account = new_object("ServiceAccount", {"name": clusters.name, "namespace": "default"})
    await clusters.physical.create(SERVICE_ACCOUNTS, account)
    await clusters.physical.create(CLUSTER_ROLE_BINDINGS, new_administrator(clusters.name))
    token = (await clusters.physical.request_token(clusters.name, "default"))["token"]
    admins = physical_plane.kubeconfig.read_text()
    await clusters.set_kubeconfig(admins.replace(physical_plane.token, token))
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.physical.delete(SERVICE_ACCOUNTS, object_named(clusters.name, "default"))  # and its token
        await clusters.add_node(f"{clusters.name}-n2")
        await clusters.set_kubeconfig(admins)
        await clusters.wait_for_virtual_node(f"{clusters.name}-n2")
        await clusters.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))
        assert readiness(await clusters.wait_for_virtual_node(node)) == "True"


async def test_new_secret_is_used_once_the_binding_names_it(clusters: BoundClusters, physical_plane: Plane) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    await clusters.set_kubeconfig("{")
    other = f"{clusters.name}-other"
    await clusters.virtual.create(SECRETS, new_kubeconfig_secret(other, physical_plane.kubeconfig.read_text()))
    with clusters.syncer():
        await clusters.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        await clusters.set_binding(secretRef={"name": other, "namespace": keys.SYSTEM_NAMESPACE})
        await clusters.wait_for_virtual_node(node)


async def test_safety_rule_5_another_cluster_is_refused_until_approved(
    clusters: BoundClusters, third_plane: Plane, tmp_path: Path
) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    async with bound_clusters(third_plane, third_plane, tmp_path) as elsewhere:
        there = await elsewhere.add_node(f"{clusters.name}-n7", labels={LENT_TO: clusters.name})
        with clusters.syncer():
            await clusters.wait_for_virtual_node(node)
            await clusters.set_kubeconfig(third_plane.kubeconfig.read_text())
            await event(clusters, "IdentityChanged")
            await clusters.add_node(f"{clusters.name}-n2")
            await clusters.wait_for_virtual_node(f"{clusters.name}-n2")  # the first cluster stays in use
            found = uid_of(await elsewhere.physical.get(NAMESPACES, "kube-system"))
            approval = {"metadata": {"annotations": {keys.APPROVE_IDENTITY: found}}}
            await clusters.virtual.patch(CLUSTER_BINDINGS, object_named(clusters.name), approval)
            await clusters.wait_for_virtual_node(name_of(there))
            await clusters.wait_until_virtual_node_is_gone(node)
            await clusters.wait_until_virtual_node_is_gone(f"{clusters.name}-n2")
            assert value_at(await clusters.wait_for_binding(bool), "status", "identity") == found


async def test_virtual_clusters_on_one_physical_cluster_stay_separate(
    clusters: BoundClusters, third_plane: Plane, physical_plane: Plane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both use the same cluster name, mount namespace and owner policy."""
    node, folder = f"{clusters.name}-n1", tmp_path_factory.mktemp("other")
    await clusters.add_node(node)
    await clusters.add_policy("half", resourceLimits=[{"resource": "cpu", "percent": 50}])
    await clusters.add_policy("owners", below=True)
    async with bound_clusters(third_plane, physical_plane, folder, name=clusters.name) as other:
        await other.add_policy("quarter", resourceLimits=[{"resource": "cpu", "percent": 25}])
        with clusters.syncer(), other.syncer():
            await clusters.wait_for_virtual_node(node, allocatable_is(cpu="2"))
            await other.wait_for_virtual_node(node, allocatable_is(cpu="1"))
            policy = await clusters.wait_for_policy(
                "owners", lambda found: value_at(found, "status", "nodes") == 2, below=True
            )
            assert sorted(lease["leased"]["cpu"] for lease in policy["status"]["leases"]) == ["1", "2"]
            assert policy["status"]["leased"]["cpu"] == "3"
            await other.bind_pod("work", node)
            await other.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
            await clusters.virtual.delete(CLUSTER_BINDINGS, object_named(clusters.name))
            await wait_until_gone(clusters.virtual, CLUSTER_BINDINGS, clusters.name)
            assert not has_deletion_timestamp(await other.wait_for_pod("work", bool))
            policy = await clusters.wait_for_policy(
                "owners", lambda found: value_at(found, "status", "nodes") == 1, below=True
            )
            assert [lease["leased"]["cpu"] for lease in policy["status"]["leases"]] == ["1"]
            await clusters.physical.patch(NODES, object_named(node), {"metadata": {"labels": {"seen": "yes"}}})
            virtual_node = await other.wait_for_virtual_node(node, lambda found: labels_of(found).get("seen") == "yes")
            assert untainted(keys.WITHDRAWING_TAINT)(virtual_node)


# -- test objects and predicates

MOMENT = "2026-01-01T00:00:00Z"
SHUT = {"unschedulable": True}


def host_port(number: int, protocol: str = "TCP", address: str = "") -> Object:
    port: dict[str, Any] = {"containerPort": number, "hostPort": number, "protocol": protocol}
    return {**port, "hostIP": address} if address else port


def new_csi_node(node: str, driver: str) -> Object:
    found = {"name": driver, "nodeID": f"id-of-{node}", "topologyKeys": ["zone"], "allocatable": {"count": 7}}
    return new_object("CSINode", {"name": node}, CSI_NODES.api_version, spec={"drivers": [found]})


def drivers_of(csi_node: Object) -> list[str]:
    return [driver["name"] for driver in csi_node["spec"]["drivers"]]


def new_administrator(account: str) -> Object:
    return new_object(
        "ClusterRoleBinding",
        {"name": account},
        CLUSTER_ROLE_BINDINGS.api_version,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
    )


async def becomes_placeholder(clusters: BoundClusters, node: str, ports: set[int]) -> Object:
    """Wait until one placeholder on the virtual node holds `ports`, or until none exists if there are no ports."""

    def holds(pods: list[Object]) -> bool:
        return len(pods) == bool(ports) and {port["hostPort"] for pod in pods for port in ports_of(pod)} == ports

    where = {"labels": keys.HOST_PORTS, "fields": f"spec.nodeName={clusters.above(node)}"}
    found = await wait_for_all(clusters.virtual, PODS, keys.HOST_PORTS_NAMESPACE, holds, **where)
    return found[0] if found else {}


async def placeholders(clusters: BoundClusters, node: str) -> list[Object]:
    fields = f"spec.nodeName={clusters.above(node)}"
    return await clusters.virtual.list(PODS, keys.HOST_PORTS_NAMESPACE, labels=keys.HOST_PORTS, fields=fields)


async def renewed(clusters: BoundClusters, node: str, lease: Object) -> Object:
    """Wait for the next renewal of the node Lease and return it."""
    before = lease["spec"]["renewTime"]
    return await wait_until(
        clusters.virtual,
        LEASES,
        clusters.above(node),
        lambda found: found["spec"]["renewTime"] > before,
        NODE_LEASE_NAMESPACE,
    )


async def event(clusters: BoundClusters, reason: str) -> Object:
    """Wait for an event about the binding and return it."""
    fields = f"involvedObject.name={clusters.name},reason={reason}"
    return (await wait_for_all(clusters.virtual, EVENTS, None, bool, fields=fields))[0]


def ports_of(pod: Object) -> list[Object]:
    return [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
