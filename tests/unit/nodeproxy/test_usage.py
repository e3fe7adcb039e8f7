"""Usage of virtual nodes: which node is requested, measurements, cumulative CPU time, and the pages of the kubelet."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.names import node_metrics_path
from tapestry.kube.errors import ApiError, Forbidden, NotFound, Unavailable
from tapestry.kube.objects import Object, object_named
from tapestry.kube.times import timestamp
from tapestry.nodeproxy.usage import (
    CACHE_SECONDS,
    NodeCounters,
    Sample,
    UsageReader,
    UsageRequest,
    UsageSource,
    sample_of,
    usage_request,
)

from .world import NODE, POD, TWIN, World, new_node, new_pod

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATH = node_metrics_path(NODE)
FORWARDED = f"/api/v1/nodes/{NODE}/proxy/stats/summary"


@pytest.mark.parametrize(
    ("path", "forwarded", "requested"),
    [
        (PATH, "", UsageRequest(NODE, "metrics")),
        (f"/nodes/{NODE}/stats/summary", "", UsageRequest(NODE, "stats")),
        ("/stats/summary", FORWARDED, UsageRequest(NODE, "stats")),
        ("/stats/summary", f"/api/v1/nodes/https:{NODE}:10250/proxy/stats/summary", UsageRequest(NODE, "stats")),
        (PATH, "/api/v1/nodes/other/proxy/metrics/resource", UsageRequest(NODE, "metrics")),
        ("/metrics/resource", "", UsageRequest("", "metrics")),
        ("/metrics/resource", f"/x{FORWARDED}", UsageRequest("", "metrics")),
        ("/metrics/cadvisor", "", None),
        (f"/nodes/{NODE}/../other/metrics/resource", "", None),
        (f"{PATH}/", "", None),
    ],
)
def test_node_is_in_the_path_or_forwarded(path: str, forwarded: str, requested: UsageRequest | None) -> None:
    assert usage_request(path, forwarded) == requested


def pod_metrics(time: datetime = NOW, cpu: str = "500m", **changes: Any) -> Object:
    containers = [{"name": "c", "usage": {"cpu": cpu, "memory": "4Ki"}}]
    measured = {"timestamp": timestamp(time), "window": "20s", "containers": containers}
    return {"metadata": {"name": TWIN, "namespace": "leased"}, **measured, **changes}


def test_measurement_is_read_from_metrics() -> None:
    assert sample_of(pod_metrics()) == Sample(NOW, timedelta(seconds=20), {"c": (0.5, 4096)})


@pytest.mark.parametrize(
    "changes",
    [
        {"timestamp": None},
        {"window": 15},
        {"window": "soon"},
        {"containers": None},
        {"containers": [{"name": "c"}]},
        {"containers": ["c"]},
        {"containers": [{"name": "c", "usage": {"cpu": "-1", "memory": "1"}}]},
        {"containers": [{"name": "c", "usage": {"cpu": "9e99", "memory": "1"}}]},
        {"containers": [{"name": "c", "usage": {"cpu": "1", "memory": [1]}}]},
    ],
)
def test_malformed_measurements_are_ignored(changes: Object) -> None:
    assert sample_of(pod_metrics(**changes)) is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4000)), min_size=1, max_size=20))
def test_cpu_time_never_decreases(steps: list[tuple[int, int]]) -> None:
    counters, at, last = NodeCounters(), NOW, (0.0, 0.0)
    for seconds, millis in steps:
        at += timedelta(seconds=seconds)
        sample = sample_of(pod_metrics(at, f"{millis}m"))
        (usage,) = counters.update([new_pod()], lambda _, sample=sample: sample)
        (container,) = usage.containers
        assert (container.core_seconds, counters.core_seconds) >= last
        last = container.core_seconds, counters.core_seconds


def test_rates_are_summed_up_over_the_time_between_measurements() -> None:
    counters = NodeCounters()

    def core_seconds(seconds: int, cpu: str) -> float:
        sample = sample_of(pod_metrics(NOW + timedelta(seconds=seconds), cpu))
        return counters.update([new_pod()], lambda _: sample)[0].containers[0].core_seconds

    assert core_seconds(0, "500m") == 10  # the first window
    assert core_seconds(0, "500m") == 10
    assert core_seconds(15, "2") == 40
    assert core_seconds(10, "4") == 40  # older than the last one
    assert counters.update([], lambda _: None) == []
    assert (counters.core_seconds, counters.containers) == (40, {})


def test_only_containers_of_the_pod_are_included() -> None:
    containers = [{"name": name, "usage": {"cpu": "1", "memory": "1"}} for name in ("c", "injected", 'x"} 1\n')]
    sample = sample_of(pod_metrics(containers=containers))
    (usage,) = NodeCounters().update([new_pod()], lambda _: sample)
    assert [each.container for each in usage.containers] == ["c"]


# -- the kubelet API


async def test_page_shows_virtual_pods_only(world: World) -> None:
    foreign = {**pod_metrics(), "metadata": {"name": "foreign", "namespace": "leased"}}
    world.physical.metrics = [pod_metrics(), foreign]
    code, page = await world.ask(PATH)
    labels = f'container="c",namespace="default",pod="{POD}"'
    assert (code, f"container_cpu_usage_seconds_total{{{labels}}} 10 " in page) == (200, True)
    assert "foreign" not in page
    assert TWIN not in page
    assert world.physical.queries[-1]["labelSelector"] == "binding=east"
    assert (
        world.reviews[-1]["resourceAttributes"] | {"subresource": "metrics", "name": NODE}
        == (world.reviews[-1]["resourceAttributes"])
    )


async def test_summary_has_rates_of_virtual_pods(world: World) -> None:
    world.physical.metrics = [pod_metrics()]
    code, text = await world.ask(f"/nodes/{NODE}/stats/summary")
    summary = msgspec.json.decode(text)
    assert (code, summary["node"]["nodeName"]) == (200, NODE)
    assert [each["podRef"]["name"] for each in summary["pods"]] == [POD]
    assert summary["pods"][0]["cpu"]["usageNanoCores"] == 500_000_000


async def test_one_list_answers_all_requests(world: World) -> None:
    for _ in range(5):
        await world.ask(PATH)
    assert len(world.physical.queries) == 1


async def test_usage_needs_permission_on_the_node(world: World) -> None:
    assert (await world.ask(PATH, who=""))[0] == 401
    assert (await world.ask(PATH, who="guest's"))[0] == 403
    assert (await world.ask(node_metrics_path("unknown"), who="guest's"))[0] == 403
    assert (await world.ask(node_metrics_path("unknown")))[0] == 404
    code, text = await world.ask("/metrics/resource")
    assert (code, "/nodes/NAME/metrics/resource" in text) == (404, True)
    assert world.physical.queries == []


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Forbidden(403, "Forbidden", "no"), "may not list pods.metrics.k8s.io in namespace leased"),
        (NotFound(404, "NotFound", "no"), "has no metrics API"),
        (Unavailable(503, "ServiceUnavailable", "no"), "check metrics-server"),
    ],
)
async def test_failure_is_explained(world: World, error: ApiError, text: str) -> None:
    world.physical.refusal = error
    code, answer = await world.ask(PATH)
    assert (code, text in answer) == (503, True)


class Listing:
    """A client that counts its lists."""

    def __init__(self) -> None:
        self.count = 0

    async def list(self, *_: object, **__: object) -> list[Object]:
        self.count += 1
        return []


async def test_list_expires_and_deleted_nodes_are_forgotten() -> None:
    client, seconds, nodes = Listing(), [0.0], {NODE: new_node(), "gone": object_named("gone")}
    source = UsageSource(nodes.get, lambda _: [], lambda _: None, client, "leased", "")  # type: ignore[arg-type]
    reader = UsageReader(source, lambda: NOW, lambda: seconds[0])
    for node in list(nodes.values()):
        await reader.resource_metrics(node)
    del nodes["gone"]
    seconds[0] = CACHE_SECONDS
    await reader.resource_metrics(nodes[NODE])
    assert (client.count, list(reader._counters)) == (2, [NODE])
