"""ResourceQuota admission: charges, rejections, scopes and concurrent writes."""

import asyncio
import re
from typing import Any

import pytest

from tapestry.kube.objects import Object

from ..conftest import ServerClient

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


async def create_quota(call: ServerClient, name: str = "q", used: Object | None = None, **spec: Any) -> None:
    """Create a quota with a counted status. The usage is zero unless given."""
    hard = spec["hard"]
    await call.made(QUOTAS, {"metadata": {"name": name}, "spec": spec})
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0") if used is None else used}}
    merge = "application/merge-patch+json"
    assert (await call("PATCH", f"{QUOTAS}/{name}/status", status, kind=merge))[0] == 200


def pod_body(name: str, requests: Object | None = None, limits: Object | None = None, **spec: Any) -> Object:
    resources = {"requests": requests or {}, "limits": limits or {}}
    container = {"name": "c", "image": "i", "resources": resources}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def used_amounts(call: ServerClient, name: str = "q") -> Object:
    amounts: Object = (await call("GET", f"{QUOTAS}/{name}"))[1]["status"]["used"]
    return amounts


async def forbidden_message(call: ServerClient, path: str, body: Object, **query: str) -> str:
    status, response = await call("POST", path, body, **query)
    assert (status, response["reason"]) == (403, "Forbidden")
    message: str = response["message"]
    return message


async def test_create_is_charged_and_excess_is_forbidden(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "2", "requests.cpu": "1", "limits.memory": "4Gi"})
    await call.made(PODS, pod_body("a", {"cpu": "600m"}, {"memory": "1Gi"}))
    assert await used_amounts(call) == {"pods": "1", "requests.cpu": "600m", "limits.memory": "1Gi"}
    assert await forbidden_message(call, PODS, pod_body("b", {"cpu": "600m"}, {"memory": "1Gi"})) == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=600m, '
        "used: requests.cpu=600m, limited: requests.cpu=1"
    )
    assert (await used_amounts(call))["pods"] == "1"
    await call.made(PODS, pod_body("b", {"cpu": "400m"}, {"memory": "1Gi"}))
    assert "requested: pods=1,requests.cpu=1m, used: pods=2,requests.cpu=1" in await forbidden_message(
        call, PODS, pod_body("c", {"cpu": "1m"}, {"memory": "1Gi"})
    )


async def test_concurrent_creates_do_not_exceed_quota(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "7", "count/configmaps": "100"})
    await create_quota(call, "other", hard={"count/pods": "5"})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call("POST", PODS, pod_body(f"p{number}"))) for number in range(20)]
    assert sorted(task.result()[0] for task in tasks) == [201] * 5 + [403] * 15
    assert len((await call("GET", PODS))[1]["items"]) == 5
    assert (await used_amounts(call, "other")) == {"count/pods": "5"}


async def test_uncounted_resource_is_forbidden(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "2", "count/pods": "3"}, used={"pods": "0"})
    assert await forbidden_message(call, PODS, pod_body("a")) == (
        'pods "a" is forbidden: status unknown for quota: q, resources: count/pods,pods'
    )


async def test_limited_resource_must_be_specified(call: ServerClient) -> None:
    await create_quota(call, hard={"requests.cpu": "2", "limits.memory": "1Gi", "requests.ephemeral-storage": "1Gi"})
    both = pod_body("a", {"cpu": "1"})
    both["spec"]["containers"].append({"name": "d", "image": "i"})
    assert await forbidden_message(call, PODS, both) == (
        'pods "a" is forbidden: failed quota: q: must specify limits.memory for: c,d; requests.cpu for: d'
    )


async def test_dry_run_is_checked_but_not_charged(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "1"})
    assert (await call("POST", PODS, pod_body("a"), dryRun="All"))[0] == 201
    assert await used_amounts(call) == {"pods": "0"}
    await call.made(PODS, pod_body("a"))
    assert "exceeded quota" in await forbidden_message(call, PODS, pod_body("b"), dryRun="All")


async def test_existing_object_is_not_charged(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "5"})
    await call.made(PODS, pod_body("a"))
    assert (await call("POST", PODS, pod_body("a")))[0] == 409
    assert await used_amounts(call) == {"pods": "1"}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (MAPS, {"metadata": {"name": "m"}}, {"configmaps": "1", "count/configmaps": "1"}),
        (
            SERVICES,
            {
                "metadata": {"name": "s"},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]},
            },
            {"services": "1", "services.nodeports": "2", "services.loadbalancers": "1"},
        ),
        (
            CLAIMS,
            {
                "metadata": {"name": "v"},
                "spec": {
                    "storageClassName": "gold",
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "3Gi"}},
                },
            },
            {
                "persistentvolumeclaims": "1",
                "requests.storage": "3Gi",
                "gold.storageclass.storage.k8s.io/requests.storage": "3Gi",
                "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
                "silver.storageclass.storage.k8s.io/requests.storage": "0",
            },
        ),
        (
            PODS,
            pod_body(
                "p",
                {"example.com/gpu": "2", "hugepages-2Mi": "4Mi", "cpu": "1"},
                {"example.com/gpu": "2", "hugepages-2Mi": "4Mi"},
            ),
            {"requests.example.com/gpu": "2", "requests.hugepages-2Mi": "4Mi", "hugepages-2Mi": "4Mi", "cpu": "1"},
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            {
                "metadata": {"name": "d"},
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {
                        "metadata": {"labels": {"a": "b"}},
                        "spec": {"containers": [{"name": "c", "image": "i"}]},
                    },
                },
            },
            {"count/deployments.apps": "1", "count/deployments.example.com": "0"},
        ),
    ],
)
async def test_each_kind_is_charged(call: ServerClient, path: str, body: Object, expected: Object) -> None:
    await create_quota(call, hard=dict.fromkeys(expected, "10Gi"))
    await call.made(path, body)
    assert await used_amounts(call) == expected


async def test_service_update_is_charged_for_increase(call: ServerClient) -> None:
    await create_quota(call, hard={"services": "5", "services.nodeports": "1"})
    await call.made(SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}})
    patch = {"spec": {"type": "NodePort"}}
    assert (await call("PATCH", f"{SERVICES}/s", patch, kind="application/merge-patch+json"))[0] == 200
    assert await used_amounts(call) == {"services": "1", "services.nodeports": "1"}
    ports = {"spec": {"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]}}
    status, response = await call("PATCH", f"{SERVICES}/s", ports, kind="application/merge-patch+json")
    assert (status, "exceeded quota: q, requested: services.nodeports=1" in response["message"]) == (403, True)


@pytest.mark.parametrize(
    ("scopes", "inside", "outside"),
    [
        ({"scopes": ["Terminating"]}, pod_body("in", activeDeadlineSeconds=5), pod_body("out")),
        ({"scopes": ["NotTerminating"]}, pod_body("in"), pod_body("out", activeDeadlineSeconds=5)),
        ({"scopes": ["BestEffort"]}, pod_body("in"), pod_body("out", {"cpu": "1"})),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, pod_body("in", {"cpu": "1"}), pod_body("out")),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
                    ]
                }
            },
            pod_body("in", priorityClassName="system-node-critical"),
            pod_body("out", priorityClassName="system-cluster-critical"),
        ),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}},
            pod_body("in"),
            pod_body("out", priorityClassName="system-cluster-critical"),
        ),
    ],
)
async def test_scopes_limit_quota_to_matching_pods(
    call: ServerClient, scopes: Any, inside: Object, outside: Object
) -> None:
    await create_quota(call, hard={"pods": "0", "count/configmaps": "0"}, **scopes)
    await call.made(PODS, outside)
    assert "exceeded quota: q" in await forbidden_message(call, PODS, inside)
    await call.made(MAPS, {"metadata": {"name": "m"}})  # scopes apply to pods only


async def test_quota_applies_to_its_namespace_only(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "0"})
    await call.made("/api/v1/namespaces/kube-public/pods", pod_body("a"))
    assert await used_amounts(call) == {"pods": "0"}


async def test_error_has_the_generated_name(call: ServerClient) -> None:
    await create_quota(call, hard={"pods": "0"})
    pod = pod_body("")
    pod["metadata"] = {"generateName": "web-"}
    message = await forbidden_message(call, PODS, pod)
    assert re.match(r'pods "web-\w{5}" is forbidden: exceeded quota: q', message), message
