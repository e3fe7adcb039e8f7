"""Quota: sums over objects, checked for what a write adds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.projects import QuotaLimits
from tapestry.kube.objects import Object
from tapestry.vclusters.quota import (
    Charge,
    charges_of,
    has_operation,
    snapshot_charge,
    total_usage,
    used_texts,
    vcluster_charge,
    violations,
)

RESOURCES = {"cpuRequest": "500m", "cpuLimit": "1", "memoryRequest": "256Mi", "memoryLimit": "1Gi"}


def new_vcluster(owner: str = "jane", project: str = "shop", **spec: Any) -> Object:
    sizes = {"resources": RESOURCES, "storage": {"persistenceSize": "5Gi"}}
    return {"metadata": {"name": "v"}, "spec": {"project": project, "owner": owner, **sizes, **spec}}


def new_quota(user_limits: Object | None = None, **limits: Any) -> Object:
    return {"spec": {"project": "shop", "limits": limits, "userLimits": user_limits or {}}}


def texts(quota: Object, others: list[Object], old: Object | None, new: Object) -> list[str]:
    before = vcluster_charge(old) if old is not None else None
    found = violations(quota, map(vcluster_charge, others), before, vcluster_charge(new))
    return [f"{subject}: {text}" for subject, text in found]


def test_usage_of_running_cluster() -> None:
    charge = vcluster_charge(new_vcluster())
    assert (charge.project, charge.owner) == ("shop", "jane")
    assert charge.usage.texts() == {
        "vclusters": "1",
        "runningVclusters": "1",
        "cpuRequests": "500m",
        "cpuLimits": "1",
        "memoryRequests": "256Mi",
        "memoryLimits": "1Gi",
        "storage": "5Gi",
    }


@pytest.mark.parametrize(
    ("is_freed", "status"),
    [
        (True, {"phase": "Suspended"}),
        (True, {"phase": "Snapshotting", "journal": {"phaseFrom": "Suspended"}}),
        (False, {"phase": "Suspending", "journal": {"phaseFrom": "Running"}}),
        (False, {"phase": "Running"}),  # the suspend has failed
        (False, {}),
    ],
)
def test_suspended_cluster_uses_only_storage(is_freed: bool, status: Object) -> None:
    usage = vcluster_charge({**new_vcluster(suspended=True), "status": status}).usage
    assert usage.keys() >= {"vclusters", "storage"}
    freed = {"runningVclusters", "cpuRequests", "cpuLimits", "memoryRequests", "memoryLimits"}
    assert usage.keys() & freed == (set() if is_freed else freed)
    assert "runningVclusters" in vcluster_charge({**new_vcluster(), "status": status}).usage


def test_create_over_a_limit_is_a_violation() -> None:
    others = [new_vcluster(), new_vcluster("joe")]
    assert texts(new_quota(vclusters=3), others, None, new_vcluster()) == []
    assert texts(new_quota(vclusters=2, memoryLimits="2Gi"), others, None, new_vcluster()) == [
        "project shop: memoryLimits: requested 1Gi, used 2Gi, limit 2Gi",
        "project shop: vclusters: requested 1, used 2, limit 2",
    ]


def test_users_have_limits_of_their_own() -> None:
    quota = new_quota({"vclusters": 1})
    assert texts(quota, [new_vcluster("joe")], None, new_vcluster("jane")) == []
    assert texts(quota, [new_vcluster("jane")], None, new_vcluster("jane")) == [
        "user jane: vclusters: requested 1, used 1, limit 1"
    ]


def test_other_projects_do_not_count() -> None:
    assert texts(new_quota(vclusters=1), [new_vcluster(project="other")], None, new_vcluster()) == []


def test_resume_is_checked_again() -> None:
    suspended, resumed = {**new_vcluster(suspended=True), "status": {"phase": "Suspended"}}, new_vcluster()
    quota = new_quota(runningVclusters=1)
    assert texts(quota, [], suspended, resumed) == []
    assert texts(quota, [new_vcluster()], suspended, resumed) == [
        "project shop: runningVclusters: requested 1, used 1, limit 1"
    ]


def test_writes_that_add_nothing_pass_a_lowered_limit() -> None:
    quota = new_quota(vclusters=1, cpuLimits="500m")
    others = [new_vcluster(), new_vcluster()]
    assert texts(quota, others, new_vcluster(), new_vcluster()) == []
    assert texts(quota, others, new_vcluster(), new_vcluster(suspended=True)) == []


def test_limited_amounts_must_be_given() -> None:
    quota = new_quota(cpuLimits="4", storage="10Gi")
    assert texts(quota, [], None, new_vcluster(resources=None, storage=None)) == [
        "project shop: cpuLimits is limited, so spec.resources.cpuLimit must be set",
        "project shop: storage is limited, so spec.storage.persistenceSize must be set",
    ]
    assert texts(new_quota(vclusters=1), [], None, new_vcluster(resources=None)) == []


@pytest.mark.parametrize(
    ("operation", "status", "expected"),
    [
        (None, None, False),
        ({"id": "op-1"}, None, True),
        ({"id": "op-1"}, {"lastOperation": "op-1"}, False),
        ({"id": "op-2"}, {"lastOperation": "op-1"}, True),
        ({"id": "op-1"}, {"journal": {"id": "op-1"}}, True),
        (None, {"phase": "Deleting"}, True),
    ],
)
def test_running_and_waiting_operations_count(operation: Object | None, status: Object, expected: bool) -> None:
    vcluster = {**new_vcluster(operation=operation), "status": status}
    assert has_operation(vcluster) is expected
    assert ("concurrentOperations" in vcluster_charge(vcluster).usage) is expected


def new_snapshot(name: str = "snap-1", **status: Any) -> Object:
    spec = {"project": "shop", "owner": "jane", "vcluster": "v", "vclusterUid": "u"}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def test_snapshots_count_for_owner_of_their_cluster() -> None:
    charge = snapshot_charge(new_snapshot(sizeBytes=4096))
    assert (charge.owner, charge.usage.texts()) == ("jane", {"snapshots": "1", "snapshotBytes": "4096"})
    quota = new_quota(snapshots=1)
    assert violations(quota, [charge], None, charge)
    assert not violations(quota, [vcluster_charge(new_vcluster())], None, charge)
    assert snapshot_charge(new_snapshot(phase="Failed", sizeBytes=4096)).usage == {}


SNAPSHOT, SUSPEND = {"id": "op-1", "verb": "Snapshot"}, {"id": "op-1", "verb": "Suspend"}


@pytest.mark.parametrize(
    ("operation", "status", "expected"),
    [
        (SNAPSHOT, {}, 1),
        (SNAPSHOT, {"lastOperation": "op-1"}, 0),
        (SNAPSHOT, {"journal": SNAPSHOT}, 1),
        ({"id": "op-2", "verb": "Snapshot"}, {"journal": SNAPSHOT}, 2),
        ({"id": "op-2", "verb": "Scale"}, {"journal": SNAPSHOT}, 1),
        ({**SUSPEND, "arguments": {"createSnapshot": True}}, {}, 1),
        (SUSPEND, {}, 0),
        (None, {}, 0),
    ],
)
def test_snapshot_counts_before_it_is_stored(operation: Object | None, status: Object, expected: int) -> None:
    vcluster = {**new_vcluster(operation=operation), "status": status}
    assert total_usage(charges_of([vcluster], []), "shop")["snapshots"].value() == expected
    stored = [new_snapshot("snap-1", phase="Creating")]
    assert total_usage(charges_of([vcluster], stored), "shop")["snapshots"].value() == max(expected, 1)
    used = used_texts(total_usage(charges_of([vcluster], [new_snapshot("snap-9", sizeBytes=10)]), "shop"))
    assert (used["snapshots"], used["snapshotBytes"], used["storage"]) == (str(expected + 1), str(expected + 10), "5Gi")


def test_all_limits_are_reported() -> None:
    assert used_texts(total_usage([], "shop")) == dict.fromkeys(QuotaLimits.__struct_encode_fields__, "0")


@given(st.lists(st.tuples(st.sampled_from(["jane", "joe"]), st.booleans(), st.integers(1, 9)), max_size=20))
def test_admitted_writes_never_exceed_limits(requests: list[tuple[str, bool, int]]) -> None:
    quota = new_quota({"vclusters": 4}, cpuLimits="12", vclusters=6)
    charges: list[Charge] = []
    for owner, suspended, cpus in requests:
        resources = {**RESOURCES, "cpuLimit": str(cpus)}
        charge = vcluster_charge(new_vcluster(owner, suspended=suspended, resources=resources))
        if not violations(quota, charges, None, charge):
            charges.append(charge)
    used = total_usage(charges, "shop")
    assert used["cpuLimits"].value() <= 12
    assert used["vclusters"].value() <= 6
    assert all([each.owner for each in charges].count(owner) <= 4 for owner in ("jane", "joe"))
