"""Tests of the DaemonSet controller and its steps."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.controlplane.workloads import daemonset_steps
from tapestry.controlplane.workloads.daemonset_steps import DaemonFit
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS
from tapestry.kube.times import parse_time, timestamp
from tapestry.local.simulated_kubelet import simulated_node

from ..cluster import NODE_CAPACITY, in_cluster, live_pods, pass_time, wait_until

AGENT = object_named("agent", "default")
SLOWLY = {"simulated.tapestry.io/starts-after": "5s"}
NOW = datetime(2024, 1, 1, tzinfo=UTC)
ONLY = "requiredDuringSchedulingIgnoredDuringExecution"


def new_set(annotations: dict[str, str] | None = None, pod: dict[str, Any] | None = None, **spec: Any) -> Object:
    template = {
        "metadata": {"labels": {"app": "agent"}, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "agent:1"}], **(pod or {})},
    }
    needed = {"selector": {"matchLabels": {"app": "agent"}}, "template": template}
    return {"metadata": {"name": "agent", "namespace": "default"}, "spec": {**needed, **spec}}


async def wait_until_ready(client: Client, nodes: int, updated: int | None = None) -> Object:
    def holds(found: Object) -> bool:
        status = found.get("status") or {}
        keys = ("desiredNumberScheduled", "currentNumberScheduled", "numberAvailable", "updatedNumberScheduled")
        is_new = status.get("observedGeneration") == found["metadata"]["generation"]
        expected = [nodes, nodes, nodes, nodes if updated is None else updated]
        return is_new and [status.get(key, 0) for key in keys] == expected

    return await wait_until(client, DAEMON_SETS, "agent", holds)


async def pod_nodes(client: Client) -> list[str]:
    return sorted(value_at(pod, "spec", "nodeName") for pod in await live_pods(client))


async def update(client: Client, image: str = "agent:2") -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await client.patch(DAEMON_SETS, AGENT, patch, type=PatchType.STRATEGIC)


async def taint(client: Client, node: str, effect: str, key: str = "example.com/mine") -> None:
    await client.patch(NODES, object_named(node), {"spec": {"taints": [{"key": key, "effect": effect}]}})


@in_cluster("daemonsets")
async def test_existing_and_new_nodes_get_a_pod(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set())
    await wait_until_ready(client, 3)
    assert await pod_nodes(client) == ["n0", "n1", "n2"]
    await client.create(NODES, simulated_node("n3", NODE_CAPACITY))
    await wait_until_ready(client, 4)
    assert await pod_nodes(client) == ["n0", "n1", "n2", "n3"]


@in_cluster("daemonsets")
async def test_revision_fields_are_sorted_as_kubectl_expects(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set(pod={"terminationGracePeriodSeconds": 1, "hostNetwork": True}))
    await wait_until_ready(client, 3)
    (revision,) = await client.list(CONTROLLER_REVISIONS)
    assert json.dumps(revision["data"]) == json.dumps(revision["data"], sort_keys=True)


@in_cluster("daemonsets")
async def test_pods_have_node_affinity_and_default_tolerations(client: Client) -> None:
    await client.create(
        DAEMON_SETS, new_set(pod={"hostNetwork": True, "nodeSelector": {"kubernetes.io/hostname": "n1"}})
    )
    await wait_until_ready(client, 1)
    (pod,) = await live_pods(client)
    (term,) = pod["spec"]["affinity"]["nodeAffinity"][ONLY]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    tolerated = {
        (each["key"].removeprefix("node.kubernetes.io/"), each["effect"]) for each in pod["spec"]["tolerations"]
    }
    assert tolerated == {
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
        ("network-unavailable", "NoSchedule"),
    }
    assert labels_of(pod)["pod-template-generation"] == "1"


@in_cluster("daemonsets")
async def test_relabelled_node_gets_or_loses_its_pod(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set(pod={"nodeSelector": {"disk": "fast"}}))
    await pass_time()
    assert await pod_nodes(client) == []
    await client.patch(NODES, object_named("n1"), {"metadata": {"labels": {"disk": "fast"}}})
    await wait_until_ready(client, 1)
    assert await pod_nodes(client) == ["n1"]
    await client.patch(NODES, object_named("n1"), {"metadata": {"labels": {"disk": "slow"}}})
    await pass_time()
    assert await pod_nodes(client) == []


@in_cluster("daemonsets")
async def test_untolerated_taint_prevents_pod(client: Client) -> None:
    await taint(client, "n0", "NoSchedule")
    await taint(client, "n1", "NoExecute")
    await taint(client, "n2", "PreferNoSchedule")
    await client.create(DAEMON_SETS, new_set())
    found = await wait_until_ready(client, 1)
    assert await pod_nodes(client) == ["n2"]
    assert found["status"]["numberMisscheduled"] == 0
    await taint(client, "n2", "NoSchedule")  # the existing pod may stay
    await pass_time()
    assert await pod_nodes(client) == ["n2"]
    assert (await client.get(DAEMON_SETS, "agent", "default"))["status"]["numberMisscheduled"] == 1
    await taint(client, "n2", "NoExecute")
    await pass_time()
    assert await pod_nodes(client) == []


@in_cluster("daemonsets")
async def test_cordoned_node_has_its_pod(client: Client) -> None:
    await client.patch(NODES, object_named("n0"), {"spec": {"unschedulable": True}})
    await taint(client, "n0", "NoSchedule", "node.kubernetes.io/unschedulable")
    await client.create(DAEMON_SETS, new_set())
    await wait_until_ready(client, 3)
    assert await pod_nodes(client) == ["n0", "n1", "n2"]


@in_cluster("daemonsets")
async def test_rolling_update_replaces_one_pod_at_a_time(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set(SLOWLY))
    await wait_until_ready(client, 3)
    await update(client)
    await wait_until_ready(client, 3)
    creation_times = sorted(parse_time(pod["metadata"]["creationTimestamp"]) for pod in await live_pods(client))
    assert [(each - creation_times[0]).total_seconds() for each in creation_times] == [0, 5, 10]
    assert {pod["spec"]["containers"][0]["image"] for pod in await live_pods(client)} == {"agent:2"}


@in_cluster("daemonsets")
async def test_surge_update_keeps_a_pod_on_each_node(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await client.create(DAEMON_SETS, new_set(SLOWLY, updateStrategy=strategy))
    await wait_until_ready(client, 3)
    await update(client)
    for _ in range(12):
        await pass_time(1)
        pods = await live_pods(client)
        ready = {value_at(pod, "spec", "nodeName") for pod in pods if value_at(pod, "status", "phase") == "Running"}
        assert ready == {"n0", "n1", "n2"}
        assert len(pods) <= 4
    await wait_until_ready(client, 3)
    assert {pod["spec"]["containers"][0]["image"] for pod in await live_pods(client)} == {"agent:2"}


@in_cluster("daemonsets")
async def test_on_delete_updates_only_deleted_pods(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set(updateStrategy={"type": "OnDelete"}))
    await wait_until_ready(client, 3)
    await update(client)
    await wait_until_ready(client, 3, updated=0)
    (pod, *_) = await live_pods(client)
    await client.delete(PODS, pod)
    await pass_time()
    await wait_until_ready(client, 3, updated=1)


@in_cluster("daemonsets")
async def test_revision_history_allows_rollback(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set(revisionHistoryLimit=1))
    await wait_until_ready(client, 3)
    for number in (2, 3):
        await update(client, f"agent:{number}")
        await wait_until_ready(client, 3)
    await pass_time()
    assert sorted(each["revision"] for each in await client.list(CONTROLLER_REVISIONS)) == [2, 3]
    await update(client, "agent:2")
    await wait_until_ready(client, 3)
    assert sorted(each["revision"] for each in await client.list(CONTROLLER_REVISIONS)) == [3, 4]


@in_cluster("daemonsets")
async def test_failed_pod_is_replaced_after_backoff(client: Client) -> None:
    await client.create(DAEMON_SETS, new_set())
    await wait_until_ready(client, 3)
    (pod, *_) = await live_pods(client)
    await client.patch(PODS, pod, {"status": {"phase": "Failed"}}, subresource="status")
    await pass_time(5)
    assert uid_of(await client.get(PODS, name_of(pod), "default")) == uid_of(pod)
    await pass_time()
    await wait_until_ready(client, 3)
    assert uid_of(pod) not in {uid_of(each) for each in await live_pods(client)}


# -- steps


def new_pod(node: str, revision: str, *, is_ready: bool = True, number: int = 0, deleting: bool = False) -> Object:
    name = f"{node}-{revision}-{number}"
    metadata = {
        "name": name,
        "uid": name,
        "creationTimestamp": timestamp(NOW),
        "labels": {"controller-revision-hash": revision},
    }
    if deleting:
        metadata["deletionTimestamp"] = timestamp(NOW)
    ready = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": timestamp(NOW)}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"phase": "Running" if is_ready else "Pending", "conditions": [ready]},
    }


@st.composite
def states(draw: st.DrawFn) -> dict[str, list[Object]]:
    def pods(node: str) -> list[Object]:
        kinds = draw(st.lists(st.tuples(st.sampled_from(["old", "new"]), st.booleans(), st.booleans()), max_size=2))
        return [
            new_pod(node, revision, is_ready=is_ready, number=number, deleting=deleting)
            for number, (revision, is_ready, deleting) in enumerate(kinds)
        ]

    return {f"n{number}": pods(f"n{number}") for number in range(draw(st.integers(1, 6)))}


def with_strategy(unavailable: int, surge: int) -> Object:
    rolling = {"maxUnavailable": unavailable, "maxSurge": surge}
    return new_set(updateStrategy={"type": "RollingUpdate", "rollingUpdate": rolling})


def available_nodes(pods: dict[str, list[Object]]) -> set[str]:
    return {
        node
        for node, found in pods.items()
        if any(value_at(pod, "status", "phase") == "Running" and not is_deleting(pod) for pod in found)
    }


@given(states(), st.integers(0, 3), st.integers(0, 3))
def test_update_respects_max_unavailable(pods: dict[str, list[Object]], unavailable: int, surge: int) -> None:
    fits = dict.fromkeys(pods, DaemonFit(True, True))
    step = daemonset_steps.next_daemon_step(with_strategy(unavailable, surge), fits, pods, "new", NOW)
    limits = daemonset_steps.update_limits(with_strategy(unavailable, surge), len(pods))
    before = available_nodes(pods)
    deleted = {uid_of(pod) for pod in step.to_delete}
    after = available_nodes(
        {node: [pod for pod in found if uid_of(pod) not in deleted] for node, found in pods.items()}
    )
    allowed = max(limits.max_unavailable - (len(pods) - len(before)), 0) if not limits.max_surge else 0
    doubled = {node for node, found in pods.items() if len(found) > 1}
    assert len(before - after - doubled) <= allowed


@given(states(), st.integers(1, 3))
def test_node_gets_one_pod_per_revision(pods: dict[str, list[Object]], surge: int) -> None:
    fits = dict.fromkeys(pods, DaemonFit(True, True))
    step = daemonset_steps.next_daemon_step(with_strategy(0, surge), fits, pods, "new", NOW)
    assert len(set(step.to_create)) == len(step.to_create)
    for node in step.to_create:
        remaining = [pod for pod in pods[node] if not is_deleting(pod) and pod not in step.to_delete]
        assert not any(daemonset_steps.is_updated(pod, "new") for pod in remaining)


@given(states(), st.integers(0, 3), st.integers(0, 3))
def test_update_completes(pods: dict[str, list[Object]], unavailable: int, surge: int) -> None:
    daemon_set, fits = with_strategy(unavailable, surge), dict.fromkeys(pods, DaemonFit(True, True))
    for turn in range(20):
        step = daemonset_steps.next_daemon_step(daemon_set, fits, pods, "new", NOW)
        deleted = {uid_of(pod) for pod in step.to_delete}
        pods = {
            node: [
                new_pod(node, labels_of(pod)["controller-revision-hash"], number=hash(name_of(pod)))
                for pod in found
                if uid_of(pod) not in deleted and not is_deleting(pod)
            ]
            + [new_pod(node, "new", number=1000 + turn) for each in step.to_create if each == node]
            for node, found in pods.items()
        }
    assert all([labels_of(pod)["controller-revision-hash"] for pod in found] == ["new"] for found in pods.values())


@pytest.mark.parametrize(
    ("node", "pod", "fit"),
    [
        ({}, {}, DaemonFit(True, True)),
        ({}, {"nodeName": "n"}, DaemonFit(True, True)),
        ({}, {"nodeName": "other"}, DaemonFit(False, False)),
        ({}, {"nodeSelector": {"a": "b"}}, DaemonFit(False, False)),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, {}, DaemonFit(False, True)),
        ({"taints": [{"key": "k", "effect": "NoExecute"}]}, {}, DaemonFit(False, False)),
        (
            {"taints": [{"key": "k", "effect": "NoExecute"}]},
            {"tolerations": [{"operator": "Exists"}]},
            DaemonFit(True, True),
        ),
        ({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}, {}, DaemonFit(True, True)),
        ({"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}, {}, DaemonFit(False, True)),
        (
            {"taints": [{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]},
            {},
            DaemonFit(False, True),
        ),
    ],
)
def test_node_fit_matches_kubernetes(node: dict[str, Any], pod: dict[str, Any], fit: DaemonFit) -> None:
    assert daemonset_steps.daemon_fit(new_set(pod=pod), {"metadata": {"name": "n"}, "spec": node}) == fit


def test_affinity_can_match_node_name() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]
    pod = {"affinity": {"nodeAffinity": {ONLY: {"nodeSelectorTerms": terms}}}}
    fits = [
        daemonset_steps.daemon_fit(new_set(pod=pod), {"metadata": {"name": name}}).should_run for name in ("n", "m")
    ]
    assert fits == [True, False]


def test_unbound_pod_of_deleted_node_is_deleted() -> None:
    bound = new_pod("deleted-node", "new")
    waiting = {**new_pod("deleted-node", "new", number=1), "spec": {}}
    step = daemonset_steps.next_daemon_step(
        new_set(), {}, {"deleted-node": [bound, waiting]}, "new", NOW + timedelta(hours=1)
    )
    assert (step.to_create, step.to_delete) == ([], [waiting])
