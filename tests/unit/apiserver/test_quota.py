"""Quotas: a namespace gets what it may have, and not one more."""

import asyncio
import re
from typing import Any

import pytest

from tapestry.kube.objects import Object

from .conftest import Hand

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


async def a_quota(call: Hand, name: str = "q", used: Object | None = None, **spec: Any) -> None:
    """A quota whose use somebody has counted: there is none, unless given."""
    hard = spec["hard"]
    await call.made(QUOTAS, {"metadata": {"name": name}, "spec": spec})
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0") if used is None else used}}
    merge = "application/merge-patch+json"
    assert (await call("PATCH", f"{QUOTAS}/{name}/status", status, kind=merge))[0] == 200


def a_pod(name: str, requests: Object | None = None, limits: Object | None = None, **spec: Any) -> Object:
    resources = {"requests": requests or {}, "limits": limits or {}}
    container = {"name": "c", "image": "i", "resources": resources}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


async def used(call: Hand, name: str = "q") -> Object:
    found: Object = (await call("GET", f"{QUOTAS}/{name}"))[1]["status"]["used"]
    return found


async def refusal(call: Hand, path: str, body: Object, **query: str) -> str:
    status, found = await call("POST", path, body, **query)
    assert (status, found["reason"]) == (403, "Forbidden")
    message: str = found["message"]
    return message


async def test_what_is_made_is_charged_and_what_is_too_much_is_refused(call: Hand) -> None:
    await a_quota(call, hard={"pods": "2", "requests.cpu": "1", "limits.memory": "4Gi"})
    await call.made(PODS, a_pod("a", {"cpu": "600m"}, {"memory": "1Gi"}))
    assert await used(call) == {"pods": "1", "requests.cpu": "600m", "limits.memory": "1Gi"}
    assert await refusal(call, PODS, a_pod("b", {"cpu": "600m"}, {"memory": "1Gi"})) == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=600m, '
        "used: requests.cpu=600m, limited: requests.cpu=1"
    )
    assert (await used(call))["pods"] == "1"
    await call.made(PODS, a_pod("b", {"cpu": "400m"}, {"memory": "1Gi"}))
    assert "requested: pods=1,requests.cpu=1m, used: pods=2,requests.cpu=1" in await refusal(
        call, PODS, a_pod("c", {"cpu": "1m"}, {"memory": "1Gi"})
    )


async def test_writers_at_the_same_moment_do_not_exceed_it(call: Hand) -> None:
    await a_quota(call, hard={"pods": "7", "count/configmaps": "100"})
    await a_quota(call, "other", hard={"count/pods": "5"})
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call("POST", PODS, a_pod(f"p{number}"))) for number in range(20)]
    assert sorted(task.result()[0] for task in tasks) == [201] * 5 + [403] * 15
    assert len((await call("GET", PODS))[1]["items"]) == 5
    assert (await used(call, "other")) == {"count/pods": "5"}


async def test_what_was_not_counted_yet_cannot_be_promised(call: Hand) -> None:
    await a_quota(call, hard={"pods": "2", "count/pods": "3"}, used={"pods": "0"})
    assert await refusal(call, PODS, a_pod("a")) == (
        'pods "a" is forbidden: status unknown for quota: q, resources: count/pods,pods'
    )


async def test_where_cpu_is_limited_every_container_says_what_it_needs(call: Hand) -> None:
    await a_quota(call, hard={"requests.cpu": "2", "limits.memory": "1Gi", "requests.ephemeral-storage": "1Gi"})
    both = a_pod("a", {"cpu": "1"})
    both["spec"]["containers"].append({"name": "d", "image": "i"})
    assert await refusal(call, PODS, both) == (
        'pods "a" is forbidden: failed quota: q: must specify limits.memory for: c,d; requests.cpu for: d'
    )


async def test_a_dry_run_is_judged_and_not_charged(call: Hand) -> None:
    await a_quota(call, hard={"pods": "1"})
    assert (await call("POST", PODS, a_pod("a"), dryRun="All"))[0] == 201
    assert await used(call) == {"pods": "0"}
    await call.made(PODS, a_pod("a"))
    assert "exceeded quota" in await refusal(call, PODS, a_pod("b"), dryRun="All")


async def test_what_is_there_already_costs_nothing(call: Hand) -> None:
    await a_quota(call, hard={"pods": "5"})
    await call.made(PODS, a_pod("a"))
    assert (await call("POST", PODS, a_pod("a")))[0] == 409
    assert await used(call) == {"pods": "1"}


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
            a_pod(
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
async def test_objects_use_what_their_kind_uses(call: Hand, path: str, body: Object, expected: Object) -> None:
    await a_quota(call, hard=dict.fromkeys(expected, "10Gi"))
    await call.made(path, body)
    assert await used(call) == expected


async def test_a_service_that_becomes_another_is_charged_for_what_it_adds(call: Hand) -> None:
    await a_quota(call, hard={"services": "5", "services.nodeports": "1"})
    await call.made(SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}})
    patch = {"spec": {"type": "NodePort"}}
    assert (await call("PATCH", f"{SERVICES}/s", patch, kind="application/merge-patch+json"))[0] == 200
    assert await used(call) == {"services": "1", "services.nodeports": "1"}
    ports = {"spec": {"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]}}
    status, found = await call("PATCH", f"{SERVICES}/s", ports, kind="application/merge-patch+json")
    assert (status, "exceeded quota: q, requested: services.nodeports=1" in found["message"]) == (403, True)


@pytest.mark.parametrize(
    ("scopes", "inside", "outside"),
    [
        ({"scopes": ["Terminating"]}, a_pod("in", activeDeadlineSeconds=5), a_pod("out")),
        ({"scopes": ["NotTerminating"]}, a_pod("in"), a_pod("out", activeDeadlineSeconds=5)),
        ({"scopes": ["BestEffort"]}, a_pod("in"), a_pod("out", {"cpu": "1"})),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, a_pod("in", {"cpu": "1"}), a_pod("out")),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
                    ]
                }
            },
            a_pod("in", priorityClassName="system-node-critical"),
            a_pod("out", priorityClassName="system-cluster-critical"),
        ),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}},
            a_pod("in"),
            a_pod("out", priorityClassName="system-cluster-critical"),
        ),
    ],
)
async def test_a_quota_with_scopes_is_about_some_pods(call: Hand, scopes: Any, inside: Object, outside: Object) -> None:
    await a_quota(call, hard={"pods": "0", "count/configmaps": "0"}, **scopes)
    await call.made(PODS, outside)
    assert "exceeded quota: q" in await refusal(call, PODS, inside)
    await call.made(MAPS, {"metadata": {"name": "m"}})  # scopes are those of pods


async def test_other_namespaces_are_not_charged(call: Hand) -> None:
    await a_quota(call, hard={"pods": "0"})
    await call.made("/api/v1/namespaces/kube-public/pods", a_pod("a"))
    assert await used(call) == {"pods": "0"}


async def test_who_has_no_name_yet_is_refused_under_the_one_it_would_have_got(call: Hand) -> None:
    await a_quota(call, hard={"pods": "0"})
    pod = a_pod("")
    pod["metadata"] = {"generateName": "web-"}
    said = await refusal(call, PODS, pod)
    assert re.match(r'pods "web-\w{5}" is forbidden: exceeded quota: q', said), said
