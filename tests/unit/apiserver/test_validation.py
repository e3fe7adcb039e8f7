"""What is wrong with an object is said in Kubernetes' words, all of it at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.resource_registry import published_api
from tapestry.apiserver.validation import names
from tapestry.apiserver.validation.jobs import schedule_error
from tapestry.apiserver.validation.strategies import STRATEGIES, object_faults
from tapestry.kube.names import dns_label_error, dns_subdomain_error, label_key_error, label_value_error
from tapestry.kube.objects import Object, with_value

from .conftest import Hand

DEFAULT = "/api/v1/namespaces/default"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
ROWS = {row.resource.name: row for row in published_api().resources}


def a_pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def a_deployment() -> Object:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template}}


async def refusal(call: Hand, method: str, path: str, body: Any, **more: Any) -> tuple[str, list[str]]:
    """The message of a refusal, and the fields that it is about."""
    status, found = await call(method, path, body, **more)
    assert (status, found["reason"]) == (422, "Invalid"), found
    return found["message"], [each["field"] for each in found["details"]["causes"]]


async def test_everything_that_is_wrong_is_reported_together_in_order(call: Hand) -> None:
    body = a_pod(containers=[{"name": "C", "ports": [{"containerPort": 0}]}], restartPolicy="Maybe")
    message, fields = await refusal(call, "POST", f"{DEFAULT}/pods", body)
    assert message.startswith('Pod "p" is invalid: [spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123')
    assert fields == [
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
        "spec.restartPolicy",
    ]


async def test_one_fault_is_told_without_brackets(call: Hand) -> None:
    message, fields = await refusal(call, "POST", f"{DEFAULT}/pods", a_pod(containers=[]))
    assert message == 'Pod "p" is invalid: spec.containers: Required value'
    assert fields == ["spec.containers"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{DEFAULT}/configmaps", {"metadata": {"name": "A"}}, "metadata.name"),
        (f"{DEFAULT}/services", {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 1}]}}, "metadata.name"),
        ("/api/v1/namespaces", {"metadata": {"name": "a.b"}}, "metadata.name"),
        (f"{DEFAULT}/configmaps", {"metadata": {"name": "a", "labels": {"a b": "c"}}}, "metadata.labels"),
        (f"{DEFAULT}/configmaps", {"metadata": {"name": "a", "finalizers": ["x"]}}, "metadata.finalizers[0]"),
        (f"{DEFAULT}/configmaps", {"metadata": {"name": "a"}, "data": {"": "x"}}, "data[]"),
        (f"{DEFAULT}/secrets", {"metadata": {"name": "a"}, "type": "kubernetes.io/ssh-auth"}, "data[ssh-privatekey]"),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "a/b"}}, "metadata.name"),
    ],
)
async def test_each_kind_has_rules_for_its_names_and_fields(call: Hand, path: str, body: Object, field: str) -> None:
    assert (await refusal(call, "POST", path, body))[1] == [field]


async def test_a_role_may_have_a_name_that_no_other_object_may(call: Hand) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    assert (await call("POST", path, {"metadata": {"name": "System:It_is"}}))[0] == 201


async def test_the_spec_of_a_pod_stays_but_for_images_and_more_tolerations(call: Hand) -> None:
    made = await call.made(f"{DEFAULT}/pods", a_pod())
    path = f"{DEFAULT}/pods/p"
    container = {**made["spec"]["containers"][0], "image": "other"}
    allowed = with_value(made, ("spec", "containers"), [container])
    assert (await call("PUT", path, allowed))[0] == 200
    _, current = await call("GET", path)
    message, fields = await refusal(call, "PUT", path, with_value(current, ("spec", "hostNetwork"), True))
    assert "pod updates may not change fields other than `spec.containers[*].image`" in message
    assert fields == ["spec"]


async def test_the_selector_of_a_workload_stays(call: Hand) -> None:
    made = await call.made(DEPLOYMENTS, a_deployment())
    moved = with_value(made, ("spec", "selector"), {"matchLabels": {"app": "b"}})
    moved = with_value(moved, ("spec", "template", "metadata", "labels"), {"app": "b"})
    message, _ = await refusal(call, "PUT", f"{DEPLOYMENTS}/d", moved)
    assert message.endswith('spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable')


async def test_what_is_said_to_be_immutable_is(call: Hand) -> None:
    await call.made(f"{DEFAULT}/configmaps", {"metadata": {"name": "m"}, "data": {"a": "b"}, "immutable": True})
    body = {"data": {"a": "c"}, "immutable": False}
    message, fields = await refusal(call, "PATCH", f"{DEFAULT}/configmaps/m", body, kind="application/merge-patch+json")
    assert fields == ["immutable", "data"]
    assert "field is immutable when `immutable` is set" in message


async def test_a_status_is_judged_as_a_status(call: Hand) -> None:
    await call.made(DEPLOYMENTS, a_deployment())
    body = {"status": {"replicas": 1, "readyReplicas": 2}}
    message, _ = await refusal(call, "PATCH", f"{DEPLOYMENTS}/d/status", body, kind="application/merge-patch+json")
    assert message.endswith("status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas")


async def test_an_amount_is_kept_in_its_canonical_form_and_must_be_one(call: Hand) -> None:
    asked = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": 0.5, "memory": "1024Mi"}}}]
    made = await call.made(f"{DEFAULT}/pods", a_pod(containers=asked))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    wrong = a_pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "lots"}}}])
    status, found = await call("POST", f"{DEFAULT}/pods", wrong)
    assert (status, "quantities must match the regular expression" in found["message"]) == (400, True)


async def test_what_is_no_base64_is_refused(call: Hand) -> None:
    body = {"metadata": {"name": "s"}, "data": {"a": "not base64!"}}
    status, found = await call("POST", f"{DEFAULT}/secrets", body)
    assert (status, found["message"].endswith("illegal base64 data at input byte 3")) == (400, True)


@pytest.mark.parametrize("query", [{"dryRun": "Maybe"}, {"fieldValidation": "Maybe"}])
async def test_an_option_has_one_of_its_values(call: Hand, query: dict[str, str]) -> None:
    status, found = await call("POST", f"{DEFAULT}/configmaps", {"metadata": {"name": "a"}}, **query)
    assert (status, found["details"]["kind"]) == (422, "CreateOptions")
    status, found = await call("DELETE", f"{DEFAULT}/configmaps/a", {"propagationPolicy": "Maybe"})
    assert (status, found["details"]["kind"]) == (422, "DeleteOptions")


def test_every_rule_is_for_a_resource_that_is_served() -> None:
    assert set(STRATEGIES) <= {row.storage for row in ROWS.values()}


@given(name=st.sampled_from(sorted(STRATEGIES)))
def test_an_object_of_nothing_but_a_name_is_judged_and_never_fails(name: str) -> None:
    row = ROWS[name]
    obj: Object = {"apiVersion": row.resource.api_version, "metadata": {"name": "a", "namespace": "default"}}
    assert all(each.message for each in object_faults(row, "", None, {**obj, "spec": {}}))


# -- names


@given(
    text=st.text(st.sampled_from("aZ0-_./ "), max_size=8) | st.text(st.sampled_from("ab-."), min_size=60, max_size=70)
)
def test_names_are_those_that_our_own_vocabulary_knows(text: str) -> None:
    assert bool(names.dns_label_errors(text)) == bool(dns_label_error(text))
    assert bool(names.dns_subdomain_errors(text)) == bool(dns_subdomain_error(text))
    assert bool(names.label_value_errors(text)) == bool(label_value_error(text))
    if text.count("/") < 2:
        assert bool(names.qualified_name_errors(text)) == bool(label_key_error(text))


@given(text=st.text(max_size=20))
def test_a_key_of_a_config_map_can_be_the_name_of_a_file(text: str) -> None:
    if not names.config_key_errors(text):
        assert text not in ("", ".", "..")
        assert "/" not in text


# -- schedules


@pytest.mark.parametrize(
    "text", ["* * * * *", "*/5 0-6 1,15 jan-dec sun", "? ? ? ? ?", "@daily", "@every 1h30m", "0/15 * * * 6"]
)
def test_these_are_schedules(text: str) -> None:
    assert schedule_error(text) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("61 * * * *", "end of range (61) above maximum (59): 61"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("x * * * *", 'failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax'),
        ("@fortnightly", "unrecognized descriptor: @fortnightly"),
    ],
)
def test_these_are_none_and_it_says_why(text: str, why: str) -> None:
    assert schedule_error(text) == why


@given(numbers=st.tuples(*(st.integers(*bounds) for bounds in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)))))
def test_every_moment_can_be_scheduled(numbers: tuple[int, ...]) -> None:
    assert schedule_error(" ".join(map(str, numbers))) == ""
