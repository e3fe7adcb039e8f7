"""Tests of StatefulSet steps against a model."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.controlplane.workloads import owned_pods, statefulset_steps
from tapestry.controlplane.workloads.statefulset_steps import RevisionNames, StatefulStep, claim_owner_references
from tapestry.kube.objects import Object, is_deleting, labels_of, name_of
from tapestry.kube.times import timestamp

NOW = datetime(2024, 1, 1, tzinfo=UTC)
NAMES = RevisionNames("old", "new")


def new_set(
    replicas: int, *, parallel: bool = False, partition: int = 0, max_unavailable: int | str = 1, start: int = 0
) -> Object:
    rolling = {"partition": partition, "maxUnavailable": max_unavailable}
    spec = {
        "replicas": replicas,
        "ordinals": {"start": start},
        "podManagementPolicy": "Parallel" if parallel else "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"volumes": [{"name": "tmp"}, {"name": "data"}]}},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "uid": "u"}, "spec": spec}


def new_pod(
    number: int, revision: str = "new", *, healthy: bool = True, deleting: bool = False, phase: str = ""
) -> Object:
    metadata: dict[str, Any] = {
        "name": f"db-{number}",
        "uid": f"{number}-{revision}",
        "creationTimestamp": timestamp(NOW),
    }
    metadata["labels"] = {"controller-revision-hash": revision}
    if deleting:
        metadata["deletionTimestamp"] = timestamp(NOW)
    ready = {"type": "Ready", "status": str(healthy), "lastTransitionTime": timestamp(NOW)}
    return {
        "metadata": metadata,
        "status": {"phase": phase or ("Running" if healthy else "Pending"), "conditions": [ready]},
    }


@st.composite
def pods(draw: st.DrawFn) -> dict[int, Object]:
    numbers = draw(st.sets(st.integers(0, 7)))
    return {
        number: new_pod(
            number,
            draw(st.sampled_from(["old", "new"])),
            healthy=draw(st.booleans()),
            deleting=draw(st.sampled_from([False, False, True])),
        )
        for number in numbers
    }


@st.composite
def sets(draw: st.DrawFn) -> Object:
    return new_set(
        draw(st.integers(0, 6)),
        parallel=draw(st.booleans()),
        partition=draw(st.integers(0, 6)),
        max_unavailable=draw(st.sampled_from([1, 2, "50%"])),
        start=draw(st.integers(0, 2)),
    )


def is_healthy(pod: Object) -> bool:
    return statefulset_steps.is_healthy(pod, timedelta(), NOW)


@given(sets(), pods())
def test_update_deletes_at_most_max_unavailable(stateful_set: Object, found: dict[int, Object]) -> None:
    ordinals = statefulset_steps.ordinals_of(stateful_set)
    step = statefulset_steps.next_stateful_step(stateful_set, found, NAMES, NOW)
    deleted = [pod for pod in step.to_delete if statefulset_steps.ordinal_of(stateful_set, pod) in ordinals]
    unhealthy = sum(ordinal not in found or not is_healthy(found[ordinal]) for ordinal in ordinals)
    absolute = {1: 1, 2: 2}.get(stateful_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"])
    limit = max(absolute if absolute is not None else -(-len(ordinals) // 2), 1)
    assert sum(map(is_healthy, deleted)) <= max(limit - unhealthy, 0)
    assert not any(is_deleting(pod) for pod in step.to_delete)
    for pod in deleted:
        assert labels_of(pod)["controller-revision-hash"] == "old"
        assert (statefulset_steps.ordinal_of(stateful_set, pod) or 0) >= statefulset_steps.partition_of(stateful_set)


@given(sets(), pods())
def test_ordered_creation_waits_for_lower_ordinals(stateful_set: Object, found: dict[int, Object]) -> None:
    stateful_set["spec"]["podManagementPolicy"] = "OrderedReady"
    step = statefulset_steps.next_stateful_step(stateful_set, found, NAMES, NOW)
    assert (
        len(step.to_create)
        + sum(
            statefulset_steps.ordinal_of(stateful_set, pod) not in statefulset_steps.ordinals_of(stateful_set)
            for pod in step.to_delete
        )
        <= 1
    )
    for number in step.to_create:
        before = range(statefulset_steps.start_ordinal(stateful_set), number)
        assert all(each in found and is_healthy(found[each]) for each in before)


@given(sets(), pods())
def test_every_set_converges(stateful_set: Object, found: dict[int, Object]) -> None:
    for _ in range(40):
        step = statefulset_steps.next_stateful_step(stateful_set, found, NAMES, NOW)
        removed = set(map(name_of, step.to_delete))
        found = {
            number: new_pod(number, labels_of(pod)["controller-revision-hash"])
            for number, pod in found.items()
            if name_of(pod) not in removed and not is_deleting(pod)
        }
        for number in step.to_create:
            found[number] = new_pod(number, statefulset_steps.revision_for(stateful_set, number, NAMES))
    assert sorted(found) == list(statefulset_steps.ordinals_of(stateful_set))
    for number, pod in found.items():
        assert (
            number < statefulset_steps.partition_of(stateful_set) or labels_of(pod)["controller-revision-hash"] == "new"
        )


@pytest.mark.parametrize(
    ("found", "step"),
    [
        ({}, StatefulStep([0])),
        ({0: new_pod(0)}, StatefulStep([1])),
        ({0: new_pod(0, healthy=False)}, StatefulStep()),
        ({0: new_pod(0, deleting=True)}, StatefulStep()),
        ({0: new_pod(0, phase="Failed")}, StatefulStep((), [new_pod(0, phase="Failed")])),
        ({0: new_pod(0), 2: new_pod(2)}, StatefulStep([1])),
        ({0: new_pod(0), 1: new_pod(1), 2: new_pod(2), 3: new_pod(3)}, StatefulStep((), [new_pod(3)])),
        ({0: new_pod(0), 1: new_pod(1), 2: new_pod(2, deleting=True)}, StatefulStep()),
        ({0: new_pod(0, "old"), 1: new_pod(1, "old")}, StatefulStep((), [new_pod(1, "old")])),
        ({0: new_pod(0, "old"), 1: new_pod(1)}, StatefulStep((), [new_pod(0, "old")])),
    ],
)
def test_next_step_of_two_replicas(found: dict[int, Object], step: StatefulStep) -> None:
    decided = statefulset_steps.next_stateful_step(new_set(2), found, NAMES, NOW)
    assert (list(decided.to_create), list(decided.to_delete)) == (list(step.to_create), list(step.to_delete))


def test_parallel_step_is_limited_to_burst_replicas() -> None:
    found = {1: new_pod(1), 2: new_pod(2, phase="Failed"), 2**31: new_pod(2**31)}
    step = statefulset_steps.next_stateful_step(new_set(2**31 - 1, parallel=True), found, NAMES, NOW)
    assert step == StatefulStep([0, *range(3, owned_pods.BURST_REPLICAS + 2)], [found[2], found[2**31]])


def test_claims_replace_volumes_of_same_name() -> None:
    stateful_set = new_set(1)
    stateful_set["spec"]["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": {}}]
    pod = statefulset_steps.stateful_pod(stateful_set, stateful_set["spec"]["template"], 3, "new")
    assert pod["spec"]["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-3"}},
        {"name": "tmp"},
    ]


def test_claim_of_another_controller_gets_no_owner() -> None:
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    stateful_set = {"metadata": {"name": "s", "uid": "set"}, "spec": {"persistentVolumeClaimRetentionPolicy": policy}}
    ours, other = {"uid": "set", "controller": True}, {"uid": "other", "controller": True}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "s-0", "uid": "pod"}}
    for is_retained in (True, False):
        claim = {"metadata": {"name": "c", "ownerReferences": [ours, other]}}
        assert claim_owner_references(stateful_set, claim, pod, is_retained=is_retained) == [other]
