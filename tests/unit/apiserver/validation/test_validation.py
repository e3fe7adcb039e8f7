"""Tests of validation: all faults are reported together with the messages of kube-apiserver."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apiserver.core import names
from tapestry.apiserver.core.resource_registry import published_api
from tapestry.apiserver.validation.jobs import schedule_error
from tapestry.apiserver.validation.strategies import STRATEGIES, object_faults
from tapestry.kube.names import dns_label_error, dns_subdomain_error, label_key_error, label_value_error
from tapestry.kube.objects import Object, with_value

from ..conftest import ServerClient

DEFAULT = "/api/v1/namespaces/default"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
RESOURCES = {info.resource.name: info for info in published_api().resources}


def new_pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def new_deployment() -> Object:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template}}


async def rejection(call: ServerClient, method: str, path: str, body: Any, **more: Any) -> tuple[str, list[str]]:
    """Return the message of a rejected request and the fields that it names."""
    status, response = await call(method, path, body, **more)
    assert (status, response["reason"]) == (422, "Invalid"), response
    return response["message"], [each["field"] for each in response["details"]["causes"]]


async def test_all_faults_are_reported_in_order(call: ServerClient) -> None:
    body = new_pod(containers=[{"name": "C", "ports": [{"containerPort": 0}]}], restartPolicy="Maybe")
    message, fields = await rejection(call, "POST", f"{DEFAULT}/pods", body)
    assert message.startswith('Pod "p" is invalid: [spec.containers[0].name: Invalid value: "C": a lowercase RFC 1123')
    assert fields == [
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].ports[0].containerPort",
        "spec.restartPolicy",
    ]


async def test_single_fault_has_no_brackets(call: ServerClient) -> None:
    message, fields = await rejection(call, "POST", f"{DEFAULT}/pods", new_pod(containers=[]))
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
async def test_each_kind_validates_name_and_fields(call: ServerClient, path: str, body: Object, field: str) -> None:
    assert (await rejection(call, "POST", path, body))[1] == [field]


async def test_role_name_may_contain_colons(call: ServerClient) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    assert (await call("POST", path, {"metadata": {"name": "System:It_is"}}))[0] == 201


async def test_pod_spec_is_immutable_except_images(call: ServerClient) -> None:
    created = await call.made(f"{DEFAULT}/pods", new_pod())
    path = f"{DEFAULT}/pods/p"
    container = {**created["spec"]["containers"][0], "image": "other"}
    allowed = with_value(created, ("spec", "containers"), [container])
    assert (await call("PUT", path, allowed))[0] == 200
    _, current = await call("GET", path)
    message, fields = await rejection(call, "PUT", path, with_value(current, ("spec", "hostNetwork"), True))
    assert "pod updates may not change fields other than `spec.containers[*].image`" in message
    assert fields == ["spec"]


async def test_workload_selector_is_immutable(call: ServerClient) -> None:
    created = await call.made(DEPLOYMENTS, new_deployment())
    changed = with_value(created, ("spec", "selector"), {"matchLabels": {"app": "b"}})
    changed = with_value(changed, ("spec", "template", "metadata", "labels"), {"app": "b"})
    message, _ = await rejection(call, "PUT", f"{DEPLOYMENTS}/d", changed)
    assert message.endswith('spec.selector: Invalid value: {"matchLabels":{"app":"b"}}: field is immutable')


async def test_immutable_config_map_cannot_change(call: ServerClient) -> None:
    await call.made(f"{DEFAULT}/configmaps", {"metadata": {"name": "m"}, "data": {"a": "b"}, "immutable": True})
    body = {"data": {"a": "c"}, "immutable": False}
    message, fields = await rejection(
        call, "PATCH", f"{DEFAULT}/configmaps/m", body, kind="application/merge-patch+json"
    )
    assert fields == ["immutable", "data"]
    assert "field is immutable when `immutable` is set" in message


async def test_status_update_validates_status(call: ServerClient) -> None:
    await call.made(DEPLOYMENTS, new_deployment())
    body = {"status": {"replicas": 1, "readyReplicas": 2}}
    message, _ = await rejection(call, "PATCH", f"{DEPLOYMENTS}/d/status", body, kind="application/merge-patch+json")
    assert message.endswith("status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas")


async def test_quantity_is_canonicalized_and_validated(call: ServerClient) -> None:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": 0.5, "memory": "1024Mi"}}}]
    created = await call.made(f"{DEFAULT}/pods", new_pod(containers=containers))
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
    invalid = new_pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "lots"}}}])
    status, found = await call("POST", f"{DEFAULT}/pods", invalid)
    assert (status, "quantities must match the regular expression" in found["message"]) == (400, True)


async def test_invalid_base64_is_rejected(call: ServerClient) -> None:
    body = {"metadata": {"name": "s"}, "data": {"a": "not base64!"}}
    status, found = await call("POST", f"{DEFAULT}/secrets", body)
    assert (status, found["message"].endswith("illegal base64 data at input byte 3")) == (400, True)


@pytest.mark.parametrize("query", [{"dryRun": "Maybe"}, {"fieldValidation": "Maybe"}])
async def test_unknown_option_value_is_rejected(call: ServerClient, query: dict[str, str]) -> None:
    status, found = await call("POST", f"{DEFAULT}/configmaps", {"metadata": {"name": "a"}}, **query)
    assert (status, found["details"]["kind"]) == (422, "CreateOptions")
    status, found = await call("DELETE", f"{DEFAULT}/configmaps/a", {"propagationPolicy": "Maybe"})
    assert (status, found["details"]["kind"]) == (422, "DeleteOptions")


def test_every_strategy_is_for_a_served_resource() -> None:
    assert set(STRATEGIES) <= {info.storage for info in RESOURCES.values()}


@given(name=st.sampled_from(sorted(STRATEGIES)))
def test_validation_of_empty_spec_never_crashes(name: str) -> None:
    info = RESOURCES[name]
    obj: Object = {"apiVersion": info.resource.api_version, "metadata": {"name": "a", "namespace": "default"}}
    assert all(each.message for each in object_faults(info, "", None, {**obj, "spec": {}}))


# -- names


@given(
    text=st.text(st.sampled_from("aZ0-_./ "), max_size=8) | st.text(st.sampled_from("ab-."), min_size=60, max_size=70)
)
def test_name_rules_equal_kube_names(text: str) -> None:
    assert bool(names.dns_label_errors(text)) == bool(dns_label_error(text))
    assert bool(names.dns_subdomain_errors(text)) == bool(dns_subdomain_error(text))
    assert bool(names.label_value_errors(text)) == bool(label_value_error(text))
    if text.count("/") < 2:
        assert bool(names.qualified_name_errors(text)) == bool(label_key_error(text))


@given(text=st.text(max_size=20))
def test_config_map_key_is_valid_file_name(text: str) -> None:
    if not names.config_key_errors(text):
        assert text not in ("", ".", "..")
        assert "/" not in text


# -- schedules


@pytest.mark.parametrize(
    "text", ["* * * * *", "*/5 0-6 1,15 jan-dec sun", "? ? ? ? ?", "@daily", "@every 1h30m", "0/15 * * * 6"]
)
def test_valid_schedule_is_accepted(text: str) -> None:
    assert schedule_error(text) == ""


@pytest.mark.parametrize(
    ("text", "error"),
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
def test_invalid_schedule_has_error_message(text: str, error: str) -> None:
    assert schedule_error(text) == error


@given(numbers=st.tuples(*(st.integers(*bounds) for bounds in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)))))
def test_every_time_can_be_scheduled(numbers: tuple[int, ...]) -> None:
    assert schedule_error(" ".join(map(str, numbers))) == ""


@pytest.mark.parametrize(
    ("version", "kind", "error"),
    [
        ("v1", "ReplicationController", ""),
        ("", "ReplicationController", ""),
        ("apps/v1", "Deployment", ""),
        ("v1", "Deployment", "apiVersion must specify API group"),
        ("a/b/c", "ReplicationController", "unexpected GroupVersion string: a/b/c"),
    ],
)
async def test_autoscaler_target_reference_is_validated(
    call: ServerClient, version: str, kind: str, error: str
) -> None:
    target = {"apiVersion": version, "kind": kind, "name": "x"}
    body = {"metadata": {"name": "h"}, "spec": {"maxReplicas": 2, "scaleTargetRef": target}}
    status, response = await call("POST", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", body)
    assert status == (422 if error else 201)
    assert error in response.get("message", "")
