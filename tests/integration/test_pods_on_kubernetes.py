"""Pods and their twins, synced between two real API servers; tests act as the kubelet.

Docstrings like "P1." name the scenario in the test list of Kubeocean.  docs/reference/compatibility.md describes the
intended differences.
"""

from pathlib import Path
from typing import Any

import pytest

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.options import PatchType
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    labels_of,
    name_of,
    object_named,
    uid_of,
    value_at,
    version_of,
)
from tapestry.kube.resources import NAMESPACES, NODES, PODS, Resource
from tapestry.manager.joining import PRIORITY_CLASSES

from .bound_clusters import (
    BoundClusters,
    Until,
    allocatable_is,
    bound_clusters,
    give,
    new_object,
    new_pod,
    wait_for_exit,
    wait_until,
    wait_until_gone,
)
from .planes import Plane, also_mixed

QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
LONG_AGO = "2026-01-01T00:00:00Z"
RUNNING = {
    "phase": "Running",
    "startTime": LONG_AGO,
    "hostIP": "10.9.0.1",
    "podIP": "10.9.1.1",
    "podIPs": [{"ip": "10.9.1.1"}],
    "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO, "lastProbeTime": None},
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": LONG_AGO},
    ],
    "containerStatuses": [
        {
            "name": "c",
            "image": "none",
            "imageID": "sha256:1",
            "containerID": "containerd://1",
            "ready": True,
            "started": True,
            "restartCount": 1,
            "state": {"running": {"startedAt": LONG_AGO}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": LONG_AGO}},
        }
    ],
}


def mapped(pod: Object) -> bool:
    return is_condition_true(pod, keys.MAPPED_CONDITION)


def phase(wanted: str) -> Until:
    return lambda pod: bool(value_at(pod, "status", "phase") == wanted)


def has_reason(type: str, reason: str) -> Until:
    return lambda obj: (find_condition(value_at(obj, "status", "conditions"), type) or {}).get("reason") == reason


async def new_node(clusters: BoundClusters) -> str:
    """Create a physical node and a policy that lends it.  Return its name."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all")
    return node


async def twins(clusters: BoundClusters) -> list[Object]:
    return await clusters.physical.list(PODS, clusters.mount)


# -- mapped


async def test_bound_pod_has_one_pinned_twin_of_lowest_priority(clusters: BoundClusters) -> None:
    """P1."""
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        pod = await clusters.bind_pod("work", node)
        twin = await clusters.wait_for_twin("work")
        affinity = twin["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = affinity["nodeSelectorTerms"]
        assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        assert twin["spec"]["priorityClassName"] == keys.PRIORITY_CLASS
        assert (twin["spec"]["priority"], twin["spec"]["preemptionPolicy"]) == (-10000, "Never")
        assert labels_of(twin)[keys.MANAGED_BY] == keys.TAPESTRY
        assert annotations_of(twin)[keys.VIRTUAL_POD_UID] == uid_of(pod)
        mapped_pod = await clusters.wait_for_pod("work", mapped)
        assert annotations_of(mapped_pod)[keys.PHYSICAL_POD_NAME] == name_of(twin)
        assert annotations_of(mapped_pod)[keys.PHYSICAL_POD_UID] == uid_of(twin)
        assert len(await twins(clusters)) == 1


async def test_twin_uses_the_priority_class_of_the_binding(
    virtual_plane: Plane, physical_plane: Plane, tmp_path: Path
) -> None:
    """P16.  Until the class exists no pod is mapped, and the binding reports the reason."""
    async with bound_clusters(
        virtual_plane, physical_plane, tmp_path, podPriorityClassName="owners-choice"
    ) as clusters:
        node = await new_node(clusters)
        with clusters.syncer():
            await clusters.wait_for_virtual_node(node)
            await clusters.bind_pod("work", node)
            await clusters.wait_for_binding(has_reason("Permitted", "PriorityClassMissing"))
            assert await twins(clusters) == []
            chosen = new_object("PriorityClass", {"name": "owners-choice"}, "scheduling.k8s.io/v1", value=-77)
            await give(clusters.physical, PRIORITY_CLASSES, chosen)
            twin = await clusters.wait_for_twin("work", timeout=60)
            assert (twin["spec"]["priorityClassName"], twin["spec"]["priority"]) == ("owners-choice", -77)
            await clusters.wait_for_binding(lambda found: is_condition_true(found, "Permitted"))


async def test_pod_outside_virtual_nodes_has_no_twin(clusters: BoundClusters) -> None:
    """P3 and P4.  A syncer that has created the twin of a later pod has processed the earlier pods."""
    node, plain = await new_node(clusters), f"{clusters.name}-plain"
    await clusters.virtual.create(NODES, new_object("Node", {"name": plain}))
    await clusters.virtual.create(PODS, new_pod(f"{clusters.name}-elsewhere", plain))
    unbound = new_pod(f"{clusters.name}-unbound", "")
    await clusters.virtual.create(PODS, {**unbound, "spec": {"containers": unbound["spec"]["containers"]}})
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        assert [annotations_of(twin)[keys.VIRTUAL_POD_NAME] for twin in await twins(clusters)] == [
            f"{clusters.name}-work"
        ]


async def test_same_name_in_two_namespaces_yields_two_twins(clusters: BoundClusters) -> None:
    """P10."""
    node, other = await new_node(clusters), f"{clusters.name}-other"
    await clusters.virtual.create(NAMESPACES, new_object("Namespace", {"name": other}))
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        second = new_pod(f"{clusters.name}-work", clusters.above(node))
        await clusters.virtual.create(
            PODS, {**second, "metadata": {"name": f"{clusters.name}-work", "namespace": other}}
        )
        await clusters.wait_for_pod("work", mapped)
        await wait_until(clusters.virtual, PODS, f"{clusters.name}-work", mapped, other)
        names = {name_of(twin) for twin in await twins(clusters)}
        assert len(names) == 2
        assert all(name.startswith(f"{clusters.name}-work-") for name in names)


def stated(value: Any) -> Any:
    """A value without nulls, at any depth."""
    if isinstance(value, dict):
        return {key: stated(each) for key, each in value.items() if each is not None}
    return [stated(each) for each in value] if isinstance(value, list) else value


@also_mixed
async def test_twin_status_reaches_the_pod_in_two_writes(clusters: BoundClusters) -> None:
    """P6."""
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        await clusters.set_twin_status("work", **RUNNING)
        pod = await clusters.wait_for_pod("work", phase("Running"))
        assert (pod["status"]["podIP"], pod["status"]["hostIP"]) == ("10.9.1.1", "10.9.0.1")
        assert is_condition_true(pod, "Ready")
        assert is_condition_true(pod, keys.MAPPED_CONDITION)
        twin = await clusters.wait_for_twin("work")
        # An unset time is null on Kubernetes and absent on our server.
        assert stated(pod["status"]["containerStatuses"]) == stated(twin["status"]["containerStatuses"])
    writes = [(write["verb"], write.get("namespace")) for write in clusters.writes() if write["resource"] == "pods"]
    assert writes.count(("create", clusters.mount)) == len(writes) - writes.count(("patch", "default")) == 1
    assert writes.count(("patch", "default")) <= 2


async def test_syncer_restart_writes_no_pod(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        for name in ("runs", "finished", "finished-and-gone", "waits"):
            await clusters.bind_pod(name, node)
            await clusters.wait_for_pod(name, mapped)
        await clusters.bind_pod("refused", node, hostNetwork=True)
        await clusters.wait_for_pod("refused", has_reason(keys.ACCEPTED_CONDITION, "PodSecurity"))
        await clusters.set_twin_status("runs", **RUNNING)
        for name in ("finished", "finished-and-gone"):
            await clusters.set_twin_status(name, phase="Succeeded")
            await clusters.wait_for_pod(name, phase("Succeeded"))
        await clusters.end_twin("finished-and-gone")
        await clusters.wait_for_pod("runs", phase("Running"))
    before = len(clusters.writes())
    with clusters.syncer():
        await clusters.bind_pod("later", node)
        await clusters.wait_for_pod("later", mapped)
    after = [write["name"] for write in clusters.writes()[before:] if write["resource"] == "pods"]
    assert set(after) == {f"{clusters.name}-later", await clusters.twin_name("later")}


# -- changed


async def test_twin_follows_pod_changes_and_keeps_physical_additions(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node, requests={"cpu": "1"})
        pod, below = (
            object_named(f"{clusters.name}-work", "default"),
            object_named(await clusters.twin_name("work"), clusters.mount),
        )
        await clusters.physical.patch(PODS, below, {"metadata": {"labels": {"owner": "yes"}}})
        await clusters.virtual.patch(PODS, pod, {"metadata": {"labels": {"app": "web", "tier": "one"}}})
        await clusters.wait_for_twin("work", lambda twin: labels_of(twin).get("app") == "web")
        await clusters.virtual.patch(PODS, pod, {"metadata": {"labels": {"app": None}}})
        debugger = {"name": "debugger", "image": "none", "terminationMessagePolicy": "File"}
        await change(clusters, pod, {"ephemeralContainers": [debugger]}, "ephemeralcontainers")
        await change(clusters, pod, {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}, "resize")
        await change(clusters, pod, {"containers": [{"name": "c", "image": "other"}]})
        twin = await clusters.wait_for_twin(
            "work",
            lambda twin: (
                bool(twin["spec"].get("ephemeralContainers"))
                and twin["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
                and twin["spec"]["containers"][0]["image"] == "other"
                and "app" not in labels_of(twin)
            ),
        )
        assert (labels_of(twin)["owner"], labels_of(twin)["tier"]) == ("yes", "one")


async def change(clusters: BoundClusters, pod: Object, spec: Object, subresource: str | None = None) -> None:
    await clusters.virtual.patch(PODS, pod, {"spec": spec}, type=PatchType.STRATEGIC, subresource=subresource)


# -- ended


async def test_deleted_pod_waits_for_its_twin_with_equal_grace(clusters: BoundClusters) -> None:
    """P2."""
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        pod = await clusters.run_pod("work", node, terminationGracePeriodSeconds=600)
        await clusters.wait_for_pod("work", mapped)
        await clusters.virtual.delete(PODS, object_named(name_of(pod), "default"))
        await clusters.wait_for_twin("work", lambda twin: twin["metadata"].get("deletionGracePeriodSeconds") == 600)
        await clusters.virtual.delete(PODS, object_named(name_of(pod), "default"), grace_seconds=60)
        await clusters.wait_for_twin("work", lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] == 60)
        assert is_deleting(await clusters.wait_for_pod("work", bool))
        await clusters.end_twin("work")
        await clusters.wait_until_pod_is_gone("work")
        assert await twins(clusters) == []


async def test_recreated_pod_runs_after_the_first_twin_is_gone(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        await clusters.end_pod("work")  # by force
        second = await clusters.bind_pod("work", node)
        await clusters.wait_for_twin("work", is_deleting)
        assert not mapped(await clusters.wait_for_pod("work", bool))
        await clusters.end_twin("work")
        await clusters.wait_for_twin("work", lambda twin: annotations_of(twin)[keys.VIRTUAL_POD_UID] == uid_of(second))
        await clusters.wait_for_pod("work", mapped)


async def test_pod_fails_when_its_twin_is_deleted(clusters: BoundClusters) -> None:
    """P12."""
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        await clusters.end_twin("work")
        pod = await clusters.wait_for_pod("work", phase("Failed"))
        assert pod["status"]["reason"] == "PhysicalPodLost"
        assert await twins(clusters) == []


async def test_pod_reports_the_eviction_of_its_twin(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.run_pod("work", node)
        await clusters.set_twin_status("work", **RUNNING)
        await clusters.wait_for_pod("work", phase("Running"))
        await clusters.physical.evict(object_named(await clusters.twin_name("work"), clusters.mount))
        await clusters.wait_for_twin("work", is_deleting)
        await clusters.end_twin("work")
        pod = await clusters.wait_for_pod("work", phase("Failed"))
        assert pod["status"]["reason"] == "Evicted"
        assert find_condition(pod["status"]["conditions"], "DisruptionTarget")["reason"] == "EvictionByEvictionAPI"


async def test_pod_waits_while_a_physical_quota_refuses_its_twin(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    quota = new_object("ResourceQuota", {"name": "few", "namespace": clusters.mount}, spec={"hard": {"pods": "0"}})
    made = await clusters.physical.create(QUOTAS, quota)
    await allow_pods(clusters, made, "0")
    with clusters.syncer(refusal_seconds="1"):
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="4"))
        await clusters.bind_pod("work", node, requests={"cpu": "1"})
        pod = await clusters.wait_for_pod("work", has_reason(keys.ACCEPTED_CONDITION, "QuotaExceeded"))
        assert "exceeded quota: few" in find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION)["message"]
        assert await twins(clusters) == []
        await allow_pods(clusters, made, "9")
        pod = await clusters.wait_for_pod("work", mapped)
        assert pod["status"]["phase"] == "Pending"
        await clusters.wait_for_pod(
            "work", lambda pod: find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION) is None
        )


async def allow_pods(clusters: BoundClusters, quota: Object, number: str) -> None:
    """Set the limit of a quota and its status, as an owner and a controller would."""
    where, hard = object_named(name_of(quota), clusters.mount), {"pods": number}
    await clusters.physical.patch(QUOTAS, where, {"spec": {"hard": hard}})
    await clusters.physical.patch(
        QUOTAS, where, {"status": {"hard": hard, "used": {"pods": "0"}}}, subresource="status"
    )


async def test_pod_with_unschedulable_twin_fails_and_twin_is_deleted(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer(unschedulable_seconds="2"):
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node, requests={"cpu": "1"})
        await clusters.wait_for_pod("work", mapped)
        message = "0/1 nodes are available: 1 Insufficient cpu."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await clusters.set_twin_status("work", conditions=[{**condition, "lastTransitionTime": LONG_AGO}])
        pod = await clusters.wait_for_pod("work", phase("Failed"))
        assert (pod["status"]["reason"], pod["status"]["message"]) == ("UnschedulableBelow", message)
        await clusters.wait_until_twin_is_gone("work")
        await clusters.wait_for_virtual_node(node, allocatable_is(cpu="3"))


async def test_safety_rule_2_orphaned_twin_is_deleted_and_forged_twins_stay(clusters: BoundClusters) -> None:
    """P8."""
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        twin = await clusters.wait_for_twin("work")
    await clusters.end_pod("work")
    foreign = [
        await clusters.physical.create(PODS, forged_twin(twin, "without-labels", {keys.MANAGED_BY: keys.TAPESTRY})),
        await clusters.physical.create(
            PODS, forged_twin(twin, "of-another-binding", {**labels_of(twin), keys.CLUSTER_BINDING_UID: "another"})
        ),
    ]
    with clusters.syncer():
        await clusters.wait_until_twin_is_gone("work", timeout=40)
        assert sorted(map(version_of, await twins(clusters))) == sorted(map(version_of, foreign))


def forged_twin(twin: Object, name: str, labels: Any) -> Object:
    """A physical pod with the annotations of a twin."""
    metadata = {"name": name, "namespace": twin["metadata"]["namespace"], "labels": dict(labels)}
    metadata["annotations"] = dict(annotations_of(twin))
    return new_object("Pod", metadata, spec={"containers": [{"name": "c", "image": "none"}]})


# -- ownership


async def test_safety_rule_1_foreign_pod_with_the_twin_name_is_untouched(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    place = {"name": await clusters.twin_name("work"), "namespace": clusters.mount}
    foreign = new_object("Pod", place, spec={"containers": [{"name": "c", "image": "none"}]})
    foreign = await clusters.physical.create(PODS, foreign)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", has_reason(keys.MAPPED_CONDITION, "NameTaken"))
        await clusters.virtual.delete(PODS, object_named(f"{clusters.name}-work", "default"))
        await clusters.wait_until_pod_is_gone("work")
        assert [version_of(twin) for twin in await twins(clusters)] == [version_of(foreign)]


async def test_safety_rule_1_virtual_clusters_with_equal_names_stay_separate(
    virtual_plane: Plane,
    third_plane: Plane,
    physical_plane: Plane,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same binding, mount namespace, node and pod names on one physical cluster."""
    name = "alike"
    folders = [tmp_path_factory.mktemp(each) for each in ("one", "two")]
    async with (
        bound_clusters(virtual_plane, physical_plane, folders[0], name=name, unbindGraceSeconds=0) as one,
        bound_clusters(third_plane, physical_plane, folders[1], name=name, unbindGraceSeconds=0) as two,
    ):
        node = await new_node(one)
        await two.add_policy("all")
        with one.syncer() as process, two.syncer():
            for clusters in (one, two):
                await clusters.wait_for_virtual_node(node)
                await clusters.bind_pod("work", node)
                await clusters.bind_pod("stays", node)
                await clusters.wait_for_pod("work", mapped)
                await clusters.wait_for_pod("stays", mapped)
            assert len(await twins(one)) == 4
            others = [await two.wait_for_twin(each) for each in ("work", "stays")]
            await one.virtual.delete(PODS, object_named(f"{name}-work", "default"))
            await one.wait_until_pod_is_gone("work")
            await one.virtual.delete(CLUSTER_BINDINGS, object_named(name))
            await wait_until_gone(one.virtual, CLUSTER_BINDINGS, name)
            assert await wait_for_exit(process) == 0
            left = await twins(two)
            assert sorted(map(version_of, left)) == sorted(map(version_of, others))
            for each in ("work", "stays"):
                assert mapped(await two.wait_for_pod(each, bool))


async def test_safety_rule_9_forged_twin_status_is_sanitized(clusters: BoundClusters) -> None:
    node = await new_node(clusters)
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        await clusters.bind_pod("work", node)
        await clusters.wait_for_pod("work", mapped)
        below = object_named(await clusters.twin_name("work"), clusters.mount)
        forged = {"labels": {"app": "somebody-elses"}, "annotations": {"note": "from below"}}
        await clusters.physical.patch(PODS, below, {"metadata": forged})
        forged_condition = {"type": "tapestry.io/Accepted", "status": "True", "lastTransitionTime": LONG_AGO}
        await clusters.set_twin_status(
            "work",
            phase="Running",
            podIP="127.0.0.1",
            podIPs=[{"ip": "127.0.0.1"}],
            message="x" * 9000,
            conditions=[forged_condition],
        )
        pod = await clusters.wait_for_pod("work", phase("Running"))
        assert "podIP" not in pod["status"]
        assert len(pod["status"]["message"]) == 4096
        assert find_condition(pod["status"]["conditions"], "tapestry.io/Accepted") is None
        assert "app" not in labels_of(pod)
        assert "note" not in annotations_of(pod)
        await clusters.set_twin_status("work", phase="Pending", reason="Backwards")
        updated = await clusters.wait_for_pod("work", lambda pod: pod["status"].get("reason") == "Backwards")
        assert updated["status"]["phase"] == "Running"
