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
    bound_clusters,
    has_deletion_timestamp,
    lends,
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


async def test_ready_node_is_leased_as_a_virtual_node(site: BoundClusters) -> None:
    """S1, S2, N1."""
    node = await site.add_node(f"{site.name}-n1", labels={"zone": "east-1", "node-role.kubernetes.io/worker": ""})
    await site.add_policy("all")
    with site.syncer():
        virtual_node = await site.wait_for_virtual_node(name_of(node), lends(cpu="4", memory="8Gi", pods="110"))
        binding = await site.wait_for_binding(lambda found: value_at(found, "status", "nodes") == 1)
    assert name_of(virtual_node) == f"vnode-{site.name}-{name_of(node)}"
    assert value_at(virtual_node, "status", "capacity") == value_at(virtual_node, "status", "allocatable")
    labels = labels_of(virtual_node)
    assert labels["zone"] == "east-1"
    assert "node-role.kubernetes.io/worker" not in labels
    assert labels[keys.CLUSTER_BINDING] == site.name
    assert labels[keys.CLUSTER_BINDING_UID] == uid_of(binding)
    assert labels[keys.PHYSICAL_NODE_NAME] == name_of(node)
    assert labels[keys.MANAGED_BY] == keys.TAPESTRY
    assert labels["kubernetes.io/hostname"] == name_of(virtual_node)
    assert taint_named(virtual_node, keys.VNODE_TAINT) == {"key": keys.VNODE_TAINT, "effect": "NoSchedule"}
    system = await site.physical.get(NAMESPACES, "kube-system")
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


async def test_malformed_kubeconfig_withdraws_nothing_until_fixed(site: BoundClusters, physical_plane: Plane) -> None:
    """S4.  The process keeps running and starts to work once the Secret is valid."""
    await site.add_node(f"{site.name}-n1")
    await site.add_policy("all")
    await site.set_kubeconfig("{")
    with site.syncer():
        await site.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        await site.set_kubeconfig(physical_plane.kubeconfig.read_text())
        await site.wait_for_virtual_node(f"{site.name}-n1")
        await site.set_kubeconfig("apiVersion: v1\nkind: Config\nclusters: 7\n")
        await site.add_node(f"{site.name}-n2")  # the last valid kubeconfig is still in use
        await site.wait_for_virtual_node(f"{site.name}-n2")
        await site.wait_for_virtual_node(f"{site.name}-n1", untainted(keys.WITHDRAWING_TAINT))


async def test_nothing_is_leased_without_a_policy(site: BoundClusters) -> None:
    await site.add_node(f"{site.name}-n1")
    with site.syncer():
        binding = await site.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        assert find_condition(value_at(binding, "status", "conditions"), "Leasing")["reason"] == "NoPolicy"
        assert value_at(binding, "status", "nodes") == 0
        await site.add_policy("all")
        await site.wait_for_virtual_node(f"{site.name}-n1")


async def test_unbinding_withdraws_everything_and_ends_the_process(
    virtual_plane: Plane, physical_plane: Plane, tmp_path: Path
) -> None:
    """S5."""
    async with bound_clusters(virtual_plane, physical_plane, tmp_path, unbindGraceSeconds=0) as site:
        node = f"{site.name}-n1"
        await site.add_node(node)
        await site.add_foreign_pod("online", node, ports=[{"containerPort": 80, "hostPort": 8080}])
        await site.add_policy("all")
        await site.add_policy("owners", below=True)
        with site.syncer() as process:
            await site.wait_for_virtual_node(node)
            await site.run_pod("work", node)
            await site.bind_pod("done", node)
            await site.wait_for_twin("done")
            await site.set_twin_status("done", phase="Succeeded")
            await site.wait_for_pod("done", lambda found: value_at(found, "status", "phase") == "Succeeded")
            await becomes_placeholder(site, node, {8080})
            await wait_until(site.virtual, LEASES, site.above(node), bool, NODE_LEASE_NAMESPACE)
            await site.wait_for_policy("owners", lambda found: value_at(found, "status", "nodes") == 1, below=True)
            await site.virtual.delete(CLUSTER_BINDINGS, object_named(site.name))
            reclaimed = await site.wait_for_pod("work", has_deletion_timestamp)
            assert is_condition_true(reclaimed, "DisruptionTarget")
            await site.wait_for_virtual_node(
                node, tainted(keys.WITHDRAWING_TAINT)
            )  # the node is deleted after its last pod
            await site.wait_for_twin("work", has_deletion_timestamp)
            await site.end_twin("work")
            await site.wait_until_virtual_node_is_gone(node)
            await wait_until_gone(site.virtual, LEASES, site.above(node), NODE_LEASE_NAMESPACE)
            await wait_until_gone(site.virtual, CLUSTER_BINDINGS, site.name)
            assert await wait_for_exit(process) == 0
        assert await placeholders(site, node) == []
        assert await site.physical.list(PODS, site.mount) == []
        owners = await site.wait_for_policy("owners", bool, below=True)
        assert value_at(owners, "status", "leases", default=[]) == []
        assert await site.physical.get(NODES, node), "nothing of the owner's is touched"


async def test_unbinding_does_not_wait_for_finished_pods(
    virtual_plane: Plane, physical_plane: Plane, tmp_path: Path
) -> None:
    async with bound_clusters(virtual_plane, physical_plane, tmp_path, unbindGraceSeconds=0) as site:
        await site.add_node(f"{site.name}-n1")
        await site.add_policy("all")
        with site.syncer():
            await site.wait_for_virtual_node(f"{site.name}-n1")
            pod = await site.bind_pod("done", f"{site.name}-n1")
            await site.virtual.patch(PODS, pod, {"status": {"phase": "Succeeded"}}, subresource="status")
            await site.virtual.delete(CLUSTER_BINDINGS, object_named(site.name))
            await wait_until_gone(site.virtual, CLUSTER_BINDINGS, site.name)
        assert not has_deletion_timestamp(await site.virtual.get(PODS, name_of(pod), "default"))


# -- arithmetic


async def test_foreign_pods_reduce_the_lease_and_policy_removal_withdraws(site: BoundClusters) -> None:
    """N3."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_foreign_pod("one", node, cpu="1", memory="2Gi")
    await site.add_foreign_pod("two", node, cpu="500m", memory="1Gi")
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node, lends(cpu="2500m", memory="5Gi", pods="108"))
        await site.drop_foreign_pod("two")
        await site.wait_for_virtual_node(node, lends(cpu="3", memory="6Gi", pods="109"))
        await site.drop_policy("all")
        await site.wait_until_virtual_node_is_gone(node)


async def test_quantity_limits_the_lease(site: BoundClusters) -> None:
    """N4."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_foreign_pod("one", node, cpu="500m", memory="1Gi")
    await site.add_policy(
        "some", resourceLimits=[{"resource": "cpu", "quantity": "2"}, {"resource": "memory", "quantity": "4Gi"}]
    )
    with site.syncer():
        await site.wait_for_virtual_node(node, lends(cpu="2", memory="4Gi"))


async def test_more_generous_policy_wins_for_each_resource(site: BoundClusters) -> None:
    """N5 with our semantics: no label on the physical node, `policies-applied` on the virtual node."""
    node = f"{site.name}-n1"
    before = await site.add_node(node)
    await site.add_policy("a", resourceLimits=[{"resource": "cpu", "quantity": "1500m"}])
    await site.add_policy(
        "b", resourceLimits=[{"resource": "cpu", "quantity": "1"}, {"resource": "memory", "quantity": "3Gi"}]
    )
    with site.syncer():
        virtual_node = await site.wait_for_virtual_node(node, lends(cpu="1500m", memory="3Gi"))
        await site.wait_for_policy("b", lambda found: value_at(found, "status", "nodes") == 1)
    assert annotations_of(virtual_node)[keys.POLICIES_APPLIED] == f"operator/{site.name}-a,operator/{site.name}-b"
    assert version_of(await site.physical.get(NODES, node)) == version_of(before), "physical nodes are never written"


async def test_smaller_of_quantity_and_percent_wins(site: BoundClusters) -> None:
    """N6."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_foreign_pod("one", node, cpu="1", memory="2Gi")
    cpu = {"resource": "cpu", "quantity": "3", "percent": 50}
    memory = {"resource": "memory", "quantity": "2Gi", "percent": 75}
    await site.add_policy("some", resourceLimits=[cpu, memory])
    with site.syncer():
        await site.wait_for_virtual_node(node, lends(cpu="1500m", memory="2Gi"))


async def test_owner_policy_limits_the_lease_and_reports_it(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    await site.add_policy("owners", below=True, resourceLimits=[{"resource": "cpu", "percent": 25}])
    with site.syncer():
        await site.wait_for_virtual_node(node, lends(cpu="1", memory="8Gi"))
        policy = await site.wait_for_policy("owners", lambda found: value_at(found, "status", "nodes") == 1, below=True)
    [lease] = policy["status"]["leases"]
    assert (lease["clusterBinding"], lease["nodes"], lease["leased"]["cpu"]) == (site.name, 1, "1")


# -- content of a virtual node


async def test_labels_taints_and_conditions_follow_the_physical_node(site: BoundClusters) -> None:
    """N9."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node)
        taint = {"key": "gpu", "value": "a100", "effect": "NoExecute"}
        changed = {"metadata": {"labels": {"zone": "west"}}, "spec": {"taints": [taint]}}
        await site.physical.patch(NODES, object_named(node), changed)
        pressure = {"type": "DiskPressure", "status": "True", "reason": "Full", "lastTransitionTime": MOMENT}
        status = {"conditions": [ready("True"), pressure]}
        await site.physical.patch(NODES, object_named(node), {"status": status}, subresource="status")
        virtual_node = await site.wait_for_virtual_node(
            node, lambda found: is_condition_true(found, "DiskPressure") and labels_of(found).get("zone") == "west"
        )
        # NoExecute of the owner becomes NoSchedule on the virtual node
        assert taint_named(virtual_node, "gpu") == {"key": "gpu", "value": "a100", "effect": "NoSchedule"}
        await site.physical.patch(
            NODES, object_named(node), {"metadata": {"labels": {"zone": None}}, "spec": {"taints": []}}
        )
        await site.wait_for_virtual_node(node, lambda found: "zone" not in labels_of(found) and untainted("gpu")(found))


async def test_user_changes_on_a_virtual_node_survive(site: BoundClusters) -> None:
    """N10."""
    node = f"{site.name}-n1"
    await site.add_node(node, labels={"zone": "east"})
    await site.add_policy("all")
    with site.syncer():
        virtual_node = await site.wait_for_virtual_node(node)
        taints = [*virtual_node["spec"]["taints"], {"key": "team", "value": "a", "effect": "NoSchedule"}]
        edit = {
            "metadata": {"labels": {"team": "a", "zone": "mine"}, "annotations": {"note": "ours"}},
            "spec": {"taints": taints},
        }
        await site.virtual.patch(NODES, virtual_node, edit)
        await site.physical.patch(NODES, object_named(node), {"metadata": {"labels": {"rack": "7"}}, "spec": SHUT})
        virtual_node = await site.wait_for_virtual_node(
            node, lambda found: "rack" in labels_of(found) and tainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT)(found)
        )
    assert (labels_of(virtual_node)["team"], labels_of(virtual_node)["zone"]) == ("a", "mine")
    assert annotations_of(virtual_node)["note"] == "ours"
    assert taint_named(virtual_node, "team") == {"key": "team", "value": "a", "effect": "NoSchedule"}


async def test_cordon_of_the_physical_node_reaches_the_virtual_node(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.physical.patch(NODES, object_named(node), {"spec": SHUT})
        await site.wait_for_virtual_node(node, tainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT))
        await site.physical.patch(NODES, object_named(node), {"spec": {"unschedulable": None}})
        await site.wait_for_virtual_node(node, untainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT))


async def test_csi_drivers_follow_the_physical_node(site: BoundClusters) -> None:
    """N19."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.physical.create(CSI_NODES, new_csi_node(node, "disk.example.com"))
    await site.add_policy("all")
    with site.syncer():
        csi_node = await wait_until(site.virtual, CSI_NODES, site.above(node), bool)
        assert csi_node["spec"]["drivers"] == new_csi_node(node, "disk.example.com")["spec"]["drivers"]
        assert annotations_of(csi_node)[keys.PHYSICAL_NODE_NAME] == node
        driver = new_csi_node(node, "files.example.com")["spec"]
        await site.physical.patch(CSI_NODES, object_named(node), {"spec": driver})
        await wait_until(
            site.virtual, CSI_NODES, site.above(node), lambda found: drivers_of(found) == ["files.example.com"]
        )
    await site.physical.delete(CSI_NODES, object_named(node))  # while the syncer is down
    with site.syncer():
        await wait_until_gone(site.virtual, CSI_NODES, site.above(node))
        await site.physical.create(CSI_NODES, new_csi_node(node, "disk.example.com"))
        await wait_until(site.virtual, CSI_NODES, site.above(node), bool)
        await site.physical.delete(NODES, object_named(node))
        await site.wait_until_virtual_node_is_gone(node)
        await wait_until_gone(site.virtual, CSI_NODES, site.above(node))  # although the physical object remains
    assert await site.physical.get(CSI_NODES, node)


async def test_placeholder_pod_holds_host_ports_of_foreign_pods(site: BoundClusters) -> None:
    """H1."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_foreign_pod("web", node, ports=[host_port(80), host_port(443), host_port(53, "UDP")])
    await site.add_foreign_pod("dns", node, ports=[host_port(53, "TCP"), host_port(53, "UDP", "10.0.0.1")])
    await site.add_foreign_pod("plain", node, cpu="1")
    await site.add_policy("all")
    with site.syncer():
        pod = await becomes_placeholder(site, node, {80, 443, 53})
        taken = {(each["hostIP"], each["hostPort"], each["protocol"]) for each in ports_of(pod)}
        assert taken == {
            ("0.0.0.0", 80, "TCP"),
            ("0.0.0.0", 443, "TCP"),
            ("0.0.0.0", 53, "TCP"),
            ("0.0.0.0", 53, "UDP"),
            ("10.0.0.1", 53, "UDP"),
        }
        assert pod["spec"]["tolerations"][0] == {"operator": "Exists"}
        await site.bind_pod("ours", node, ports=[host_port(9000)])  # the scheduler knows our own pods
        await site.add_foreign_pod("new", node, ports=[host_port(8443)])
        await becomes_placeholder(site, node, {80, 443, 53, 8443})
        await site.drop_foreign_pod("dns")
    await site.drop_foreign_pod("web")  # while the syncer is down
    with site.syncer():
        await becomes_placeholder(site, node, {8443})
        await site.drop_foreign_pod("new")
        await becomes_placeholder(site, node, set())
        await site.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))


# -- heartbeats


async def test_idle_syncer_writes_only_leases(site: BoundClusters) -> None:
    """N11.  N12 with our semantics: the physical cluster answers, so leases of unready nodes are renewed."""
    nodes = [f"{site.name}-n{number}" for number in range(3)]
    for node in nodes:
        await site.add_node(node)
        await site.add_foreign_pod(f"on-{node}", node, ports=[host_port(80)], cpu="1")
    await site.add_policy("all")
    await site.add_policy("owners", below=True)
    with site.syncer():
        for node in nodes:
            await site.wait_for_virtual_node(node, lends(cpu="3"))
            await becomes_placeholder(site, node, {80})
        status = {"conditions": [ready("False")]}
        await site.physical.patch(NODES, object_named(nodes[0]), {"status": status}, subresource="status")
        virtual_node = await site.wait_for_virtual_node(nodes[0], lambda found: readiness(found) == "False")
        first = await wait_until(site.virtual, LEASES, site.above(nodes[0]), bool, NODE_LEASE_NAMESPACE)
        assert first["spec"]["holderIdentity"] == name_of(virtual_node)
        [owner] = first["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", name_of(virtual_node), uid_of(virtual_node))
        second = await renewed(site, nodes[0], first)
        writes_before = len(site.writes())
        await renewed(site, nodes[0], second)
    since = site.writes()[writes_before:]
    assert [write for write in since if write["resource"] == LEASES.name and write["verb"] == "replace"]
    assert [write for write in since if write["resource"] != LEASES.name] == []


# -- withdrawal


async def test_unselected_node_is_withdrawn(site: BoundClusters) -> None:
    """N2."""
    one, two = f"{site.name}-n1", f"{site.name}-n2"
    await site.add_node(one)
    await site.add_node(two, labels={"pool": "spare"})
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(one)
        await site.wait_for_virtual_node(two)
        ours = {"key": LENT_TO, "operator": "In", "values": [site.name]}
        spare = {"key": "pool", "operator": "In", "values": ["spare"]}
        await site.set_binding(nodeSelector={"nodeSelectorTerms": [{"matchExpressions": [ours, spare]}]})
        await site.wait_until_virtual_node_is_gone(one)
        await site.physical.patch(NODES, object_named(two), {"metadata": {"labels": {"pool": "busy"}}})
        await site.wait_until_virtual_node_is_gone(two)
        await site.physical.patch(NODES, object_named(two), {"metadata": {"labels": {"pool": "spare"}}})
        await site.wait_for_virtual_node(two)


async def test_pods_of_a_withdrawn_node_finish_without_force(site: BoundClusters) -> None:
    """N13, N14, N15 without force."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.run_pod("work", node)
        await site.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await site.drop_policy("all")
        virtual_node = await site.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        assert taint_named(virtual_node, keys.WITHDRAWING_TAINT)["effect"] == "NoSchedule"
        # The binding status follows a second later: enough time to delete a pod by mistake.
        await site.wait_for_binding(
            lambda found: find_condition(found["status"]["conditions"], "Leasing")["reason"] == "NoPolicy"
        )
        assert not has_deletion_timestamp(await site.wait_for_pod("work", bool))
        assert not has_deletion_timestamp(await site.wait_for_twin("work"))
        await site.set_twin_status("work", phase="Succeeded")
        await site.wait_until_virtual_node_is_gone(node)


async def test_pods_of_a_withdrawn_node_leave_on_lease_terms(site: BoundClusters) -> None:
    """N13 and N15 with force."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all", forceReclaim=True, gracefulReclaimPeriodSeconds=2)
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.run_pod("work", node)
        await site.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await site.drop_policy("all")
        virtual_node = await site.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        reclaimed = await site.wait_for_pod("work", has_deletion_timestamp)
        since = parse_time(taint_named(virtual_node, keys.WITHDRAWING_TAINT)["timeAdded"])
        mark = find_condition(reclaimed["status"]["conditions"], "DisruptionTarget")
        assert 2 <= (parse_time(mark["lastTransitionTime"]) - since).total_seconds() <= 10
        await site.wait_for_twin("work", has_deletion_timestamp)
        await site.end_twin("work")
        await site.wait_until_virtual_node_is_gone(node)


async def test_policy_restored_in_time_keeps_the_node(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.bind_pod("work", node)
        await site.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await site.drop_policy("all")
        await site.wait_for_virtual_node(node, tainted(keys.WITHDRAWING_TAINT))
        await site.add_policy("other")
        await site.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))
        assert not has_deletion_timestamp(await site.wait_for_pod("work", bool))


async def test_deleted_node_loses_pods_and_recreated_node_is_new(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    with site.syncer():
        first = await site.wait_for_virtual_node(node)
        await site.run_pod("work", node)
        await site.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
        await site.physical.delete(NODES, object_named(node))
        second = await site.add_node(node, cpu="2")
        await site.wait_for_pod("work", has_deletion_timestamp)
        await site.wait_for_twin("work", has_deletion_timestamp)
        await site.end_twin("work")
        virtual_node = await site.wait_for_virtual_node(node, lambda found: uid_of(found) != uid_of(first))
        assert annotations_of(virtual_node)[keys.PHYSICAL_NODE_UID] == uid_of(second)
        await site.wait_for_virtual_node(node, lends(cpu="2"))


async def test_node_deleted_while_syncer_is_down_is_withdrawn(site: BoundClusters) -> None:
    one, two = f"{site.name}-n1", f"{site.name}-n2"
    await site.add_node(one)
    await site.add_node(two)
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(one)
        await site.wait_for_virtual_node(two)
    await site.physical.delete(NODES, object_named(one))
    with site.syncer():
        await site.wait_until_virtual_node_is_gone(one)
        await site.wait_for_virtual_node(two, untainted(keys.WITHDRAWING_TAINT))


@pytest.mark.parametrize("switch", ["node", "mount namespace"])
async def test_kill_switch_empties_nodes_within_two_seconds(site: BoundClusters, switch: str) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")  # whatever the policy says
    resource, target = (NODES, object_named(node)) if switch == "node" else (NAMESPACES, object_named(site.mount))
    with site.syncer():
        await site.wait_for_virtual_node(node)
        for name in ("one", "two"):
            await site.run_pod(name, node, tolerations=[{"operator": "Exists"}])
        await site.wait_for_binding(lambda found: value_at(found, "status", "pods") == 2)
        async with asyncio.TaskGroup() as group:  # all at once, because the requests of the test take time too
            leaving = [group.create_task(site.wait_for_pod(name, has_deletion_timestamp)) for name in ("one", "two")]
            for name in ("one", "two"):
                group.create_task(site.wait_for_twin(name, has_deletion_timestamp))
            began = time.monotonic()
            await site.physical.patch(resource, target, {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}})
        assert time.monotonic() - began < 2
        assert all(is_condition_true(each.result(), "DisruptionTarget") for each in leaving)
        for name in ("one", "two"):
            await site.end_twin(name)
            await site.wait_until_pod_is_gone(name)
        await site.wait_for_virtual_node(node, tainted(keys.OUT_OF_TIME_WINDOWS_TAINT))
        await site.physical.patch(resource, target, {"metadata": {"annotations": {keys.RECLAIM: None}}})
        await site.wait_for_virtual_node(node, untainted(keys.OUT_OF_TIME_WINDOWS_TAINT))


async def test_missing_required_owner_policy_withdraws_nodes(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    await site.add_policy("owners", below=True)
    mark = {"metadata": {"labels": {keys.OWNER_POLICY: keys.OWNER_POLICY_REQUIRED}}}
    await site.physical.patch(NAMESPACES, object_named(site.mount), mark)
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.drop_policy("owners", below=True)
        await site.wait_until_virtual_node_is_gone(node)
        await site.physical.patch(
            NAMESPACES, object_named(site.mount), {"metadata": {"labels": {keys.OWNER_POLICY: None}}}
        )
        await site.wait_for_virtual_node(node)


async def test_invalid_policy_evicts_no_pod(site: BoundClusters) -> None:
    """A schema cannot list time zones, so only the syncer detects an unknown one."""
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("night", forceReclaim=True, resourceLimits=[{"resource": "cpu", "quantity": "2"}])
    with site.syncer():
        await site.wait_for_virtual_node(node, lends(cpu="2"))
        await site.bind_pod("work", node)
        await site.wait_for_policy("night", lambda found: is_condition_true(found, "Valid"))
        wrong = {"timeWindows": [{"start": "00:00", "end": "00:01"}], "timeZone": "Mars/Olympus"}
        await site.set_policy("night", **wrong)
        policy = await site.wait_for_policy("night", lambda found: not is_condition_true(found, "Valid"))
        assert "spec.timeZone" in find_condition(policy["status"]["conditions"], "Valid")["message"]
        await site.add_foreign_pod("one", node, cpu="3")  # a syncer that has seen this pod has seen the policy
        await site.wait_for_virtual_node(node, lends(cpu="1"))
        await site.wait_for_virtual_node(node, untainted(keys.OUT_OF_TIME_WINDOWS_TAINT))
        assert not has_deletion_timestamp(await site.wait_for_pod("work", bool))
    with site.syncer():  # the next process knows the last valid spec too
        await site.drop_foreign_pod("one")
        await site.wait_for_virtual_node(node, lends(cpu="2"))
        assert not has_deletion_timestamp(await site.wait_for_pod("work", bool))


# -- credentials and cluster identity


async def test_expired_credentials_withdraw_nothing_and_new_ones_are_used(
    site: BoundClusters, physical_plane: Plane
) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    account = new_object("ServiceAccount", {"name": site.name, "namespace": "default"})
    await site.physical.create(SERVICE_ACCOUNTS, account)
    await site.physical.create(CLUSTER_ROLE_BINDINGS, new_administrator(site.name))
    token = (await site.physical.request_token(site.name, "default"))["token"]
    admins = physical_plane.kubeconfig.read_text()
    await site.set_kubeconfig(admins.replace(physical_plane.token, token))
    with site.syncer():
        await site.wait_for_virtual_node(node)
        await site.physical.delete(SERVICE_ACCOUNTS, object_named(site.name, "default"))  # and its token
        await site.add_node(f"{site.name}-n2")
        await site.set_kubeconfig(admins)
        await site.wait_for_virtual_node(f"{site.name}-n2")
        await site.wait_for_virtual_node(node, untainted(keys.WITHDRAWING_TAINT))
        assert readiness(await site.wait_for_virtual_node(node)) == "True"


async def test_new_secret_is_used_once_the_binding_names_it(site: BoundClusters, physical_plane: Plane) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    await site.set_kubeconfig("{")
    other = f"{site.name}-other"
    await site.virtual.create(SECRETS, new_kubeconfig_secret(other, physical_plane.kubeconfig.read_text()))
    with site.syncer():
        await site.wait_for_binding(
            lambda found: find_condition(value_at(found, "status", "conditions"), "Leasing") is not None
        )
        await site.set_binding(secretRef={"name": other, "namespace": keys.SYSTEM_NAMESPACE})
        await site.wait_for_virtual_node(node)


async def test_safety_rule_5_another_cluster_is_refused_until_approved(
    site: BoundClusters, third_plane: Plane, tmp_path: Path
) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all")
    async with bound_clusters(third_plane, third_plane, tmp_path) as elsewhere:
        there = await elsewhere.add_node(f"{site.name}-n7", labels={LENT_TO: site.name})
        with site.syncer():
            await site.wait_for_virtual_node(node)
            await site.set_kubeconfig(third_plane.kubeconfig.read_text())
            await event(site, "IdentityChanged")
            await site.add_node(f"{site.name}-n2")
            await site.wait_for_virtual_node(f"{site.name}-n2")  # the first cluster stays in use
            found = uid_of(await elsewhere.physical.get(NAMESPACES, "kube-system"))
            approval = {"metadata": {"annotations": {keys.APPROVE_IDENTITY: found}}}
            await site.virtual.patch(CLUSTER_BINDINGS, object_named(site.name), approval)
            await site.wait_for_virtual_node(name_of(there))
            await site.wait_until_virtual_node_is_gone(node)
            await site.wait_until_virtual_node_is_gone(f"{site.name}-n2")
            assert value_at(await site.wait_for_binding(bool), "status", "identity") == found


async def test_virtual_clusters_on_one_physical_cluster_stay_separate(
    site: BoundClusters, third_plane: Plane, physical_plane: Plane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both use the same cluster name, mount namespace and owner policy."""
    node, folder = f"{site.name}-n1", tmp_path_factory.mktemp("other")
    await site.add_node(node)
    await site.add_policy("half", resourceLimits=[{"resource": "cpu", "percent": 50}])
    await site.add_policy("owners", below=True)
    async with bound_clusters(third_plane, physical_plane, folder, name=site.name) as other:
        await other.add_policy("quarter", resourceLimits=[{"resource": "cpu", "percent": 25}])
        with site.syncer(), other.syncer():
            await site.wait_for_virtual_node(node, lends(cpu="2"))
            await other.wait_for_virtual_node(node, lends(cpu="1"))
            policy = await site.wait_for_policy(
                "owners", lambda found: value_at(found, "status", "nodes") == 2, below=True
            )
            assert sorted(lease["leased"]["cpu"] for lease in policy["status"]["leases"]) == ["1", "2"]
            assert policy["status"]["leased"]["cpu"] == "3"
            await other.bind_pod("work", node)
            await other.wait_for_binding(lambda found: value_at(found, "status", "pods") == 1)
            await site.virtual.delete(CLUSTER_BINDINGS, object_named(site.name))
            await wait_until_gone(site.virtual, CLUSTER_BINDINGS, site.name)
            assert not has_deletion_timestamp(await other.wait_for_pod("work", bool))
            policy = await site.wait_for_policy(
                "owners", lambda found: value_at(found, "status", "nodes") == 1, below=True
            )
            assert [lease["leased"]["cpu"] for lease in policy["status"]["leases"]] == ["1"]
            await site.physical.patch(NODES, object_named(node), {"metadata": {"labels": {"seen": "yes"}}})
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


async def becomes_placeholder(site: BoundClusters, node: str, ports: set[int]) -> Object:
    """Wait until one placeholder on the virtual node holds `ports`, or until none exists if there are no ports."""

    def holds(pods: list[Object]) -> bool:
        return len(pods) == bool(ports) and {port["hostPort"] for pod in pods for port in ports_of(pod)} == ports

    where = {"labels": keys.HOST_PORTS, "fields": f"spec.nodeName={site.above(node)}"}
    found = await wait_for_all(site.virtual, PODS, keys.HOST_PORTS_NAMESPACE, holds, **where)
    return found[0] if found else {}


async def placeholders(site: BoundClusters, node: str) -> list[Object]:
    fields = f"spec.nodeName={site.above(node)}"
    return await site.virtual.list(PODS, keys.HOST_PORTS_NAMESPACE, labels=keys.HOST_PORTS, fields=fields)


async def renewed(site: BoundClusters, node: str, lease: Object) -> Object:
    """Wait for the next renewal of the node Lease and return it."""
    before = lease["spec"]["renewTime"]
    return await wait_until(
        site.virtual, LEASES, site.above(node), lambda found: found["spec"]["renewTime"] > before, NODE_LEASE_NAMESPACE
    )


async def event(site: BoundClusters, reason: str) -> Object:
    """Wait for an event about the binding and return it."""
    fields = f"involvedObject.name={site.name},reason={reason}"
    return (await wait_for_all(site.virtual, EVENTS, None, bool, fields=fields))[0]


def ports_of(pod: Object) -> list[Object]:
    return [port for container in pod["spec"]["containers"] for port in container.get("ports", ())]
