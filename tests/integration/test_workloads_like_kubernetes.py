"""Comparison of our workload controllers with kube-controller-manager.

The same steps must lead to the same sizes, conditions and messages.  No kubelet runs: the test sets the status of pods
according to the name of their image.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.options import PatchType
from tapestry.client.watch import Changes, ListPage, Watch, wait_for
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, object_named, value_at
from tapestry.kube.resources import (
    CONTROLLER_REVISIONS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    SERVICE_ACCOUNTS,
    STATEFUL_SETS,
    Resource,
)
from tapestry.kube.times import timestamp
from tapestry.local.kubernetes import ControlPlane

from .planes import KUBERNETES, OWN
from .servers import OwnServer

TIMEOUT = 30.0
REVISION = "deployment.kubernetes.io/revision"


@pytest.fixture(scope="module", params=[KUBERNETES, OWN])
def kubeconfig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("workloads")
    if request.param == "kubernetes":
        assets = request.getfixturevalue("kube_assets")
        with ControlPlane(folder, assets, controller_manager=True, fsync=False) as plane:
            yield plane.kubeconfig
        return
    server = OwnServer(folder / "own", "--controllers", ",".join(["*", *OPTIONAL_CONTROLLERS]))
    server.start()
    try:
        yield server.kubeconfig
    finally:
        server.kill()


@asynccontextmanager
async def cluster(kubeconfig: Path, namespace: str) -> AsyncIterator[Client]:
    """Client of a namespace in which the image of a pod determines its status."""
    client = Client(HttpTransport(load_access([kubeconfig], environ=os.environ)))
    await client.create(NAMESPACES, object_named(namespace))
    await wait_for(client, SERVICE_ACCOUNTS, "default", namespace, until=lambda obj: obj is not None, timeout=TIMEOUT)
    try:
        async with asyncio.TaskGroup() as group:
            kubelet = group.create_task(set_pod_statuses(client, namespace))
            yield client
            kubelet.cancel()
    finally:
        await client.close()


async def set_pod_statuses(client: Client, namespace: str) -> None:
    async for event in Watch(client, PODS, namespace=namespace).events():
        match event:
            case ListPage(found):
                pods = found
            case Changes(changes):
                pods = [pod for type, pod in changes if type != "DELETED"]
            case _:
                continue
        for pod in pods:
            with suppress(NotFound, Conflict):
                await set_status_for_image(client, pod)


async def set_status_for_image(client: Client, pod: Object) -> None:
    image, now = pod["spec"]["containers"][0]["image"], timestamp(datetime.now(UTC))
    if is_deleting(pod):
        await client.delete(PODS, pod, grace_seconds=0)
        return
    if value_at(pod, "status", "phase") != "Pending" or image.startswith("broken"):
        return
    status: Object = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
    }
    if image == "succeeds":
        status = {"phase": "Succeeded"}
    elif image == "fails":
        state = {"terminated": {"exitCode": 3, "finishedAt": now}}
        ended = {"name": "c", "image": "c", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": "Failed", "containerStatuses": [ended]}
    await client.patch(PODS, pod, {"status": status}, subresource="status")


def template(image: str, **spec: Any) -> Object:
    containers = [{"name": "c", "image": image}]
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers, **spec},
    }


def new_object(resource: Resource, namespace: str, image: str, name: str = "x", **spec: Any) -> Object:
    identity = {"apiVersion": resource.api_version, "kind": resource.kind}
    chosen = {"selector": {"matchLabels": {"app": "x"}}} if resource.group == "apps" else {}
    made = template(image, **({"restartPolicy": "Never"} if resource == JOBS else {}))
    metadata = {"name": name, "namespace": namespace}
    return {**identity, "metadata": metadata, "spec": {**chosen, "template": made, **spec}}


async def wait_for_state(
    client: Client, resource: Resource, namespace: str, look: Callable[[Client, str], Awaitable[Any]], expected: Any
) -> Any:
    """Return the first observation that equals `expected`, or the last one on timeout."""
    seen = None
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            async for _ in Watch(client, resource, namespace=namespace).events():
                seen = await look(client, namespace)
                if seen == expected:
                    break
    return seen


# -- Deployments

AVAILABLE = ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
SHORT = ("Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
PAUSED = ("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")


def done(image: str) -> tuple[str, ...]:
    return ("Progressing", "True", "NewReplicaSetAvailable", f'ReplicaSet "{image}" has successfully progressed.')


def moving(image: str) -> tuple[str, ...]:
    return ("Progressing", "True", "ReplicaSetUpdated", f'ReplicaSet "{image}" is progressing.')


def stuck(image: str) -> tuple[str, ...]:
    return ("Progressing", "False", "ProgressDeadlineExceeded", f'ReplicaSet "{image}" has timed out progressing.')


DEPLOYMENT_STEPS: list[tuple[dict[str, Any], str, dict[str, int], set[tuple[str, ...]], str]] = [
    # change, image, resulting sizes, conditions, revision
    ({}, "a", {"a": 4}, {AVAILABLE, done("a")}, "1"),
    ({}, "b", {"a": 0, "b": 4}, {AVAILABLE, done("b")}, "2"),
    ({}, "broken", {"a": 0, "b": 3, "broken": 2}, {AVAILABLE, moving("broken")}, "3"),
    ({"replicas": 9}, "broken", {"a": 0, "b": 7, "broken": 5}, {AVAILABLE, moving("broken")}, "3"),
    ({"paused": True}, "a", {"a": 0, "b": 7, "broken": 5}, {AVAILABLE, PAUSED}, "4"),
    ({"replicas": 6}, "a", {"a": 0, "b": 5, "broken": 3}, {AVAILABLE, PAUSED}, "4"),
    ({"paused": False}, "a", {"a": 6, "b": 0, "broken": 0}, {AVAILABLE, done("a")}, "4"),
    (
        {"progressDeadlineSeconds": 2},
        "broken:2",
        {"a": 5, "b": 0, "broken": 0, "broken:2": 3},
        {AVAILABLE, stuck("broken:2")},
        "5",
    ),
    (
        {"strategy": {"type": "Recreate", "rollingUpdate": None}},
        "c",
        {"a": 0, "b": 0, "broken": 0, "broken:2": 0, "c": 6},
        {AVAILABLE, done("c")},
        "6",
    ),
    (
        {},
        "broken:3",
        {"a": 0, "b": 0, "broken": 0, "broken:2": 0, "c": 0, "broken:3": 6},
        {SHORT, stuck("broken:3")},
        "7",
    ),
    (
        {"replicas": 0},
        "broken:3",
        {"a": 0, "b": 0, "broken": 0, "broken:2": 0, "c": 0, "broken:3": 0},
        {AVAILABLE, done("broken:3")},
        "7",
    ),
]


async def seen_of_deployment(client: Client, namespace: str) -> Any:
    """Sizes of the ReplicaSets by image, conditions and revision."""
    found = await client.get(DEPLOYMENTS, "x", namespace)
    images = {}
    sizes = {}
    for each in await client.list(REPLICA_SETS, namespace):
        images[name_of(each)] = image = each["spec"]["template"]["spec"]["containers"][0]["image"]
        sizes[image] = each["spec"]["replicas"]
    conditions = set()
    for each in value_at(found, "status", "conditions", default=()):
        message = each["message"]
        for name, image in images.items():
            message = message.replace(f'"{name}"', f'"{image}"')
        conditions.add((each["type"], each["status"], each["reason"], message))
    return sizes, conditions, annotations_of(found).get(REVISION)


async def test_deployment_takes_the_same_steps(kubeconfig: Path) -> None:
    async with cluster(kubeconfig, "deployments") as client:
        await client.create(DEPLOYMENTS, new_object(DEPLOYMENTS, "deployments", "a", replicas=4))
        for change, image, sizes, conditions, revision in DEPLOYMENT_STEPS:
            spec = {**change, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
            await client.patch(DEPLOYMENTS, object_named("x", "deployments"), {"spec": spec}, type=PatchType.STRATEGIC)
            expected = sizes, conditions, revision
            found = await wait_for_state(client, DEPLOYMENTS, "deployments", seen_of_deployment, expected)
            assert found == expected


# -- StatefulSets

STEPS: list[tuple[dict[str, Any], str, dict[str, str], dict[str, int], tuple[str, str]]] = [
    # change, image, images of pods, counts, current and update image
    (
        {},
        "a",
        {"x-0": "a", "x-1": "a", "x-2": "a"},
        {"replicas": 3, "readyReplicas": 3, "currentReplicas": 3, "updatedReplicas": 3},
        ("a", "a"),
    ),
    (
        {"updateStrategy": {"rollingUpdate": {"partition": 2}}},
        "b",
        {"x-0": "a", "x-1": "a", "x-2": "b"},
        {"replicas": 3, "readyReplicas": 3, "currentReplicas": 2, "updatedReplicas": 1},
        ("a", "b"),
    ),
    (
        {"updateStrategy": {"rollingUpdate": {"partition": 0}}},
        "b",
        {"x-0": "b", "x-1": "b", "x-2": "b"},
        {"replicas": 3, "readyReplicas": 3, "currentReplicas": 3, "updatedReplicas": 3},
        ("b", "b"),
    ),
    (
        {"replicas": 2},
        "broken",
        {"x-0": "b", "x-1": "broken"},
        {"replicas": 2, "readyReplicas": 1, "currentReplicas": 1, "updatedReplicas": 1},
        ("b", "broken"),
    ),
]


async def seen_of_stateful_set(client: Client, namespace: str) -> Any:
    status = (await client.get(STATEFUL_SETS, "x", namespace)).get("status") or {}
    images = {
        name_of(each): each["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
        for each in await client.list(CONTROLLER_REVISIONS, namespace)
    }
    pods = await client.list(PODS, namespace)
    counts = {key: status.get(key, 0) for key in STEPS[0][3]}
    revisions = tuple(images.get(status.get(key, "")) for key in ("currentRevision", "updateRevision"))
    return {name_of(pod): pod["spec"]["containers"][0]["image"] for pod in pods}, counts, revisions


async def test_stateful_set_takes_the_same_steps(kubeconfig: Path) -> None:
    space = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "data"}, "spec": space}]
    async with cluster(kubeconfig, "statefulsets") as client:
        wanted = new_object(
            STATEFUL_SETS, "statefulsets", "a", replicas=3, serviceName="x", volumeClaimTemplates=claims
        )
        await client.create(STATEFUL_SETS, wanted)
        for change, image, pods, counts, revisions in STEPS:
            spec = {**change, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
            await client.patch(
                STATEFUL_SETS, object_named("x", "statefulsets"), {"spec": spec}, type=PatchType.STRATEGIC
            )
            expected = pods, counts, revisions
            found = await wait_for_state(client, STATEFUL_SETS, "statefulsets", seen_of_stateful_set, expected)
            assert found == expected
        pod = await client.get(PODS, "x-0", "statefulsets")
        known = {key: value for key, value in labels_of(pod).items() if key != "controller-revision-hash"}
        assert known == {
            "app": "x",
            "apps.kubernetes.io/pod-index": "0",
            "statefulset.kubernetes.io/pod-name": "x-0",
        }
        names = sorted(map(name_of, await client.list(PERSISTENT_VOLUME_CLAIMS, "statefulsets")))
        assert names == ["data-x-0", "data-x-1", "data-x-2"]


# -- Jobs

REACHED = "Reached expected number of succeeded pods"
RULE = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}
JOBS_THAT_END: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    # image, spec, counts in the status, last condition with its reason
    "plain": ("succeeds", {"completions": 3, "parallelism": 2}, {"succeeded": 3}, "Complete", "CompletionsReached"),
    "indexed": (
        "succeeds",
        {"completions": 3, "parallelism": 3, "completionMode": "Indexed"},
        {"succeeded": 3, "completedIndexes": "0-2"},
        "Complete",
        "CompletionsReached",
    ),
    "fails": ("fails", {"backoffLimit": 0}, {"failed": 1}, "Failed", "BackoffLimitExceeded"),
    "ruled": ("fails", {"backoffLimit": 3, "podFailurePolicy": RULE}, {"failed": 1}, "Failed", "PodFailurePolicy"),
    "late": ("broken", {"activeDeadlineSeconds": 1}, {"failed": 1}, "Failed", "DeadlineExceeded"),
    "paused": ("broken", {"suspend": True}, {}, "Suspended", "JobSuspended"),
    "indexes": (
        "fails",
        {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 0},
        {"failed": 2, "failedIndexes": "0,1"},
        "Failed",
        "FailedIndexes",
    ),
    "enough": (
        "succeeds",
        {"completions": 3, "completionMode": "Indexed", "successPolicy": {"rules": [{"succeededCount": 1}]}},
        {"succeeded": 1, "completedIndexes": "0"},
        "Complete",
        "SuccessPolicy",
    ),
}


async def seen_of_jobs(client: Client, namespace: str) -> Any:
    keys = ("active", "succeeded", "failed", "completedIndexes", "failedIndexes")
    found = {}
    for job in await client.list(JOBS, namespace):
        status = job.get("status") or {}
        last = (status.get("conditions") or [{"type": "", "reason": ""}])[-1]
        counts = {key: status[key] for key in keys if key in status}
        found[name_of(job)] = counts, last["type"], last["reason"], status.get("uncountedTerminatedPods")
    return found


async def test_jobs_end_alike(kubeconfig: Path) -> None:
    async with cluster(kubeconfig, "jobs") as client:
        for name, (image, spec, *_) in JOBS_THAT_END.items():
            await client.create(JOBS, new_object(JOBS, "jobs", image, name, **spec))
        expected = {name: (counts, type, reason, {}) for name, (_, _, counts, type, reason) in JOBS_THAT_END.items()}
        assert await wait_for_state(client, JOBS, "jobs", seen_of_jobs, expected) == expected
        messages = [each["message"] for each in (await client.get(JOBS, "plain", "jobs"))["status"]["conditions"]]
        assert messages == [REACHED, REACHED]
        (pod,) = [pod for pod in await client.list(PODS, "jobs") if name_of(pod).startswith("ruled-")]
        ruled = (await client.get(JOBS, "ruled", "jobs"))["status"]["conditions"][-1]["message"]
        assert ruled == (
            f"Container c for pod jobs/{name_of(pod)} failed with exit code 3 matching FailJob rule at index 0"
        )
