"""Usage of simulated and real pods."""

from datetime import UTC, datetime, timedelta

from tapestry.kube.objects import Object
from tapestry.kube.usage import node_metrics, pod_metrics
from tapestry.local.usage import CpuRates, CpuSample, requested_usage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def running_pod(name: str, cpu: str, memory: str) -> Object:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    state = {"running": {"startedAt": "2026-01-01T11:59:00Z"}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": resources}]},
        "status": {"containerStatuses": [{"name": "c", "state": state}]},
    }


def test_simulated_pods_use_what_they_request() -> None:
    usages = requested_usage([running_pod("a", "250m", "64Mi"), running_pod("b", "1", "1Gi")], NOW)
    metrics = pod_metrics(usages[0], NOW)
    assert metrics["containers"] == [{"name": "c", "usage": {"cpu": "250000000n", "memory": "65536Ki"}}]
    assert (metrics["metadata"]["namespace"], metrics["timestamp"]) == ("default", "2026-01-01T12:00:00Z")
    node = node_metrics({"metadata": {"name": "n"}}, usages, NOW)
    assert node["usage"] == {"cpu": "1250000000n", "memory": "1114112Ki"}
    assert node_metrics({"metadata": {"name": "n"}}, [], NOW)["usage"] == {"cpu": "0n", "memory": "0Ki"}


def test_cpu_rate_is_that_of_the_last_interval() -> None:
    rates = CpuRates()

    def cores(seconds: float, core_seconds: float, pid: int = 7) -> float:
        return rates.cores(pid, CpuSample(NOW + timedelta(seconds=seconds), core_seconds), since_start=0.5)

    assert cores(0, 100) == 0.5
    assert cores(5, 105) == 0.5  # too early
    assert cores(10, 120) == 2.0
    assert cores(15, 120) == 20 / 15
    assert cores(20, 120) == 0.0
    assert cores(3600, 120 + 358) == 0.1
    assert cores(3700, 1) == 0.5  # a new process
    rates.forget_others({8})
    assert cores(3800, 50) == 0.5
