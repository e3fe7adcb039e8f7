"""The metrics API of a tenant's plane: pods and nodes, selectors, and when the host cluster is asked."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tapestry.apiserver.core.requests import Call, User
from tapestry.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound, Unavailable
from tapestry.kube.objects import Object, uid_of
from tapestry.nodeproxy.usage import CACHE_SECONDS, UsageReader, UsageSource
from tapestry.tenants.metrics_api import ROOT, TenantMetrics

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def new_pod(name: str, node: str = "n1", namespace: str = "default", **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "c"}]}}


def metrics_of(pod: Object, cpu: str = "250m", **changes: Any) -> Object:
    containers = [{"name": name, "usage": {"cpu": cpu, "memory": "64Mi"}} for name in ("c", "owner-sidecar")]
    measured = {"timestamp": "2026-01-01T11:59:50Z", "window": "20s", "containers": containers}
    return {"metadata": {"name": f"twin-{uid_of(pod)}", "namespace": "mount"}, **measured, **changes}


@dataclass
class Host:
    """The metrics API of the host cluster."""

    items: list[Object] = field(default_factory=list)
    lists: int = 0
    error: ApiError | None = None

    async def list(self, *_: Any, **__: Any) -> list[Object]:
        self.lists += 1
        if self.error is not None:
            raise self.error
        return self.items


@dataclass
class World:
    host: Host = field(default_factory=Host)
    pods: list[Object] = field(default_factory=list)
    nodes: list[Object] = field(default_factory=lambda: [{"metadata": {"name": each}} for each in ("n1", "n2")])
    time: float = 0.0

    def __post_init__(self) -> None:
        source = UsageSource(lambda _: None, lambda _: (), twin_of, self.host, "mount", "")  # type: ignore[arg-type]
        reader = UsageReader(source, lambda: NOW, lambda: self.time)
        self.metrics = TenantMetrics(reader, lambda: self.nodes, lambda: self.pods, lambda: NOW)

    async def get(self, path: str, method: str = "GET", **query: str) -> Any:
        response = await self.metrics.handle(Call(method, f"{ROOT}{path}", query, {}, b"", User("u")))
        return msgspec.json.decode(response.body)

    async def names(self, path: str, **query: str) -> list[str]:
        return [each["metadata"]["name"] for each in (await self.get(path, **query))["items"]]


def twin_of(pod: Object) -> Object:
    return {"metadata": {"name": f"twin-{uid_of(pod)}"}}


@pytest.fixture
def world() -> World:
    pods = [new_pod("a", app="x"), new_pod("b", "n2", app="y"), new_pod("c", "n2", "other", app="x")]
    return World(Host([metrics_of(each) for each in pods]), pods)


async def test_pod_has_the_usage_of_its_own_containers(world: World) -> None:
    found = await world.get("/namespaces/default/pods/a")
    assert found["kind"] == "PodMetrics"
    assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("a", "default")
    assert found["containers"] == [{"name": "c", "usage": {"cpu": "250000000n", "memory": "65536Ki"}}]
    assert found["timestamp"] == "2026-01-01T11:59:50Z"


async def test_pods_are_selected(world: World) -> None:
    assert await world.names("/pods") == ["a", "b", "c"]
    assert await world.names("/namespaces/default/pods") == ["a", "b"]
    assert await world.names("/pods", labelSelector="app=x") == ["a", "c"]
    assert await world.names("/pods", fieldSelector="metadata.name=b") == ["b"]
    assert await world.names("/nodes", fieldSelector="metadata.name=n2") == ["n2"]
    with pytest.raises(BadRequest):
        await world.get("/pods", labelSelector="!!")


async def test_node_has_the_usage_of_the_tenants_pods(world: World) -> None:
    found = {each["metadata"]["name"]: each["usage"] for each in (await world.get("/nodes"))["items"]}
    assert found == {
        "n1": {"cpu": "250000000n", "memory": "65536Ki"},
        "n2": {"cpu": "500000000n", "memory": "131072Ki"},
    }
    assert (await world.get("/nodes/n2"))["usage"] == found["n2"]


async def test_host_is_queried_on_request_and_then_cached(world: World) -> None:
    await world.get("")
    assert world.host.lists == 0
    await world.get("/pods")
    await world.get("/nodes")
    assert world.host.lists == 1
    world.time += CACHE_SECONDS
    await world.get("/pods")
    assert world.host.lists == 2


async def test_pods_without_measurement_are_left_out(world: World) -> None:
    world.host.items = [metrics_of(world.pods[0], timestamp="soon"), metrics_of(world.pods[1])]
    assert await world.names("/pods") == ["b"]
    with pytest.raises(NotFound, match="not found"):
        await world.get("/namespaces/default/pods/a")


async def test_host_without_metrics_is_explained(world: World) -> None:
    world.host.error = NotFound(404, "NotFound", "no")
    with pytest.raises(Unavailable, match="install metrics-server there"):
        await world.get("/nodes")


async def test_other_paths_and_writes_are_refused(world: World) -> None:
    for path in ("/nodes/n1/status", "/namespaces/default", "/namespaces/default/services", "/x"):
        with pytest.raises(NotFound):
            await world.get(path)
    with pytest.raises(MethodNotAllowed):
        await world.get("/nodes", method="POST")
