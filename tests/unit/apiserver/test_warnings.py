"""Warnings: what the server says of writes that it accepts all the same."""

from typing import Any

import pytest

from tapestry.apiserver.server import ApiResponse
from tapestry.apiserver.warnings.addresses import cidr_warnings, ip_warnings
from tapestry.apiserver.warnings.kinds import pod_warnings
from tapestry.kube.objects import Object

from .conftest import Hand

PODS = "/api/v1/namespaces/default/pods"
LATER = "will be considered invalid in a future Kubernetes release"


def a_pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def test_nothing_is_said_of_a_plain_pod() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81, "protocol": "TCP"}]
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    plain = a_pod(containers=[{"name": "c", "image": "i", "ports": ports, "resources": resources}])
    assert list(pod_warnings(plain, None)) == []


@pytest.mark.parametrize(
    ("spec", "said"),
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
def test_a_pod_is_told_what_it_may_not_mean(spec: Object, said: str) -> None:
    assert list(pod_warnings(a_pod(**spec), None)) == [said]


def test_a_later_definition_of_a_variable_may_build_on_the_first() -> None:
    env = [{"name": "A", "value": "b"}, {"name": "A", "value": "$(A)c"}]
    assert list(pod_warnings(a_pod(containers=[{"name": "c", "env": env}]), None)) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("10.0.0.1", []),
        ("2001:db8::1", []),
        ("2001:DB8::1", ['at: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")']),
        ("010.0.0.1", [f'at: non-standard IP address "010.0.0.1" {LATER}: use "10.0.0.1"']),
        ("::ffff:1.2.3.4", [f'at: non-standard IP address "::ffff:1.2.3.4" {LATER}: use "1.2.3.4"']),
        ("no address", []),
    ],
)
def test_addresses_are_to_be_written_in_one_way(value: str, said: list[str]) -> None:
    assert list(ip_warnings("at", value)) == said


def test_a_network_should_not_name_one_of_its_hosts() -> None:
    why = 'is ambiguous in this context (should be "10.0.0.0/8" or "10.0.0.1/32"?)'
    assert list(cidr_warnings("at", "10.0.0.1/8")) == [f'at: CIDR value "10.0.0.1/8" {why}']
    assert list(cidr_warnings("at", "10.0.0.0/8")) == []


async def test_a_warning_comes_with_the_answer(call: Hand) -> None:
    answer = await call.answer("POST", PODS, a_pod(nodeSelector={"beta.kubernetes.io/arch": "x"}))
    assert isinstance(answer, ApiResponse)
    assert answer.status == 201
    assert 'use \\"kubernetes.io/arch\\" instead' in answer.headers["Warning"]


async def test_a_deprecated_kind_says_so_even_where_there_is_nothing(call: Hand) -> None:
    answer = await call.answer("GET", "/api/v1/namespaces/default/endpoints/none")
    assert isinstance(answer, ApiResponse)
    assert answer.status == 404
    assert answer.headers["Warning"].startswith('299 - "v1 Endpoints is deprecated in v1.33+')


async def test_who_deletes_a_job_is_told_of_its_pods(call: Hand) -> None:
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    for name, options, is_told in (("a", None, True), ("b", {"propagationPolicy": "Background"}, False)):
        await call.made(jobs, {"metadata": {"name": name}, "spec": {"template": template}})
        answer = await call.answer("DELETE", f"{jobs}/{name}", options)
        assert isinstance(answer, ApiResponse)
        assert ("child pods are preserved" in answer.headers.get("Warning", "")) is is_told


async def test_no_warning_breaks_the_header_that_it_is_in(call: Hand) -> None:
    odd = {f"odd\r\nX-{number}": 1 for number in range(200)}
    answer = await call.answer("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "m"}, **odd})
    assert isinstance(answer, ApiResponse)
    said = answer.headers["Warning"]
    assert said.startswith('299 - "unknown field \\"odd  X-0\\""')
    assert said.endswith('"')
    assert len(said) <= 8000
    assert said.isprintable()
