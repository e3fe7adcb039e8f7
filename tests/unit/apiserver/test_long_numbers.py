"""Numbers that no integer can hold are refused, wherever they come in; none of them is a failure of the server."""

from typing import Any

import pytest

from .conftest import Hand

LONG = "9" * 5000
PODS, MAPS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"
POD: Any = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}


def changed(**more: Any) -> Any:
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
async def test_a_long_number_in_a_query_is_a_bad_request(
    call: Hand, method: str, path: str, name: str, number: str
) -> None:
    await call.made(PODS, POD)
    await call.made(MAPS, {"metadata": {"name": "m"}})
    status, found = await call(method, path, **{name: number})
    assert status in (400, 404, 422), found
    assert len(found["message"]) < 1000


@pytest.mark.parametrize("number", [LONG, "9" * 18])
async def test_a_long_number_does_not_break_a_watch(call: Hand, number: str) -> None:
    found: Any = await call.answer("GET", MAPS, watch="1", timeoutSeconds=number)
    if number == LONG:
        assert found.status == 400
    else:
        assert found.seconds == 86_400
        found.end()


async def test_long_numbers_in_the_uri_of_a_connection_are_left_out(call: Hand) -> None:
    await call.made(PODS, POD)
    answer: Any = await call.answer("POST", f"{PODS}/p/portforward", ports=LONG)
    assert answer.status == 501


@pytest.mark.parametrize("seconds", [10**18, 2**32 + 1, 599, -1])
async def test_a_token_lasts_within_kubernetes_bounds(call: Hand, seconds: int) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await call.made(accounts, {"metadata": {"name": "a"}})
    status, found = await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": seconds}})
    assert (status, "may not specify a duration" in found["message"]) == (422, True)
    assert (await call("POST", f"{accounts}/a/token", {"spec": {"expirationSeconds": 2**32}}))[0] == 201


@pytest.mark.parametrize("grace", [2**63 - 1, 10**18])
async def test_a_pod_with_an_endless_grace_period_can_be_deleted(call: Hand, grace: int) -> None:
    await call.made(PODS, changed(terminationGracePeriodSeconds=grace))
    status, found = await call("DELETE", f"{PODS}/p")
    assert (status, found["metadata"]["deletionGracePeriodSeconds"]) == (200, 2**31)
    assert (await call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 10**18}))[0] == 200
    assert (await call("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 1}))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PODS, changed(metadata={"annotations": {"controller.kubernetes.io/pod-deletion-cost": LONG}})),
        (
            PODS,
            changed(
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
async def test_a_long_number_in_an_object_is_refused(call: Hand, path: str, body: Any) -> None:
    status, found = await call("POST", path, body)
    assert status in (400, 422), found


async def test_a_long_number_in_a_custom_resource_is_kept(call: Hand) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await call.made(crds, {"metadata": {"name": "things.example.com"}, "spec": spec})
    body = b'{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"t"},"spec":{"a":%b}}'
    assert (await call("POST", "/apis/example.com/v1/things", body % (b"9" * 3000)))[0] == 201
    assert (await call("GET", "/apis/example.com/v1/things/t"))[1]["spec"]["a"] == 10**3000 - 1
