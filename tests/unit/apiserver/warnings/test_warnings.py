"""Warnings about accepted writes."""

from typing import Any

import pytest

from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.warnings.addresses import cidr_warnings, ip_warnings
from tapestry.apiserver.warnings.kinds import pod_warnings
from tapestry.kube.objects import Object

from ..conftest import ServerClient

PODS = "/api/v1/namespaces/default/pods"
FUTURE = "will be considered invalid in a future Kubernetes release"


def pod_body(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def test_plain_pod_causes_no_warning() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81, "protocol": "TCP"}]
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    plain = pod_body(containers=[{"name": "c", "image": "i", "ports": ports, "resources": resources}])
    assert list(pod_warnings(plain, None)) == []


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        (
            {"nodeSelector": {"beta.kubernetes.io/os": "linux"}},
            'spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead',
        ),
        (
            {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]},
            'spec.imagePullSecrets[1].name: duplicate name "a"',
        ),
        (
            {"containers": [{"name": "c", "resources": {"limits": {"memory": "100m"}}}]},
            'spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer',
        ),
        (
            {"containers": [{"name": "c", "env": [{"name": "A", "value": "b"}, {"name": "A", "value": "c"}]}]},
            'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply',
        ),
        (
            {"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"path": "a"}, {"path": "a/b"}]}}]},
            'volume "v" (Secret "s"): overlapping paths: "a/b" with "a"',
        ),
    ],
)
def test_pod_fields_cause_warnings(spec: Object, warning: str) -> None:
    assert list(pod_warnings(pod_body(**spec), None)) == [warning]


def test_variable_that_extends_earlier_one_causes_no_warning() -> None:
    env = [{"name": "A", "value": "b"}, {"name": "A", "value": "$(A)c"}]
    assert list(pod_warnings(pod_body(containers=[{"name": "c", "env": env}]), None)) == []


@pytest.mark.parametrize(
    ("value", "warnings"),
    [
        ("10.0.0.1", []),
        ("2001:db8::1", []),
        ("2001:DB8::1", ['at: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")']),
        ("010.0.0.1", [f'at: non-standard IP address "010.0.0.1" {FUTURE}: use "10.0.0.1"']),
        ("::ffff:1.2.3.4", [f'at: non-standard IP address "::ffff:1.2.3.4" {FUTURE}: use "1.2.3.4"']),
        ("no address", []),
    ],
)
def test_non_canonical_address_causes_warning(value: str, warnings: list[str]) -> None:
    assert list(ip_warnings("at", value)) == warnings


def test_network_with_host_bits_causes_warning() -> None:
    reason = 'is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)'
    assert list(cidr_warnings("at", "10.0.0.1/8")) == [f'at: CIDR value "10.0.0.1/8" {reason}']
    assert list(cidr_warnings("at", "10.0.0.0/8")) == []


async def test_warning_is_in_response_header(call: ServerClient) -> None:
    response = await call.answer("POST", PODS, pod_body(nodeSelector={"beta.kubernetes.io/arch": "x"}))
    assert isinstance(response, ApiResponse)
    assert response.status == 201
    assert 'use \\"kubernetes.io/arch\\" instead' in response.headers["Warning"]


async def test_deprecated_kind_causes_warning_if_not_found(call: ServerClient) -> None:
    response = await call.answer("GET", "/api/v1/namespaces/default/endpoints/none")
    assert isinstance(response, ApiResponse)
    assert response.status == 404
    assert response.headers["Warning"].startswith('299 - "v1 Endpoints is deprecated in v1.33+')


async def test_job_deletion_without_policy_causes_warning(call: ServerClient) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    for name, options, has_warning in (("a", None, True), ("b", {"propagationPolicy": "Background"}, False)):
        await call.made(jobs, {"metadata": {"name": name}, "spec": {"template": template}})
        response = await call.answer("DELETE", f"{jobs}/{name}", options)
        assert isinstance(response, ApiResponse)
        assert ("child pods are preserved" in response.headers.get("Warning", "")) is has_warning


async def test_warning_header_is_sanitized_and_limited(call: ServerClient) -> None:
    fields = {f"odd\r\nX-{number}": 1 for number in range(200)}
    response = await call.answer("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "m"}, **fields})
    assert isinstance(response, ApiResponse)
    header = response.headers["Warning"]
    assert header.startswith('299 - "unknown field \\"odd  X-0\\""')
    assert header.endswith('"')
    assert len(header) <= 8000
    assert header.isprintable()
