"""Perturbation tests of quota, disruption budgets and volume protection."""

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb, specimen
from tapestry.controlplane import disruption, quota, volume_protection
from tapestry.kube.objects import Object, owner_reference, value_at, with_value
from tapestry.kube.resources import (
    CONFIGMAPS,
    CRDS,
    DISRUPTION_BUDGETS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_QUOTAS,
    Resource,
)

from .objects import new_map, new_pod, perturbed_metadata

AN_HOUR = 3600.0
STATEFUL_SETS = Resource("apps", "v1", "StatefulSet", "statefulsets")


def install_quota(manager: Manager) -> None:
    quota.install(manager, perturbed_metadata(manager))


def install_disruption(manager: Manager) -> None:
    disruption.install(manager, perturbed_metadata(manager))


def install_protection(manager: Manager) -> None:
    volume_protection.install(manager, perturbed_metadata(manager))


async def wait_for_value(client: Client, resource: Resource, name: str, value: object, *path: str) -> None:
    await wait_for(client, resource, name, "default", until=lambda obj: value_at(obj, *path) == value, timeout=AN_HOUR)


async def changing_objects(client: Client) -> None:
    hard = {"pods": "5", "requests.cpu": "4", "count/configmaps": "3"}
    metadata = {"name": "q", "namespace": "default"}
    await client.create(RESOURCE_QUOTAS, {"metadata": metadata, "spec": {"hard": hard}})
    first = await client.create(CONFIGMAPS, new_map("a"))
    await client.create(CONFIGMAPS, new_map("b"))
    pod = new_pod("p")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m"}}
    await client.create(PODS, pod)
    used = {"pods": "1", "requests.cpu": "500m", "count/configmaps": "2"}
    await wait_for_value(client, RESOURCE_QUOTAS, "q", used, "status", "used")
    await client.delete(CONFIGMAPS, first)
    await wait_for_value(client, RESOURCE_QUOTAS, "q", {**used, "count/configmaps": "1"}, "status", "used")


async def growing_set(client: Client) -> None:
    labels = {"app": "web"}
    owner = await client.create(
        STATEFUL_SETS, with_value(specimen(STATEFUL_SETS, "s", "default"), ("spec", "replicas"), 2)
    )
    spec = {"selector": {"matchLabels": labels}, "maxUnavailable": "50%"}
    await client.create(DISRUPTION_BUDGETS, {"metadata": {"name": "b", "namespace": "default"}, "spec": spec})
    for name in ("s-0", "s-1"):
        pod: Object = new_pod(name)
        pod["metadata"] |= {"labels": labels, "ownerReferences": [owner_reference(owner)]}
        created = await client.create(PODS, pod)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await client.patch(PODS, created, ready, subresource="status")
    await wait_for_value(client, DISRUPTION_BUDGETS, "b", 1, "status", "disruptionsAllowed")
    await client.patch(STATEFUL_SETS, owner, {"spec": {"replicas": 4}})
    await wait_for_value(client, DISRUPTION_BUDGETS, "b", 4, "status", "expectedPods")


async def claim_in_use(client: Client) -> None:
    finalizers = ["kubernetes.io/pvc-protection"]
    claim = await client.create(
        PERSISTENT_VOLUME_CLAIMS, specimen(PERSISTENT_VOLUME_CLAIMS, "v", "default", finalizers=finalizers)
    )
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]
    pod = await client.create(PODS, new_pod("p", nodeName="n", volumes=volumes))
    await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
    await client.delete(PODS, pod, grace_seconds=0)
    await wait_for(client, PERSISTENT_VOLUME_CLAIMS, "v", "default", until=lambda obj: obj is None, timeout=AN_HOUR)


def check(scenario: Scenario) -> None:
    report = perturb(scenario)
    assert report.calls > 0
    assert not report.failures, report


def test_perturbed_quota_is_counted() -> None:
    check(Scenario("quota", [RESOURCE_QUOTAS, CONFIGMAPS, PODS, CRDS], install_quota, changing_objects))


def test_perturbed_budget_is_counted() -> None:
    check(Scenario("disruption", [DISRUPTION_BUDGETS, STATEFUL_SETS, PODS, CRDS], install_disruption, growing_set))


def test_perturbed_claim_is_released() -> None:
    check(Scenario("protection", [PERSISTENT_VOLUME_CLAIMS, PODS, CRDS], install_protection, claim_in_use))
