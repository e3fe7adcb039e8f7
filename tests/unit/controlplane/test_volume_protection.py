"""Tests of volume protection."""

from typing import Any

from tapestry.client.client import Client
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

from .conftest import RunControllers
from .objects import new_pod, wait_until_gone


def new_claim(name: str = "v") -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def new_volume() -> Object:
    source = {"hostPath": {"path": "/tmp"}}
    return {
        "metadata": {"name": "v"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source},
    }


def new_pod_with_a_claim(**spec: Any) -> Object:
    return new_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}], **spec)


async def test_unused_claim_is_deleted_at_once(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("protection"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_claim_is_deleted_after_its_pod(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("protection", "accounts"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        other = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("w"))
        pod = await client.create(PODS, new_pod_with_a_claim(nodeName="n"))
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await client.delete(PERSISTENT_VOLUME_CLAIMS, other)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "w", "default")  # by then both were reconciled
        assert is_deleting(await client.get(PERSISTENT_VOLUME_CLAIMS, "v", "default"))
        await client.delete(PODS, pod, grace_seconds=0)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_unscheduled_pod_does_not_protect_claim(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("protection", "accounts"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await client.create(PODS, new_pod_with_a_claim())
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_bound_volume_is_deleted_after_release(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("protection"):
        volume = await client.create(PERSISTENT_VOLUMES, new_volume())
        volume = await client.patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": "Bound"}}, subresource="status")
        volume = await client.delete(PERSISTENT_VOLUMES, volume)
        assert is_deleting(volume)
        await client.patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
        await wait_until_gone(client, PERSISTENT_VOLUMES, "v")
