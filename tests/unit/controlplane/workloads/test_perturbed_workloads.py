"""Perturbation tests of the workload controllers: the final state is always the same."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb, running_clock, specimen
from tapestry.controlplane import service_endpoints
from tapestry.controlplane.workloads import (
    cronjobs,
    daemonsets,
    deployments,
    jobs,
    replicasets,
    statefulsets,
)
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, object_named, value_at
from tapestry.kube.resources import (
    CONTROLLER_REVISIONS,
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    JOBS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from tapestry.kube.times import timestamp

AN_HOUR = 3600.0
OUTCOME = "outcome"
"""Annotation with the final phase of a pod."""


async def kubelet(client: Client) -> None:
    """Run pods, or terminate them with the phase of their annotation."""
    async for event in Watch(client, PODS).events():
        match event:
            case ListPage(found):
                pods = found
            case Changes(changes):
                pods = [pod for type, pod in changes if type != "DELETED"]
            case _:
                continue
        for pod in pods:
            with suppress(NotFound, Conflict):
                await run_pod(client, pod)


async def run_pod(client: Client, pod: Object) -> None:
    if is_deleting(pod):
        return
    if value_at(pod, "status", "phase") not in ("Running", "Succeeded", "Failed"):
        outcome = value_at(pod, "metadata", "annotations", OUTCOME, default="Running")
        now = timestamp(running_clock().now())
        ready = {"type": "Ready", "status": str(outcome == "Running"), "lastTransitionTime": now}
        await client.patch(PODS, pod, {"status": {"phase": outcome, "conditions": [ready]}}, subresource="status")


def with_kubelet(scenario: Callable[[Client], Any]) -> Callable[[Client], Any]:
    """Run a scenario with a kubelet."""

    async def run_scenario(client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(kubelet(client))
            await scenario(client)
            await asyncio.sleep(120)  # let pending work finish
            running.cancel()

    return run_scenario


async def until(client: Client, resource: Resource, name: str, holds: Callable[[Object], bool]) -> Object:
    found = await wait_for(
        client, resource, name, "default", until=lambda obj: obj is not None and holds(obj), timeout=AN_HOUR
    )
    assert found is not None
    return found


def template(image: str = "a", **annotations: str) -> Object:
    return {
        "metadata": {"labels": {"app": "x"}, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }


def new_object(replicas: int | None = None, image: str = "a", **spec: Any) -> Object:
    size = {"replicas": replicas} if replicas is not None else {}
    selector = {"selector": {"matchLabels": {"app": "x"}}}
    return {
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {**size, **selector, "template": template(image), **spec},
    }


def counts(**expected: int) -> Callable[[Object], bool]:
    return lambda obj: all(value_at(obj, "status", key, default=0) == count for key, count in expected.items())


# -- scenarios


async def scaling_replica_set(client: Client) -> None:
    orphan = {"metadata": {"name": "stray", "namespace": "default", "labels": {"app": "x"}}, "spec": template()["spec"]}
    await client.create(PODS, orphan)
    await client.create(REPLICA_SETS, new_object(3))
    await until(client, REPLICA_SETS, "x", counts(availableReplicas=3))
    await client.patch(REPLICA_SETS, object_named("x", "default"), {"spec": {"replicas": 1}})
    await until(client, REPLICA_SETS, "x", counts(replicas=1))


def is_rolled_out(revision: str) -> Callable[[Object], bool]:
    def holds(obj: Object) -> bool:
        current = value_at(obj, "metadata", "annotations", "deployment.kubernetes.io/revision")
        is_new = value_at(obj, "status", "observedGeneration") == obj["metadata"]["generation"]
        replicas = obj["spec"]["replicas"]
        expected = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
        return current == revision and is_new and counts(**expected)(obj)

    return holds


async def rollout(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await client.create(DEPLOYMENTS, new_object(1, strategy=strategy, progressDeadlineSeconds=600))
    await until(client, DEPLOYMENTS, "x", is_rolled_out("1"))
    await client.patch(DEPLOYMENTS, object_named("x", "default"), {"spec": {"template": template("b")}})
    await until(client, DEPLOYMENTS, "x", is_rolled_out("2"))


async def recreate(client: Client) -> None:
    await client.create(DEPLOYMENTS, new_object(1, strategy={"type": "Recreate"}))
    await until(client, DEPLOYMENTS, "x", is_rolled_out("1"))
    await client.patch(DEPLOYMENTS, object_named("x", "default"), {"spec": {"template": template("b")}})
    await until(client, DEPLOYMENTS, "x", is_rolled_out("2"))


async def stateful_set(client: Client) -> None:
    claim = specimen(PERSISTENT_VOLUME_CLAIMS, "d")
    policy = {"whenScaled": "Delete", "whenDeleted": "Retain"}
    await client.create(
        STATEFUL_SETS,
        new_object(2, serviceName="x", volumeClaimTemplates=[claim], persistentVolumeClaimRetentionPolicy=policy),
    )
    await until(client, STATEFUL_SETS, "x", counts(readyReplicas=2))
    await client.patch(
        STATEFUL_SETS, object_named("x", "default"), {"spec": {"replicas": 1, "template": template("b")}}
    )
    await until(
        client,
        STATEFUL_SETS,
        "x",
        lambda obj: (
            counts(readyReplicas=1, updatedReplicas=1, replicas=1)(obj)
            and obj["status"]["currentRevision"] == obj["status"]["updateRevision"]
            and obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
        ),
    )


async def daemon_set(client: Client) -> None:
    for name in ("m", "n"):
        await client.create(NODES, {"metadata": {"name": name}})
    await client.create(DAEMON_SETS, new_object(updateStrategy={"type": "RollingUpdate"}))
    await until(client, DAEMON_SETS, "x", counts(numberAvailable=2))
    await client.patch(DAEMON_SETS, object_named("x", "default"), {"spec": {"template": template("b")}})
    await client.patch(NODES, object_named("m"), {"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}})
    await until(
        client,
        DAEMON_SETS,
        "x",
        lambda obj: (
            counts(desiredNumberScheduled=1, updatedNumberScheduled=1, numberAvailable=1)(obj)
            and obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
        ),
    )


def new_job(outcome: str, **spec: Any) -> Object:
    pods = template(outcome=outcome)
    job_spec = {"template": {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}, **spec}
    return {"metadata": {"name": "x", "namespace": "default"}, "spec": job_spec}


async def succeeding_job(client: Client) -> None:
    await client.create(JOBS, new_job("Succeeded", completions=4, parallelism=2))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Complete"))


async def succeeding_indexed_job(client: Client) -> None:
    await client.create(JOBS, new_job("Succeeded", completions=3, parallelism=3, completionMode="Indexed"))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Complete"))


async def failing_job(client: Client) -> None:
    await client.create(JOBS, new_job("Failed", backoffLimit=2, completions=1))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Failed"))


async def failing_indexed_job(client: Client) -> None:
    await client.create(
        JOBS,
        new_job(
            "Failed", completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1, backoffLimit=99
        ),
    )
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Failed"))


async def suspended_job(client: Client) -> None:
    await client.create(JOBS, new_job("Running", completions=2, parallelism=2))
    await until(client, JOBS, "x", counts(ready=2))
    await client.patch(JOBS, object_named("x", "default"), {"spec": {"suspend": True}})
    await until(
        client, JOBS, "x", lambda obj: is_condition_true(obj, "Suspended") and not value_at(obj, "status", "active")
    )


async def cron_job(client: Client) -> None:
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 1}
    template = {"spec": new_job("Running")["spec"]}
    await client.create(
        CRON_JOBS,
        {"metadata": {"name": "x", "namespace": "default"}, "spec": {**spec, "jobTemplate": template}},
    )
    for _ in range(2):
        found = await until(client, CRON_JOBS, "x", lambda obj: bool(value_at(obj, "status", "active")))
        (active,) = found["status"]["active"]
        job = await client.get(JOBS, active["name"], "default")
        now = timestamp(running_clock().now())
        done = {"type": "Complete", "status": "True", "lastTransitionTime": now}
        status = {"conditions": [done], "completionTime": now}
        await client.patch(JOBS, job, {"status": status}, subresource="status")
        await until(client, CRON_JOBS, "x", lambda obj: not value_at(obj, "status", "active"))
    await client.patch(CRON_JOBS, object_named("x", "default"), {"spec": {"suspend": True}})


async def service_with_changing_pods(client: Client) -> None:
    for number in (1, 2):
        pod = {"metadata": {"name": f"p{number}", "namespace": "default", "labels": {"app": "x"}}}
        await client.create(PODS, {**pod, "spec": template()["spec"]})
        status = {"podIPs": [{"ip": f"10.0.0.{number}"}]}
        await client.patch(PODS, object_named(f"p{number}", "default"), {"status": status}, subresource="status")
    spec = {"selector": {"app": "x"}, "ports": [{"name": "a", "port": 80, "protocol": "TCP"}]}
    await client.create(SERVICES, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec})
    await until(client, ENDPOINTS, "x", lambda obj: len(addresses(obj)) == 2)
    await client.delete(PODS, object_named("p1", "default"))
    await until(client, ENDPOINTS, "x", lambda obj: addresses(obj) == ["10.0.0.2"])


def addresses(endpoints: Object) -> list[str]:
    return [each["ip"] for part in endpoints.get("subsets") or () for each in part.get("addresses") or ()]


async def user_written_endpoints(client: Client) -> None:
    spec = {"ports": [{"name": "a", "port": 80, "protocol": "TCP"}]}
    await client.create(SERVICES, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec})
    metadata = {"name": "x", "namespace": "default"}
    subset = {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80, "protocol": "TCP"}]}
    await client.create(ENDPOINTS, {"metadata": metadata, "subsets": [subset]})
    await asyncio.sleep(60)
    await client.patch(ENDPOINTS, object_named("x", "default"), {"subsets": None})


def install_all(*installs: Callable[[Manager], None]) -> Callable[[Manager], None]:
    def install(manager: Manager) -> None:
        for each in installs:
            each(manager)

    return install


ROLLOUT = install_all(deployments.install, replicasets.install)
ROLLOUT_RESOURCES = (DEPLOYMENTS, REPLICA_SETS, PODS)
STATEFUL_RESOURCES = (STATEFUL_SETS, PODS, PERSISTENT_VOLUME_CLAIMS, CONTROLLER_REVISIONS)
SERVICE_RESOURCES = (SERVICES, ENDPOINTS, ENDPOINT_SLICES, PODS, NODES)
DAEMON_RESOURCES = (DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS)


@pytest.mark.parametrize(
    ("install", "resources", "scenario"),
    [
        (replicasets.install, (REPLICA_SETS, PODS), scaling_replica_set),
        (ROLLOUT, ROLLOUT_RESOURCES, rollout),
        (ROLLOUT, ROLLOUT_RESOURCES, recreate),
        (statefulsets.install, STATEFUL_RESOURCES, stateful_set),
        (daemonsets.install, DAEMON_RESOURCES, daemon_set),
        (jobs.install, (JOBS, PODS), succeeding_job),
        (jobs.install, (JOBS, PODS), succeeding_indexed_job),
        (jobs.install, (JOBS, PODS), failing_job),
        (jobs.install, (JOBS, PODS), failing_indexed_job),
        (jobs.install, (JOBS, PODS), suspended_job),
        (cronjobs.install, (CRON_JOBS, JOBS), cron_job),
        (service_endpoints.install, SERVICE_RESOURCES, service_with_changing_pods),
        (service_endpoints.install, SERVICE_RESOURCES, user_written_endpoints),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_perturbation_leads_to_same_state(
    install: Callable[[Manager], None], resources: Sequence[Resource], scenario: Callable[[Client], Any]
) -> None:
    report = perturb(
        Scenario("workloads", resources, install, with_kubelet(scenario), counts=lambda call: "events" not in call)
    )
    assert report.calls > 0
    assert not report.failures, report
