from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis import keys
from tapestry.kube.objects import Object, name_of, without_field
from tapestry.manager.validation import BindingError, RetryPolicy, check_identity, preferred_binding, validated_spec

SYSTEM = keys.SYSTEM_NAMESPACE


def new_binding(name: str = "east", *, identity: str | None = None, **spec: Any) -> Object:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": spec.pop("created", "2024-01-01T00:00:00Z")}
    given = {"clusterID": name, "secretRef": {"name": name, "namespace": SYSTEM}, "mountNamespace": "leased", **spec}
    return {"metadata": metadata, "spec": given, "status": {"identity": identity} if identity else {}}


def error_of(binding: Object, *others: Object) -> BindingError:
    with pytest.raises(BindingError) as caught:
        validated_spec(binding, others, {SYSTEM})
    return caught.value


def test_complete_binding_is_valid() -> None:
    assert validated_spec(new_binding(), [new_binding("west")], {SYSTEM}).cluster_id == "east"


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (without_field(new_binding(), "spec", "clusterID"), "spec.clusterID: is required"),
        (new_binding(clusterID=""), "spec.clusterID: "),
        (new_binding(clusterID="no spaces"), "spec.clusterID: "),
        (new_binding(clusterID="x" * 25), "spec.clusterID: "),
        (without_field(new_binding(), "spec", "secretRef"), "spec.secretRef: is required"),
        (new_binding(secretRef={"namespace": SYSTEM}), "spec.secretRef.name: is required"),
        (new_binding(secretRef={"name": "east", "namespace": ""}), "spec.secretRef.namespace: "),
        (without_field(new_binding(), "spec", "mountNamespace"), "spec.mountNamespace: required"),
        (new_binding(mountNamespace="Team_A"), "spec.mountNamespace: "),
        (new_binding(serviceNamespaces=["web", ""]), "spec.serviceNamespaces[1]: "),
        (new_binding("n" * 238, clusterID="east"), "metadata.name: 238 characters are over the limit of 237"),
        (without_field(new_binding(), "spec"), "spec.clusterID: is required"),
    ],
)
def test_error_starts_with_the_path(binding: Object, message: str) -> None:
    fault = error_of(binding)
    assert fault.reason == "ValidationFailed"
    assert fault.message.startswith(message)
    assert fault.retry is RetryPolicy.ON_CHANGE


def test_older_binding_keeps_the_cluster_id() -> None:
    old, young = new_binding("old", clusterID="c"), new_binding("young", clusterID="c", created="2024-06-01T00:00:00Z")
    assert validated_spec(old, [young], {SYSTEM})
    fault = error_of(young, old)
    assert (fault.reason, fault.retry) == ("DuplicateClusterID", RetryPolicy.ON_CHANGE)
    assert fault.message.startswith("spec.clusterID: c belongs to ClusterBinding old")


def test_accepted_binding_is_preferred_over_older() -> None:
    at_work = new_binding("young", clusterID="c", created="2024-06-01T00:00:00Z", identity="one")
    assert validated_spec(at_work, [new_binding("old", clusterID="c")], {SYSTEM})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=2, max_size=4))
def test_preference_does_not_depend_on_order(traits: list[tuple[bool, int]]) -> None:
    bindings = [
        new_binding(f"b{number}", created=f"2024-01-0{day + 1}T00:00:00Z", identity="x" if accepted else None)
        for number, (accepted, day) in enumerate(traits)
    ]
    winners = {name_of(preferred_binding(first, others)) for first, *others in permutations(bindings)}
    assert len(winners) == 1


def test_secret_must_be_in_an_allowed_namespace() -> None:
    binding = new_binding(secretRef={"name": "east", "namespace": "kube-system"})
    fault = error_of(binding)
    assert (fault.reason, fault.condition) == ("SecretNamespaceNotAllowed", "Connected")
    assert "kube-system is not one of tapestry-system" in fault.message
    assert validated_spec(binding, [], {SYSTEM, "kube-system"})


def identity_error(binding: Object, identity: str, *others: Object) -> str:
    try:
        check_identity(binding, identity, others)
    except BindingError as fault:
        return fault.reason
    return ""


def test_first_identity_is_accepted() -> None:
    assert identity_error(new_binding(), "one") == ""
    assert identity_error(new_binding(identity="one"), "one") == ""


def test_changed_identity_needs_approval() -> None:
    binding = new_binding(identity="one")
    assert identity_error(binding, "two") == "IdentityChanged"
    for approved, reason in (("two", ""), ("one", "IdentityChanged"), ("true", "IdentityChanged")):
        metadata = {**binding["metadata"], "annotations": {keys.APPROVE_IDENTITY: approved}}
        assert identity_error({**binding, "metadata": metadata}, "two") == reason


def test_cluster_belongs_to_the_binding_with_its_identity() -> None:
    holder = new_binding("young", identity="one", created="2024-06-01T00:00:00Z")
    assert identity_error(new_binding("old"), "one", holder) == "DuplicateCluster"
    assert identity_error(holder, "one", new_binding("old")) == ""


def test_older_binding_of_same_cluster_is_preferred() -> None:
    old = new_binding("old", identity="one")
    young = new_binding("young", identity="one", created="2024-06-01T00:00:00Z")
    assert identity_error(old, "one", young) == ""
    assert identity_error(young, "one", old) == "DuplicateCluster"
