"""Kubelet API: logs, metrics and authorization."""

import json

import pytest

from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object
from tapestry.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NODES, PODS, SERVICE_ACCOUNTS
from tapestry.local.runtime import StreamRejected
from tapestry.local.simulated_kubelet import simulated_node

from .worlds import World

REQUESTS = {"requests": {"cpu": "500m", "memory": "64Mi"}}


def new_pod(name: str = "web") -> Object:
    container = {"name": "c", "image": "nginx", "resources": REQUESTS}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": "n", "containers": [container, {"name": "idle", "image": "nginx"}]},
    }


@pytest.fixture
async def world(simulated_world: World) -> World:
    """Simulated node with a running pod."""
    await simulated_world.client.create(PODS, new_pod())
    await simulated_world.wait_for_pod("web", lambda pod: is_condition_true(pod, "Ready"))
    return simulated_world


async def test_log_of_simulated_pod_is_one_line(world: World) -> None:
    text = await world.log("web", container="c")
    assert text == "default/web is simulated: nothing runs in c, and nothing is written\n"
    assert await world.log("web", container="c", follow="true", tailLines="5") == text


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/containerLogs/default/web/c", 200),
        ("/containerLogs/default/web/none", 404),
        ("/containerLogs/default/none/c", 404),
        ("/containerLogs/default/web/c?tailLines=many", 400),
        ("/nothing", 404),
    ],
)
async def test_missing_pod_or_container_is_not_found(world: World, path: str, code: int) -> None:
    assert (await world.call_kubelet(path, certificate=True))[0] == code


STREAMS = ["/exec/default/web/c?command=sh&output=1", "/attach/default/web/c?output=1", "/portForward/default/web"]


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_need_an_upgrade(world: World, path: str) -> None:
    assert await world.call_kubelet(path, certificate=True) == (400, "Upgrade request required")


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_need_create_whatever_the_method_is(world: World, path: str) -> None:
    token = await curious_token(world)
    await grant(world, "nodes/proxy")
    assert (await world.call_kubelet("/containerLogs/default/web/c", token=token))[0] == 200
    code, text = await world.call_kubelet(path, token=token)
    assert (code, "verb=create, resource=nodes, subresource=proxy" in text) == (403, True)
    assert (await world.call_kubelet(path.replace("web", "none"), token=token))[0] == 403


@pytest.mark.parametrize("path", STREAMS)
async def test_only_the_right_to_proxy_includes_streams(world: World, path: str) -> None:
    """Kubernetes 1.33 has subresources for parts of the kubelet API, none of which covers streams."""
    token = await curious_token(world)
    parts = ("metrics", "stats", "log", "spec", "checkpoint", "healthz", "configz", "pods")
    await grant(world, *(f"nodes/{each}" for each in parts), verb="*")
    assert (await world.call_kubelet("/metrics/resource", token=token))[0] == 200
    assert (await world.call_kubelet(path, token=token))[0] == 403


@pytest.mark.parametrize("path", ["/exec/default/none/c", "/attach/default/web/none", "/portForward/default/none"])
async def test_streams_of_missing_pods_are_not_found(world: World, path: str) -> None:
    assert (await world.call_kubelet(path, certificate=True))[0] == 404
    assert (await world.call_kubelet(path.replace("/web/", "/web/another-uid/"), certificate=True))[0] == 404


async def test_simulated_pod_cannot_run_commands(world: World) -> None:
    pod, runtime = await world.client.get(PODS, "web", "default"), world.runtime
    for terminal in (False, True):
        for process in (
            await runtime.exec(pod, "c", ["sh"], stdin=True, terminal=terminal),
            await runtime.attach(pod, "c", stdin=True, terminal=terminal),
        ):
            await process.write_stdin(b"ls\n")
            line, empty = (process.read_stdout, process.read_stderr)[:: 1 if terminal else -1]
            assert (await line()).startswith(b"default/web is simulated: ")
            assert (await line(), await empty(), await process.wait()) == (b"", b"", 126)
    with pytest.raises(StreamRejected, match="tapestry up --run-pods"):
        await runtime.dial(pod, 80)


async def test_anonymous_request_is_unauthorized(world: World) -> None:
    assert await world.call_kubelet("/metrics/resource") == (401, "Unauthorized")
    assert await world.call_kubelet("/metrics/resource", token="made up") == (401, "Unauthorized")


async def test_account_needs_permission(world: World) -> None:
    token = await curious_token(world)
    code, text = await world.call_kubelet("/metrics/resource", token=token)
    assert code == 403
    assert "subresource=metrics" in text
    await grant(world, "nodes/metrics")
    assert (await world.call_kubelet("/metrics/resource", token=token))[0] == 200
    assert (await world.call_kubelet("/stats/summary", token=token))[0] == 403
    assert (await world.call_kubelet("/containerLogs/default/web/c", token=token))[0] == 403


async def curious_token(world: World) -> str:
    """Return the token of a new account without permissions."""
    await world.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "curious", "namespace": "default"}})
    token: str = (await world.client.request_token("curious", "default"))["token"]
    return token


async def grant(world: World, *resources: str, verb: str = "get") -> None:
    rules = [{"apiGroups": [""], "resources": resources, "verbs": [verb]}]
    await world.client.create(CLUSTER_ROLES, {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "curious", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]}
    await world.client.create(CLUSTER_ROLE_BINDINGS, binding)


async def test_kubelet_serves_only_pods_of_its_node(world: World) -> None:
    await world.client.create(NODES, simulated_node("other", {"cpu": "1"}))
    other = new_pod("elsewhere")
    await world.client.create(PODS, {**other, "spec": {**other["spec"], "nodeName": "other"}})
    await world.wait_for_pod("elsewhere", lambda pod: is_condition_true(pod, "Ready"))
    assert (await world.call_kubelet("/containerLogs/default/elsewhere/c", certificate=True))[0] == 404
    assert (await world.call_kubelet("/containerLogs/default/elsewhere/c", "other", certificate=True))[0] == 200
    summary = json.loads((await world.call_kubelet("/stats/summary", "other", certificate=True))[1])
    assert [each["podRef"]["name"] for each in summary["pods"]] == ["elsewhere"]


async def test_metrics_are_the_requests(world: World) -> None:
    _, text = await world.call_kubelet("/metrics/resource", certificate=True)
    values = {
        line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line and not line.startswith("#")
    }
    pod = '{namespace="default",pod="web"}'
    assert values[f"pod_memory_working_set_bytes{pod}"] == 64 << 20
    idle = values['container_memory_working_set_bytes{container="idle",namespace="default",pod="web"}']
    assert idle == 1  # metrics-server drops pods with a container that uses nothing
    assert values["node_memory_working_set_bytes"] == 64 << 20
    assert values[f"pod_cpu_usage_seconds_total{pod}"] == values["node_cpu_usage_seconds_total"] >= 0
    assert "resource_scrape_error" in values


async def test_summary_matches_metrics(world: World) -> None:
    _, text = await world.call_kubelet("/stats/summary", certificate=True)
    summary = json.loads(text)
    assert summary["node"]["nodeName"] == "n"
    assert summary["node"]["memory"]["workingSetBytes"] == 64 << 20
    [pod] = summary["pods"]
    assert pod["cpu"]["usageNanoCores"] == 500_000_000
    assert [(each["name"], each["memory"]["workingSetBytes"]) for each in pod["containers"]] == [
        ("c", 64 << 20),
        ("idle", 0),
    ]


async def test_process_reports_real_usage(open_world: World) -> None:
    command = ["sh", "-c", "while :; do :; done"]
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i", "command": command}]}
    await open_world.client.create(PODS, {"metadata": {"name": "busy", "namespace": "default"}, "spec": spec})
    await open_world.wait_for_pod("busy", lambda pod: is_condition_true(pod, "Ready"))
    summary = json.loads((await open_world.call_kubelet("/stats/summary", certificate=True))[1])
    [pod] = summary["pods"]
    assert pod["podRef"]["name"] == "busy"
    assert 0 < pod["memory"]["workingSetBytes"] < 1 << 30
