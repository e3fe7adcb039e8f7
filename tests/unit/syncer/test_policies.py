"""Parsing of policies: an invalid one changes nothing and evicts no pod."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tapestry.apis.clusterbindings import Binding, ClusterBindingSpec
from tapestry.apis.field_types import SecretReference
from tapestry.kube.objects import Object
from tapestry.kube.selectors import EVERY_NODE
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.syncer.leasing import Lease, LeaseRules, LeaseState, PolicySide, lease_for
from tapestry.syncer.policies import (
    ParsedPolicy,
    applies_to_binding,
    changed_at,
    parse_policy,
    parsed_policies,
    parsed_policy,
)
from tapestry.syncer.reclaim import Reclaim, reclaim_for

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
NIGHT = {"timeWindows": [{"start": "22:00", "end": "06:00"}]}
BINDING = Binding("east", "uid-1", "v1", ClusterBindingSpec("c-east", SecretReference("east", "tapestry-system")))
NODE: Object = {"metadata": {"name": "n1", "labels": {"gpu": ""}}, "status": {"allocatable": {"cpu": "8"}}}
GPU = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}


def new_policy(name: str = "p", last_good: Object | None = None, **spec: Any) -> Object:
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    status = {"lastGood": last_good} if last_good else {}
    return {"metadata": metadata, "spec": {"cluster": "east", **spec}, "status": status}


def parsed(policy: Object, side: PolicySide = PolicySide.OPERATOR) -> ParsedPolicy:
    return parsed_policy(policy, side, "UTC")


def lease(*found: ParsedPolicy, now: datetime = NOON, **rules: Any) -> Lease:
    operator = [each.policy for each in found if each.policy.side is PolicySide.OPERATOR]
    owner = [each.policy for each in found if each.policy.side is PolicySide.OWNER]
    return lease_for(NODE, [], [], LeaseRules(operator, owner, EVERY_NODE, **rules), now)


def new_pod() -> Object:
    metadata = {"name": "w", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"nodeName": "v", "containers": []}, "status": {"phase": "Running"}}


INVALID = [
    ({"timeZone": "Mars/Olympus", "timeWindows": []}, "spec.timeZone: 'Mars/Olympus' is not a time zone"),
    ({"timeWindows": [{"start": "8:00", "end": "18:00"}]}, "spec.timeWindows[0].start: "),
    ({"resourceLimits": [{"resource": "cpu", "percent": 140}]}, "spec.resourceLimits[0].percent: "),
    (
        {"resourceLimits": [{"resource": "cpu"}, {"resource": "memory", "quantity": "1e99999"}]},
        "spec.resourceLimits[1].quantity: '1e99999' is not a quantity",
    ),
    (
        {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a b", "operator": "Exists"}]}]}},
        "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key: ",
    ),
    ({"forceReclaim": "yes"}, "spec.forceReclaim: "),
]


def test_policy_is_parsed_with_windows_and_selector() -> None:
    policy = parse_policy(new_policy(nodeSelector=GPU, timeZone="Asia/Shanghai", **NIGHT), PolicySide.OWNER, "UTC")
    assert str(policy) == "owner/p"
    assert policy.is_valid
    assert policy.is_open(datetime(2026, 3, 2, 14, tzinfo=UTC))
    assert not policy.is_open(datetime(2026, 3, 2, 22, tzinfo=UTC))
    assert policy.selector.matches(NODE)
    assert not policy.selector.matches({"metadata": {"name": "n2"}})


@pytest.mark.parametrize(("spec", "error"), INVALID)
def test_error_names_the_field(spec: Object, error: str) -> None:
    assert parsed(new_policy(**spec)).error.startswith(error)


@pytest.mark.parametrize(("spec", "error"), INVALID)
def test_invalid_policy_keeps_its_last_valid_spec(spec: Object, error: str) -> None:
    good = {"cluster": "east", "resourceLimits": [{"resource": "cpu", "quantity": "3"}], **NIGHT}
    found = parsed(new_policy(last_good=good, **{"forceReclaim": True, **spec}))
    assert found.error.startswith(error)
    assert found.policy == parsed(new_policy(**good)).policy
    assert str(lease(found, now=datetime(2026, 3, 2, 23, tzinfo=UTC)).amounts["cpu"]) == "3"


@pytest.mark.parametrize(("spec", "error"), INVALID)
@pytest.mark.parametrize("last_good", [None, {"cluster": "east", "timeZone": "Mars/Phobos"}])
def test_invalid_policy_leases_and_evicts_nothing(spec: Object, error: str, last_good: Object | None) -> None:
    found = parsed(new_policy(last_good=last_good, **{"forceReclaim": True, **spec}))
    assert found.error.startswith(error)
    leased = lease(found)
    assert (leased.state, leased.reason, str(leased.amounts["cpu"])) == (LeaseState.CLOSED, "InvalidPolicy", "0")
    assert reclaim_for(leased, [new_pod()], NOON) == Reclaim(terms=leased.terms)


def test_invalid_owner_policy_still_limits_the_node() -> None:
    operators, typo = parsed(new_policy()), parsed(new_policy(timeZone="Mars/Olympus"), PolicySide.OWNER)
    leased = lease(operators, typo, owner_required=True)
    assert (leased.state, str(leased.amounts["cpu"])) == (LeaseState.CLOSED, "0")


def test_invalid_policy_keeps_its_readable_selector() -> None:
    typo = parsed(new_policy(timeZone="Mars/Olympus", nodeSelector=GPU))
    assert typo.policy.selector.matches(NODE)
    assert not typo.policy.selector.matches({"metadata": {"name": "n2"}})
    worse = parsed(new_policy(nodeSelector={"nodeSelectorTerms": "all"}))
    assert worse.policy.selector is EVERY_NODE


# -- matching


@pytest.mark.parametrize(
    ("cluster", "about"), [("east", True), ("c-east", True), ("west", False), ("", False), (None, False)]
)
def test_policy_names_binding_or_cluster_id(cluster: str | None, about: bool) -> None:
    assert applies_to_binding({"metadata": {"name": "p"}, "spec": {"cluster": cluster}}, BINDING) is about


def test_policies_are_sorted_by_name() -> None:
    policies = [new_policy("c"), new_policy("a"), new_policy("elsewhere", cluster="west"), new_policy("b")]
    for given in (policies, policies[::-1]):
        assert [each.policy.name for each in parsed_policies(given, PolicySide.OPERATOR, BINDING, "UTC")] == [
            "a",
            "b",
            "c",
        ]


def test_deleting_policy_does_not_count() -> None:
    going = new_policy("going")
    going["metadata"]["deletionTimestamp"] = "2026-03-02T11:00:00Z"
    assert parsed_policies([going], PolicySide.OWNER, BINDING, "UTC") == []


# -- time of the last change


def new_entry(time: str, **rest: str) -> Object:
    return {"manager": "kubectl", "operation": "Update", "time": time, **rest}


def with_entries(*entries: Object) -> Object:
    policy = new_policy()
    return {**policy, "metadata": {**policy["metadata"], "managedFields": list(entries)}}


def test_spec_time_is_the_last_non_status_write() -> None:
    policy = with_entries(
        new_entry("2026-02-01T08:00:00Z"),
        new_entry("2026-02-03T08:00:00Z"),
        new_entry("2026-02-02T08:00:00Z"),
        new_entry("2026-03-01T08:00:00Z", subresource="status"),
    )
    assert changed_at(policy) == datetime(2026, 2, 3, 8, tzinfo=UTC)
    assert parse_policy(policy, PolicySide.OWNER, "UTC").changed_at == datetime(2026, 2, 3, 8, tzinfo=UTC)


def test_untouched_policy_has_its_creation_time() -> None:
    assert changed_at(new_policy()) == datetime(2026, 1, 1, tzinfo=UTC)
    assert changed_at(with_entries({"manager": "old"})) == datetime(2026, 1, 1, tzinfo=UTC)


def test_cache_keeps_time_without_managed_fields() -> None:
    remaining = with_changed_at(with_entries(new_entry("2026-02-03T08:00:00Z")))
    assert "managedFields" not in remaining["metadata"]
    assert changed_at(remaining) == datetime(2026, 2, 3, 8, tzinfo=UTC)
    assert parse_policy(remaining, PolicySide.OWNER, "UTC").changed_at == datetime(2026, 2, 3, 8, tzinfo=UTC)
