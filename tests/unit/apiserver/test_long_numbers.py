"""Numbers outside of the integer range are rejected everywhere, without internal errors."""

from typing import Any

import pytest

from .conftest import ServerClient

LONG = "9" * 5000
PODS, MAPS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
POD: Any = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}


def pod_with(**more: Any) -> Any:
    return {"metadata": {**POD["metadata"], **more.pop("metadata", {})}, "spec": {**POD["spec"], **more}}


@pytest.mark.parametrize("number", [LONG, "9" * 19, "\u0665" * 5000])
@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        *(("GET", MAPS, name) for name in ("limit", "resourceVersion")),
        ("DELETE", f"{MAPS}/m", "gracePeriodSeconds"),
        *(("GET", f"{PODS}/p/log", name) for name in ("tailLines", "sinceSeconds", "limitBytes")),
    ],
)
async def test_long_number_in_query_is_bad_request(
    call: ServerClient, method: str, path: str, name: str, number: str
) -> None:
    await call.made(PODS, POD)
    await call.made(MAPS, {"metadata": {"name": "m"}})
    status, result = await call(method, path, **{name: number})
    assert status in (400, 404, 422), result
    assert len(result["message"]) < 1000


@pytest.mark.parametrize("number", [LONG, "9" * 18])
async def test_long_number_does_not_break_a_watch(call: ServerClient, number: str) -> None:
    result: Any = await call.answer("GET", MAPS, watch="1", timeoutSeconds=number)
    if number == LONG:
        assert result.status == 400
    else:
        assert result.timeout == 86_400
        result.end()


async def test_long_port_number_is_not_a_port(call: ServerClient) -> None:
    await call.made(PODS, POD)
    response: Any = await call.answer("POST", f"{PODS}/p/portforward", ports=LONG)
    assert response.status == 400


@pytest.mark.parametrize("seconds", [10**18, 2**32 + 1, 599, -1])
async def test_token_lifetime_is_within_kubernetes_limits(call: ServerClient, seconds: int) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await call.made(accounts, {"metadata": {"name": "a"}})
    status, result = await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": seconds}})
    assert (status, "may not specify a duration" in result["message"]) == (422, True)
    assert (await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": 2**32}}))[0] == 201


@pytest.mark.parametrize("grace", [2**63 - 1, 10**18])
async def test_pod_with_huge_grace_period_can_be_deleted(call: ServerClient, grace: int) -> None:
    await call.made(PODS, pod_with(terminationGracePeriodSeconds=grace))
    status, result = await call("DELETE", f"{PODS}/p")
    assert (status, result["metadata"]["deletionGracePeriodSeconds"]) == (200, 2**31)
    assert (await call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 10**18}))[0] == 200
    assert (await call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 1}))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PODS, pod_with(metadata={"annotations": {"controller.kubernetes.io/pod-deletion-cost": LONG}})),
        (
            PODS,
            pod_with(
                affinity={
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "Gt", "values": [LONG]}]}
                            ]
                        }
                    }
                }
            ),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            {
                "metadata": {"name": "d"},
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": POD["spec"]["containers"]}},
                    "strategy": {"rollingUpdate": {"maxUnavailable": f"{LONG}%", "maxSurge": f"{LONG}%"}},
                },
            },
        ),
        (
            "/apis/batch/v1/namespaces/default/cronjobs",
            {
                "metadata": {"name": "c"},
                "spec": {
                    "schedule": f"{LONG} * * * *",
                    "jobTemplate": {"spec": {"template": {"spec": {**POD["spec"], "restartPolicy": "Never"}}}},
                },
            },
        ),
        (MAPS, b'{"metadata":{"name":"m"},"data":{"a":%b}}' % (b"9" * 5000)),
        (MAPS, b'{"metadata":{"name":"m","generation":%b}}' % (b"9" * 3000)),
    ],
)
async def test_long_number_in_object_is_rejected(call: ServerClient, path: str, body: Any) -> None:
    status, result = await call("POST", path, body)
    assert status in (400, 422), result


async def test_long_number_in_custom_resource_is_preserved(call: ServerClient) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await call.made(crds, {"metadata": {"name": "things.example.com"}, "spec": spec})
    body = b'{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"t"},"spec":{"a":%b}}'
    assert (await call("POST", "/apis/example.com/v1/things", body % (b"9" * 3000)))[0] == 201
    assert (await call("GET", "/apis/example.com/v1/things/t"))[1]["spec"]["a"] == 10**3000 - 1
