"""Protection: what is in use stays until it is not."""

from typing import Any

from tapestry.client.client import Client
from tapestry.kube.objects import Object, is_deleting
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

from .conftest import Beside
from .objects import a_pod, wait_until_gone


def a_claim(name: str = "v") -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def a_volume() -> Object:
    source = {"hostPath": {"path": "/tmp"}}
    return {
        "metadata": {"name": "v"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source},
    }


def a_pod_with_a_claim(**spec: Any) -> Object:
    return a_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}], **spec)


async def test_a_claim_that_nobody_uses_goes_at_once(client: Client, beside: Beside) -> None:
    async with beside("protection"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, a_claim())
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_a_claim_outlasts_the_pod_that_mounts_it(client: Client, beside: Beside) -> None:
    async with beside("protection", "accounts"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, a_claim())
        other = await client.create(PERSISTENT_VOLUME_CLAIMS, a_claim("w"))
        pod = await client.create(PODS, a_pod_with_a_claim(nodeName="n"))
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await client.delete(PERSISTENT_VOLUME_CLAIMS, other)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "w", "default")  # by then both were looked at
        assert is_deleting(await client.get(PERSISTENT_VOLUME_CLAIMS, "v", "default"))
        await client.delete(PODS, pod, grace_seconds=0)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_a_pod_that_runs_nowhere_holds_no_claim(client: Client, beside: Beside) -> None:
    async with beside("protection", "accounts"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, a_claim())
        await client.create(PODS, a_pod_with_a_claim())
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "v", "default")


async def test_a_volume_outlasts_the_claim_that_is_bound_to_it(client: Client, beside: Beside) -> None:
    async with beside("protection"):
        volume = await client.create(PERSISTENT_VOLUMES, a_volume())
        volume = await client.patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": "Bound"}}, subresource="status")
        volume = await client.delete(PERSISTENT_VOLUMES, volume)
        assert is_deleting(volume)
        await client.patch(PERSISTENT_VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
        await wait_until_gone(client, PERSISTENT_VOLUMES, "v")
