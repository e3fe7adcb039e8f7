"""Selectors of tenants match the twins of the pods that they matched in the plane, and no others."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.kube.names import label_key_error, label_value_error
from tapestry.kube.objects import Object
from tapestry.kube.selectors import Operator, label_selector
from tapestry.syncer.translate.allowed_metadata import is_copied
from tapestry.syncer.translate.metadata import twin_labels
from tapestry.syncer.translate.tenant_labels import (
    renamed_labels,
    twin_label_key,
    twin_label_selector,
    twin_match_labels,
)

LONG = "x" * 60 + ".example.com"
NAMESPACES = ["default", "team-a", "n" * 63]
KEYS = [
    *("app", "a_b", "x" * 63, "job-name", "pod-template-hash", "app.kubernetes.io/name"),
    *("example.com/a", "example.com/b", "allowed.example.com/a", f"{LONG}/role", f"{LONG}/{'y' * 63}"),
    *(f"{LONG}/{'y' * 62}z", "e.com/" + "y" * 63, "e.comy/" + "y" * 62),
    *(keys.CLUSTER_BINDING_UID, keys.VIRTUAL_CLUSTER, keys.VIRTUAL_NAMESPACE, keys.MANAGED_BY, keys.CLUSTER_BINDING),
    *("kubernetes.io/config.mirror", "topology.kubernetes.io/zone", "security.istio.io/tlsMode"),
    *(f"{keys.TENANT_LABEL_PREFIX}example.com_a", f"{keys.TENANT_LABEL_PREFIX}app", "tenant.tapestry.io/a_b"),
]
VALUES = ["", "web", "db", "default", "uid-of-a", "uid-of-b"]
OPERATORS = [Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST]


def new_binding(uid: str = "uid-of-a", plane: str = "plane-a", *allowed: str) -> Binding:
    spec = {"clusterID": "c", "virtualCluster": plane, "hostCluster": "host", "mountNamespace": "tenant"}
    found = binding_of({"metadata": {"name": "t", "uid": uid}, "spec": spec}, plane, manager_namespace="")
    return Binding(
        *(found.name, found.uid, found.virtual_cluster, structs.replace(found.spec, allowed_metadata=allowed)),
        manager_namespace="",
    )


A, B = new_binding(), new_binding("uid-of-b", "plane-b")
OF_SAME_PLANE = new_binding("uid-of-later")
"""A later binding of the plane of A."""
WITH_ALLOWED = new_binding("uid-of-a", "plane-a", "allowed.example.com/*", "security.istio.io/tlsMode")


def new_pod(labels: Mapping[str, str], namespace: str = "default") -> Object:
    return {"metadata": {"name": "p", "namespace": namespace, "uid": "u", "labels": dict(labels)}}


@st.composite
def selectors(draw: st.DrawFn) -> Object:
    """Return a label selector, with and without each part."""
    expression = st.sampled_from(OPERATORS).flatmap(
        lambda operator: st.fixed_dictionaries(
            {
                "key": st.sampled_from(KEYS),
                "operator": st.just(str(operator)),
                **(
                    {"values": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)}
                    if operator in (Operator.IN, Operator.NOT_IN)
                    else {}
                ),
            }
        )
    )
    result: Object = {}
    if draw(st.booleans()):
        result["matchLabels"] = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=3))
    if draw(st.booleans()):
        result["matchExpressions"] = draw(st.lists(expression, max_size=3))
    return result


BINDINGS = st.sampled_from([A, WITH_ALLOWED])
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=6)
POD_NAMESPACES = st.sampled_from(NAMESPACES)


@given(selectors(), LABELS, POD_NAMESPACES, st.none() | st.lists(POD_NAMESPACES, max_size=3), BINDINGS)
def test_selector_matches_exactly_the_twins(
    selector: Object, labels: dict[str, str], namespace: str, namespaces: list[str] | None, binding: Binding
) -> None:
    is_selected = label_selector(selector).matches(labels) and (namespaces is None or namespace in namespaces)
    renamed = label_selector(twin_label_selector(selector, binding, namespaces))
    assert renamed.matches(twin_labels(new_pod(labels, namespace), binding)) is is_selected


@given(selectors(), LABELS, POD_NAMESPACES, st.none() | st.lists(POD_NAMESPACES, max_size=3), BINDINGS)
def test_selector_never_matches_twins_of_others(
    selector: Object, labels: dict[str, str], namespace: str, namespaces: list[str] | None, binding: Binding
) -> None:
    renamed = label_selector(twin_label_selector(selector, binding, namespaces))
    for other in (B, OF_SAME_PLANE):
        assert not renamed.matches(twin_labels(new_pod(labels, namespace), other))
    assert not renamed.matches(labels), "pods of the host that are no twins"


@given(LABELS, LABELS, POD_NAMESPACES, POD_NAMESPACES, BINDINGS)
def test_match_labels_match_exactly_the_twins(
    wanted: dict[str, str], labels: dict[str, str], namespace: str, own: str, binding: Binding
) -> None:
    renamed = twin_match_labels(wanted, binding, namespace)
    is_selected = wanted.items() <= labels.items() and namespace == own
    assert (renamed.items() <= twin_labels(new_pod(labels, own), binding).items()) is is_selected
    assert not renamed.items() <= twin_labels(new_pod(labels, namespace), B).items()


@given(LABELS, POD_NAMESPACES, BINDINGS)
def test_twins_have_valid_labels_that_prove_their_owner(
    labels: dict[str, str], namespace: str, binding: Binding
) -> None:
    found = twin_labels(new_pod(labels, namespace), binding)
    assert [label_key_error(key) or label_value_error(value) for key, value in found.items()] == [None] * len(found)
    assert binding.owns({"metadata": {"labels": found}})
    assert not B.owns({"metadata": {"labels": found}})
    assert found[keys.VIRTUAL_NAMESPACE] == namespace


@given(st.lists(st.sampled_from(KEYS), min_size=2, max_size=2, unique=True), BINDINGS)
def test_different_keys_stay_different(found: list[str], binding: Binding) -> None:
    assert len({twin_label_key(each, binding) for each in found}) == 2


DNS = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?(\.[a-z]([-a-z0-9]{0,20}[a-z0-9])?){0,3}", fullmatch=True)
NAME = st.from_regex(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?", fullmatch=True)


@given(st.lists(st.tuples(DNS, NAME), min_size=2, max_size=2, unique=True))
def test_keys_of_any_length_stay_valid_and_different(found: list[tuple[str, str]]) -> None:
    renamed = [twin_label_key("/".join(each), A) for each in found]
    assert [label_key_error(each) for each in renamed] == [None, None]
    assert len(set(renamed)) == 2


@pytest.mark.parametrize("key", KEYS)
def test_uncopied_keys_get_the_prefix_of_tenants(key: str) -> None:
    renamed = twin_label_key(key, A)
    if is_copied("labels", key, A):
        assert renamed == key
        assert renamed_labels(new_pod({key: "v"}), A) == {}
    else:
        assert renamed.startswith(keys.TENANT_LABEL_PREFIX)
        assert renamed_labels(new_pod({key: "v"}), A) == {renamed: "v"}


def test_selector_of_no_namespace_matches_nothing() -> None:
    renamed = label_selector(twin_label_selector({}, A, ()))
    assert not any(renamed.matches(twin_labels(new_pod({}, each), A)) for each in NAMESPACES)


def test_empty_selector_matches_all_pods_of_the_tenant() -> None:
    renamed = label_selector(twin_label_selector({}, A, None))
    assert all(renamed.matches(twin_labels(new_pod({}, each), A)) for each in NAMESPACES)
    assert not renamed.matches({})
