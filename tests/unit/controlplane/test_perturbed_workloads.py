"""Workloads, disturbed at every call that their controllers make: they must come to the same end each time."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.client.watch import Changes, ListPage, Watch
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
FATE = "fate"
"""An annotation: what becomes of a pod."""


async def kubelet(client: Client) -> None:
    """Has pods run, or end as they say, and go when they are deleted."""
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
                await care_for(client, pod)


async def care_for(client: Client, pod: Object) -> None:
    if is_deleting(pod):
        return
    if value_at(pod, "status", "phase") not in ("Running", "Succeeded", "Failed"):
        fate = value_at(pod, "metadata", "annotations", FATE, default="Running")
        now = timestamp(running_clock().now())
        ready = {"type": "Ready", "status": str(fate == "Running"), "lastTransitionTime": now}
        await client.patch(PODS, pod, {"status": {"phase": fate, "conditions": [ready]}}, subresource="status")


def played(story: Callable[[Client], Any]) -> Callable[[Client], Any]:
    """The story, with a kubelet beside it."""

    async def world(client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(kubelet(client))
            await story(client)
            await asyncio.sleep(120)  # whatever is still under way comes to its end
            running.cancel()

    return world


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


def an_object(replicas: int | None = None, image: str = "a", **spec: Any) -> Object:
    size = {"replicas": replicas} if replicas is not None else {}
    chosen = {"selector": {"matchLabels": {"app": "x"}}}
    return {
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {**size, **chosen, "template": template(image), **spec},
    }


def counts(**wanted: int) -> Callable[[Object], bool]:
    return lambda obj: all(value_at(obj, "status", key, default=0) == count for key, count in wanted.items())


# -- stories


async def a_set_that_grows_and_shrinks(client: Client) -> None:
    stray = {"metadata": {"name": "stray", "namespace": "default", "labels": {"app": "x"}}, "spec": template()["spec"]}
    await client.create(PODS, stray)
    await client.create(REPLICA_SETS, an_object(3))
    await until(client, REPLICA_SETS, "x", counts(availableReplicas=3))
    await client.patch(REPLICA_SETS, object_named("x", "default"), {"spec": {"replicas": 1}})
    await until(client, REPLICA_SETS, "x", counts(replicas=1))


def is_rolled_out(revision: str) -> Callable[[Object], bool]:
    def holds(obj: Object) -> bool:
        said = value_at(obj, "metadata", "annotations", "deployment.kubernetes.io/revision")
        is_new = value_at(obj, "status", "observedGeneration") == obj["metadata"]["generation"]
        replicas = obj["spec"]["replicas"]
        wanted = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
        return said == revision and is_new and counts(**wanted)(obj)

    return holds


async def a_rollout(client: Client) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await client.create(DEPLOYMENTS, an_object(1, strategy=strategy, progressDeadlineSeconds=600))
    await until(client, DEPLOYMENTS, "x", is_rolled_out("1"))
    await client.patch(DEPLOYMENTS, object_named("x", "default"), {"spec": {"template": template("b")}})
    await until(client, DEPLOYMENTS, "x", is_rolled_out("2"))


async def recreation(client: Client) -> None:
    await client.create(DEPLOYMENTS, an_object(1, strategy={"type": "Recreate"}))
    await until(client, DEPLOYMENTS, "x", is_rolled_out("1"))
    await client.patch(DEPLOYMENTS, object_named("x", "default"), {"spec": {"template": template("b")}})
    await until(client, DEPLOYMENTS, "x", is_rolled_out("2"))


async def numbered_pods(client: Client) -> None:
    claim = specimen(PERSISTENT_VOLUME_CLAIMS, "d")
    policy = {"whenScaled": "Delete", "whenDeleted": "Retain"}
    await client.create(
        STATEFUL_SETS,
        an_object(2, serviceName="x", volumeClaimTemplates=[claim], persistentVolumeClaimRetentionPolicy=policy),
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


async def a_pod_on_each_node(client: Client) -> None:
    for name in ("m", "n"):
        await client.create(NODES, {"metadata": {"name": name}})
    await client.create(DAEMON_SETS, an_object(updateStrategy={"type": "RollingUpdate"}))
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


def a_job(fate: str, **spec: Any) -> Object:
    pods = template(fate=fate)
    given = {"template": {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}, **spec}
    return {"metadata": {"name": "x", "namespace": "default"}, "spec": given}


async def pods_that_succeed(client: Client) -> None:
    await client.create(JOBS, a_job("Succeeded", completions=4, parallelism=2))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Complete"))


async def indexes_that_succeed(client: Client) -> None:
    await client.create(JOBS, a_job("Succeeded", completions=3, parallelism=3, completionMode="Indexed"))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Complete"))


async def pods_that_fail(client: Client) -> None:
    await client.create(JOBS, a_job("Failed", backoffLimit=2, completions=1))
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Failed"))


async def indexes_that_fail(client: Client) -> None:
    await client.create(
        JOBS,
        a_job(
            "Failed", completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1, backoffLimit=99
        ),
    )
    await until(client, JOBS, "x", lambda obj: is_condition_true(obj, "Failed"))


async def a_pause(client: Client) -> None:
    await client.create(JOBS, a_job("Running", completions=2, parallelism=2))
    await until(client, JOBS, "x", counts(ready=2))
    await client.patch(JOBS, object_named("x", "default"), {"spec": {"suspend": True}})
    await until(
        client, JOBS, "x", lambda obj: is_condition_true(obj, "Suspended") and not value_at(obj, "status", "active")
    )


async def a_job_every_minute(client: Client) -> None:
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "successfulJobsHistoryLimit": 1}
    template = {"spec": a_job("Running")["spec"]}
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


async def a_service_whose_pods_come_and_go(client: Client) -> None:
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


async def endpoints_that_others_write(client: Client) -> None:
    spec = {"ports": [{"name": "a", "port": 80, "protocol": "TCP"}]}
    await client.create(SERVICES, {"metadata": {"name": "x", "namespace": "default"}, "spec": spec})
    metadata = {"name": "x", "namespace": "default"}
    subset = {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80, "protocol": "TCP"}]}
    await client.create(ENDPOINTS, {"metadata": metadata, "subsets": [subset]})
    await asyncio.sleep(60)
    await client.patch(ENDPOINTS, object_named("x", "default"), {"subsets": None})


def both(*installs: Callable[[Manager], None]) -> Callable[[Manager], None]:
    def install(manager: Manager) -> None:
        for each in installs:
            each(manager)

    return install


ROLLOUT = both(deployments.install, replicasets.install)
SETS = (DEPLOYMENTS, REPLICA_SETS, PODS)
NUMBERED = (STATEFUL_SETS, PODS, PERSISTENT_VOLUME_CLAIMS, CONTROLLER_REVISIONS)
BEHIND = (SERVICES, ENDPOINTS, ENDPOINT_SLICES, PODS, NODES)
DAEMONS = (DAEMON_SETS, PODS, NODES, CONTROLLER_REVISIONS)


@pytest.mark.parametrize(
    ("install", "resources", "story"),
    [
        (replicasets.install, (REPLICA_SETS, PODS), a_set_that_grows_and_shrinks),
        (ROLLOUT, SETS, a_rollout),
        (ROLLOUT, SETS, recreation),
        (statefulsets.install, NUMBERED, numbered_pods),
        (daemonsets.install, DAEMONS, a_pod_on_each_node),
        (jobs.install, (JOBS, PODS), pods_that_succeed),
        (jobs.install, (JOBS, PODS), indexes_that_succeed),
        (jobs.install, (JOBS, PODS), pods_that_fail),
        (jobs.install, (JOBS, PODS), indexes_that_fail),
        (jobs.install, (JOBS, PODS), a_pause),
        (cronjobs.install, (CRON_JOBS, JOBS), a_job_every_minute),
        (service_endpoints.install, BEHIND, a_service_whose_pods_come_and_go),
        (service_endpoints.install, BEHIND, endpoints_that_others_write),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_end_is_the_same_whatever_happens(
    install: Callable[[Manager], None], resources: Sequence[Resource], story: Callable[[Client], Any]
) -> None:
    report = perturb(Scenario("workloads", resources, install, played(story), counts=lambda call: "events" not in call))
    assert report.calls > 0
    assert not report.failures, report
