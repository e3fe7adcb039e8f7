"""The metrics API of a local cluster, called through its API server."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.client.client import Client
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import Object
from tapestry.kube.resources import API_SERVICES, PODS, SERVICE_ACCOUNTS
from tapestry.local import metrics_api
from tapestry.local.cluster import ClusterPlan, run_kubelets
from tapestry.local.control_planes import tapestry_control_plane
from tapestry.local.metrics_api import API_SERVICE, ROOT

REQUESTS = {"requests": {"cpu": "250m", "memory": "64Mi"}}


def new_pod(name: str, node: str) -> Object:
    container = {"name": "c", "image": "nginx", "resources": REQUESTS}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Client]:
    """A cluster with two simulated nodes and two running pods."""
    folder = tmp_path / "east"
    async with tapestry_control_plane(folder) as served, run_kubelets(ClusterPlan(folder, nodes=2), served):
        client = served.client
        assert await wait_for(client, SERVICE_ACCOUNTS, "default", "default", until=lambda obj: obj is not None)
        for name, node in (("web", "east-1"), ("db", "east-2")):
            await client.create(PODS, new_pod(name, node))
        for name in ("web", "db"):
            assert await wait_for(
                client, PODS, name, "default", until=lambda obj: obj is not None and is_condition_true(obj, "Ready")
            )
        assert await wait_for(
            client, API_SERVICES, API_SERVICE, until=lambda obj: is_condition_true(obj or {}, "Available"), timeout=20
        )
        yield client


async def get(client: Client, path: str, **query: str) -> tuple[int, Any]:
    response = await client.transport.send(Request("GET", f"{ROOT}{path}", query=query))
    return response.status, json.loads(response.body)


async def test_usage_of_nodes_and_pods(cluster: Client) -> None:
    _, nodes = await get(cluster, "/nodes")
    assert nodes["kind"] == "NodeMetricsList"
    usage = {"cpu": "250000000n", "memory": "65536Ki"}
    assert {each["metadata"]["name"]: each["usage"] for each in nodes["items"]} == {"east-1": usage, "east-2": usage}
    assert (await get(cluster, "/nodes/east-1"))[1]["usage"]["cpu"] == "250000000n"
    assert (await get(cluster, "/nodes/none"))[0] == 404
    _, pods = await get(cluster, "/pods")
    assert sorted(each["metadata"]["name"] for each in pods["items"]) == ["db", "web"]
    assert (await get(cluster, "/namespaces/other/pods"))[1]["items"] == []
    _, pod = await get(cluster, "/namespaces/default/pods/web")
    assert (pod["kind"], [each["name"] for each in pod["containers"]]) == ("PodMetrics", ["c"])
    status, missing = await get(cluster, "/namespaces/default/pods/none")
    assert (status, missing["reason"]) == (404, "NotFound")
    for query in ({"labelSelector": "app=web"}, {"fieldSelector": "metadata.name=web"}):
        _, found = await get(cluster, "/namespaces/default/pods", **query)
        assert [each["metadata"]["name"] for each in found["items"]] == ["web"]
    assert (await cluster.transport.send(Request("GET", f"{ROOT}/pods", query={"labelSelector": "!!"}))).status == 400


async def test_only_the_front_proxy_can_connect(cluster: Client, tmp_path: Path) -> None:
    port = (await cluster.get(API_SERVICES, API_SERVICE))["spec"]["service"]["port"]
    for authority in (None, CertificateAuthority(tmp_path / "east" / "pki")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if authority is not None:
            context.load_cert_chain(*authority.client_certificate("admin", ["system:masters"]))
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"https://127.0.0.1:{port}{ROOT}/nodes", ssl=context)


async def test_other_metrics_api_is_left_alone(cluster: Client) -> None:
    service = {"name": "metrics-server", "namespace": "kube-system", "port": 443}
    current = await cluster.get(API_SERVICES, API_SERVICE)
    await cluster.patch(API_SERVICES, current, {"spec": {"service": service}})
    await metrics_api.register(cluster, 1, "ca")
    assert (await cluster.get(API_SERVICES, API_SERVICE))["spec"]["service"] == service
