"""Usage of nodes and pods in the formats of kubelets and of the metrics API."""

from datetime import UTC, datetime, timedelta

from tapestry.kube.objects import Object
from tapestry.kube.usage import ContainerUsage, PodUsage, metrics_page, pod_metrics, stats_summary

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=7)


def new_pod(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}}


def millis(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def test_containers_are_listed_separately() -> None:
    parts = [ContainerUsage("a", NOW, 0.1, 1, 1024), ContainerUsage("b", NOW, 0.2, 1, 2048)]
    containers = pod_metrics(PodUsage(new_pod("x"), parts), NOW)["containers"]
    assert [each["usage"]["memory"] for each in containers] == ["1Ki", "2Ki"]


def test_samples_keep_the_time_of_their_measurement() -> None:
    usage = PodUsage(new_pod("x"), [ContainerUsage("c", EARLIER, 0.5, 12.5, 4096)], EARLIER)
    lines = metrics_page([usage], NOW, node_core_seconds=99.0).splitlines()
    labels = 'container="c",namespace="default",pod="x"'
    assert f"container_cpu_usage_seconds_total{{{labels}}} 12.5 {millis(EARLIER)}" in lines
    assert f"node_cpu_usage_seconds_total 99 {millis(NOW)}" in lines
    assert f"node_memory_working_set_bytes 4096 {millis(NOW)}" in lines
    assert pod_metrics(usage, NOW)["timestamp"] == "2026-01-01T11:59:53Z"
    node = {"metadata": {"name": "n", "creationTimestamp": "2026-01-01T11:00:00Z"}}
    assert stats_summary(node, [usage], NOW)["pods"][0]["cpu"]["time"] == "2026-01-01T11:59:53Z"


def test_values_of_zero_are_rounded_up_for_metrics_server() -> None:
    usage = PodUsage(new_pod("x"), [ContainerUsage("c", NOW, 0, 0, 0)])
    values = [line.split()[1] for line in metrics_page([usage], NOW).splitlines() if line.startswith(("node_", "pod_"))]
    assert values == ["1e-09", "1", "1e-09", "1"]
