"""Usage of virtual nodes, requested from syncers on this machine."""

import json
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.controller import Informer
from tapestry.kube.objects import Object
from tapestry.kube.resources import NODES, PODS
from tapestry.local.scraped_nodes import CACHE_SECONDS, ScrapedNodes

TIME = "2026-01-01T12:00:00Z"


def new_object(name: str, **metadata: str) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}", **metadata}}


def pod_summary(name: str, uid: str) -> Object:
    cpu = {"time": TIME, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 5_000_000_000}
    usage = {"startTime": TIME, "cpu": cpu, "memory": {"workingSetBytes": 4096}}
    container = {"name": "c", **usage}
    return {"podRef": {"name": name, "namespace": "default", "uid": uid}, **usage, "containers": [container]}


def new_node(name: str, address: str = "127.97.0.1", port: int = 10250) -> Object:
    endpoints = {"kubeletEndpoint": {"Port": port}}
    status = {"addresses": [{"type": "InternalIP", "address": address}], "daemonEndpoints": endpoints}
    return {**new_object(name), "status": status}


class Summaries:
    """Transport to the kubelet API of virtual nodes; a missing summary is an error."""

    def __init__(self, **summaries: Any) -> None:
        self.summaries, self.paths, self.urls = summaries, list[str](), list[str]()

    def connect(self, url: str) -> Any:
        self.urls.append(url)
        return self

    async def send(self, request: Request) -> Response:
        self.paths.append(request.path)
        found = self.summaries.get(request.path.split("/")[2])
        if found is None:
            return Response(503, {}, b"the physical cluster has no metrics API")
        return Response(200, {}, found if isinstance(found, bytes) else json.dumps(found).encode())

    async def close(self) -> None:
        self.urls.append("closed")


def scraped(transport: Summaries, clock: list[float], *nodes: Object) -> ScrapedNodes:
    client = Client(transport)  # type: ignore[arg-type]
    made = ScrapedNodes(transport.connect, Informer(client, NODES), Informer(client, PODS), lambda: clock[0])
    made.pods.store.put("default/web", new_object("web", namespace="default"))
    for node in nodes:
        made.nodes.store.put(node["metadata"]["name"], node)
    return made


async def test_usage_of_known_pods_is_cached() -> None:
    summary = {"pods": [pod_summary("web", "uid-web"), pod_summary("web", "uid-old"), pod_summary("gone", "uid-gone")]}
    transport, clock = Summaries(n1=summary), [0.0]
    both = [new_node("n1"), new_node("n2")]
    nodes = scraped(transport, clock, *both)
    for _ in range(3):
        (found, missing) = await nodes.usages(both)
        assert found is not None
        ((pod, containers, _),) = found
        assert (pod["metadata"]["name"], containers[0].cores, containers[0].memory) == ("web", 0.25, 4096)
        assert missing is None
    assert transport.paths == [f"/nodes/{name}/stats/summary" for name in ("n1", "n2")]
    clock[0] = CACHE_SECONDS
    await nodes.usages(both[:1])
    assert (len(transport.paths), transport.urls) == (3, ["https://127.97.0.1:10250"])


async def test_transports_of_deleted_syncers_are_closed() -> None:
    transport = Summaries()
    nodes = scraped(transport, [0.0], new_node("n1"))
    await nodes.usages([new_node("n1")])
    nodes.nodes.store.put("n1", new_node("n1", port=10251))
    await nodes.usages([])
    assert transport.urls[-1] == "closed"


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "example.com", ""])
async def test_only_pods_of_this_machine_are_called(address: str) -> None:
    transport = Summaries()
    assert await scraped(transport, [0.0]).usages([new_node("n1", address)]) == [None]
    assert transport.urls == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"pods": [{}]}', b'{"pods": [{"podRef": 1}]}', b"{" * 10])
async def test_malformed_summary_is_no_usage(body: bytes) -> None:
    assert await scraped(Summaries(n1=body), [0.0]).usages([new_node("n1")]) == [None]
