"""Acceptance of translated twins and sanitized statuses by a real API server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.client.client import Client
from tapestry.client.options import PatchType
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, labels_of
from tapestry.kube.resources import NAMESPACES, PODS, RESOURCE_QUOTAS
from tapestry.manager.joining import PRIORITY_CLASSES, priority_class
from tapestry.syncer.cache_transforms import twin_view, virtual_pod
from tapestry.syncer.translate.pod_status import sanitized_pod_status, virtual_status_patch
from tapestry.syncer.translate.pods import desired_twin, ephemeral_patch, new_twin, resize_patch, twin_patch
from tapestry.syncer.views import VirtualPod

from ..conftest import Kubectl
from ..unit.syncer.translate.hostile_statuses import FAMILIES, of_other_types
from .bound_clusters import give, new_object

GOLDEN = Path(__file__).parents[1] / "golden" / "pods"
TWINS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(GOLDEN.glob("*.output.yaml"))}
AT_ONCE = 8
STRANGE = dict(
    chain(islice(of_other_types(), 0, None, 5), *(family() for family in FAMILIES if family != of_other_types))
)
"""All families of malformed statuses; one in five of the largest family."""
TWIN: Object = {"metadata": {"name": "twin", "namespace": "leased", "uid": "0c1d"}}

T = TypeVar("T")


async def for_each(items: Iterable[T], do: Callable[[T], Awaitable[str | None]]) -> list[str]:
    """Run `do` for all items with limited concurrency and return the complaints."""
    waiting = iter(items)

    async def work() -> list[str | None]:
        return [await do(item) for item in waiting]

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(AT_ONCE)]
    return [complaint for worker in workers for complaint in worker.result() if complaint is not None]


async def test_every_golden_twin_is_accepted(client: Client, record_property: Callable[[str, object], None]) -> None:
    await give(client, NAMESPACES, new_object("Namespace", {"name": "leased"}))
    await give(client, PRIORITY_CLASSES, priority_class())
    await give(client, PRIORITY_CLASSES, {**priority_class(), "metadata": {"name": "scavengers"}})

    async def complaint(name: str) -> str | None:
        try:
            await client.create(PODS, TWINS[name], dry_run=True)
        except ApiError as error:
            return f"{name}: {error}"
        return None

    assert await for_each(TWINS, complaint) == []
    assert len(TWINS) >= 60
    record_property("figure", f"golden twins: {len(TWINS)}, all accepted by a real API server")


async def test_rule_9_hostile_status_is_accepted_and_written_once(
    client: Client, namespace: str, kubectl: Kubectl, record_property: Callable[[str, object], None]
) -> None:
    containers = {"initContainers": ["init", "i0"], "containers": ["app", "c0", "c1"]}
    spec = {field: [{"name": name, "image": "i"} for name in names] for field, names in containers.items()}

    async def complaint(numbered: tuple[int, tuple[str, Any]]) -> str | None:
        number, (name, status) = numbered
        pod = new_object("Pod", {"name": f"p{number}", "namespace": namespace}, spec=spec)
        seen = await client.create(PODS, pod)
        wanted = sanitized_pod_status(status)
        try:
            for _ in range(2):
                patch = virtual_status_patch(as_cached(seen), TWIN, wanted, datetime.now(UTC))
                if patch is None:
                    return None
                seen = await client.patch(PODS, seen, patch, type=PatchType.STRATEGIC, subresource="status")
        except ApiError as error:
            return f"{name}: {error}"
        again = virtual_status_patch(as_cached(seen), TWIN, wanted, datetime.now(UTC))
        return f"{name}: it would be written for ever" if again is not None else f"{name}: it took two writes"

    assert await for_each(enumerate(STRANGE.items()), complaint) == []
    assert len(STRANGE) >= 100
    record_property("figure", f"hostile statuses: {len(STRANGE)}, all taken by a real API server in one write each")
    kubectl("delete", "pods", "--all", "--namespace", namespace, "--force", "--grace-period=0", "--wait=false")


# -- lifecycle of a pod

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
RUNNING: Object = {
    "phase": "Running",
    "startTime": EARLY,
    "hostIP": "10.1.0.1",
    "hostIPs": [{"ip": "10.1.0.1"}],
    "podIP": "10.0.0.1",
    "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}],
    "containerStatuses": [{"name": "app", "ready": True, "image": "i", "state": {"running": {"startedAt": EARLY}}}],
}


def condition(type: str, status: str = "True", since: str = EARLY, **fields: str) -> Object:
    return {"type": type, "status": status, "lastTransitionTime": since, **fields}


LIFE: dict[str, Object] = {
    "made": {"phase": "Pending"},
    "without room": {
        "phase": "Pending",
        "conditions": [condition("PodScheduled", "False", reason="Unschedulable", message="m")],
    },
    "placed": {"phase": "Pending", "conditions": [condition("PodScheduled")], "startTime": EARLY},
    "not ready": {**RUNNING, "conditions": [condition("Ready", "False", reason="ContainersNotReady", message="m")]},
    "ready": {**RUNNING, "conditions": [condition("Ready", since=LATE)]},
    "resizing": {**RUNNING, "conditions": [condition("Ready", since=LATE), condition("PodResizeInProgress")]},
    "resized": {**RUNNING, "conditions": [condition("Ready", since=LATE)], "message": "m"},
    "with one address less": {**RUNNING, "podIPs": [{"ip": "10.0.0.1"}]},
    "with another address": {**RUNNING, "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]},
    "preempted": {
        **RUNNING,
        "conditions": [condition("DisruptionTarget", reason="PreemptionByScheduler", message="m")],
    },
    "without addresses": {"phase": "Running", "containerStatuses": RUNNING["containerStatuses"]},
    "without anything": {"phase": "Running"},
    "ended": {"phase": "Failed", "reason": "Evicted", "message": "m"},
}


async def test_each_status_change_of_a_pod_is_one_write(client: Client, namespace: str) -> None:
    spec = {"containers": [{"name": "app", "image": "i"}]}
    pod = await client.create(PODS, new_object("Pod", {"name": "web", "namespace": namespace}, spec=spec))
    for name, status in LIFE.items():
        patch = virtual_status_patch(as_cached(pod), TWIN, sanitized_pod_status(status), datetime.now(UTC))
        assert patch is not None, name
        pod = await client.patch(PODS, pod, patch, type=PatchType.STRATEGIC, subresource="status")
        assert virtual_status_patch(as_cached(pod), TWIN, sanitized_pod_status(status), datetime.now(UTC)) is None, name
        assert as_cached(pod).object["status"]["phase"] == status["phase"], name


def as_cached(pod: Object) -> VirtualPod:
    return virtual_pod({**pod, "spec": {"nodeName": "vnode-east-n1", **pod["spec"]}})


# -- changes of a twin


def new_binding(namespace: str) -> Binding:
    spec = {"clusterID": "east", "mountNamespace": namespace, "secretRef": {"name": "s", "namespace": "t"}}
    return binding_of({"metadata": {"name": "east", "uid": "5e1f"}, "spec": spec}, "a-virtual-cluster")


async def test_quota_accepts_a_twin_without_requests_and_qos_stays(client: Client, namespace: str) -> None:
    await give(client, PRIORITY_CLASSES, priority_class())
    hard = {"requests.cpu": "1", "requests.memory": "1Gi"}
    await client.create(
        RESOURCE_QUOTAS, {**new_object("ResourceQuota", {"name": "q", "namespace": namespace}), "spec": {"hard": hard}}
    )
    for name, resources, qos in (
        ("none", {}, "BestEffort"),
        ("some", {"requests": {"memory": "1Mi"}}, "Burstable"),
        ("limited", {"limits": {"cpu": "10m", "memory": "1Mi"}}, "Guaranteed"),
    ):
        pod = {
            "metadata": {"name": name, "namespace": "team-a", "uid": name},
            "spec": {
                "nodeName": "vnode-east-n1",
                "initContainers": [{"name": "init", "image": "i", "resources": resources}],
                "containers": [{"name": "app", "image": "i", "resources": resources}],
            },
        }
        made = await client.create(PODS, new_twin(pod, new_binding(namespace), "n1"))
        assert made["status"]["qosClass"] == qos
        seen, wanted = twin_view(made).object, desired_twin(pod, new_binding(namespace), "n1")
        assert (resize_patch(seen, wanted), twin_patch(seen, wanted)) == (None, None)


async def test_twin_follows_every_allowed_change_of_its_pod(client: Client, namespace: str) -> None:
    await give(client, PRIORITY_CLASSES, priority_class())
    binding = new_binding(namespace)
    container = {"name": "app", "image": "i:1", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
    before = {
        "metadata": {"name": "web", "namespace": "team-a", "uid": "u", "labels": {"app": "web", "old": "1"}},
        "spec": {"nodeName": "vnode-east-n1", "containers": [container]},
    }
    more = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    after = {
        "metadata": {**before["metadata"], "labels": {"app": "shop"}, "annotations": {"note": "new"}},
        "spec": {
            **before["spec"],
            "activeDeadlineSeconds": 600,
            "containers": [{**container, "image": "i:2", "resources": more}],
            "ephemeralContainers": [{"name": "debug", "image": "busybox", "targetContainerName": "app"}],
            "tolerations": [{"key": "late", "operator": "Exists"}],
        },
    }
    seen = twin_view(await client.create(PODS, new_twin(before, binding, "n1"))).object
    wanted = desired_twin(after, binding, "n1")
    for patch, subresource in (
        (ephemeral_patch(seen, after, binding), "ephemeralcontainers"),
        (resize_patch(seen, wanted), "resize"),
        (twin_patch(seen, wanted), None),
    ):
        assert patch is not None
        answer = await client.patch(PODS, seen, patch, type=PatchType.STRATEGIC, subresource=subresource)
        seen = {**seen, "metadata": answer["metadata"]}
    live = await client.get(PODS, seen["metadata"]["name"], namespace)
    assert labels_of(live)["app"] == "shop"
    assert "old" not in labels_of(live)
    assert live["spec"]["activeDeadlineSeconds"] == 600
    assert live["spec"]["containers"][0]["image"] == "i:2"
    assert live["spec"]["containers"][0]["resources"] == {**more, "requests": {"cpu": "2", "memory": "0"}}
    assert not any(each["key"] == "late" for each in live["spec"]["tolerations"])
    assert [each["name"] for each in live["spec"]["ephemeralContainers"]] == ["debug"]
    seen = twin_view(live).object
    assert (ephemeral_patch(seen, after, binding), resize_patch(seen, wanted), twin_patch(seen, wanted)) == (None,) * 3
