"""Tests of the volume binder on our API server, and under perturbation."""

import asyncio

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import volume_binder
from tapestry.kube.objects import Object, annotations_of, key_of, name_of, uid_of, value_at
from tapestry.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES

from .conftest import RunControllers
from .objects import wait_for_event, wait_until_gone
from .volumes import new_claim, new_class, new_volume, reserved_for

AN_HOUR = 3600.0


async def wait_for_phase(client: Client, obj: Object, phase: str, timeout: float = 20.0) -> Object:
    resource = PERSISTENT_VOLUME_CLAIMS if "namespace" in obj["metadata"] else PERSISTENT_VOLUMES
    found = await wait_for(
        client,
        resource,
        name_of(obj),
        obj["metadata"].get("namespace"),
        until=lambda each: value_at(each, "status", "phase") == phase,
        timeout=timeout,
    )
    assert found is not None
    return found


async def test_claims_get_matching_volumes(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes", "protection"):
        volumes = [
            new_volume("small"),
            new_volume("large", "5Gi"),
            new_volume("kept", "9Gi", claimRef=reserved_for("kept")),
        ]
        claims = [new_claim("two", size="2Gi"), new_claim("one"), new_claim("kept")]
        claims.append(new_claim("more", size="6Gi"))
        for volume in volumes:
            await client.create(PERSISTENT_VOLUMES, volume)
        for claim in claims:
            await client.create(PERSISTENT_VOLUME_CLAIMS, claim)
        bound = [await wait_for_phase(client, claim, "Bound") for claim in claims[:3]]
        assert [claim["spec"]["volumeName"] for claim in bound] == ["large", "small", "kept"]
        assert bound[0]["status"]["capacity"] == {"storage": "5Gi"}
        await wait_for_phase(client, claims[3], "Pending")
        await client.create(PERSISTENT_VOLUMES, new_volume("late", "7Gi"))
        assert (await wait_for_phase(client, claims[3], "Bound"))["spec"]["volumeName"] == "late"


async def test_deleted_claim_releases_volume(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes", "protection"):
        volume = await client.create(PERSISTENT_VOLUMES, new_volume())
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim(volumeName="v"))
        claim = await wait_for_phase(client, claim, "Bound")
        await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
        volume = await wait_for_phase(client, volume, "Released")
        await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())  # of the same name: the data is not for it
        await client.delete(PERSISTENT_VOLUMES, volume)
        await wait_until_gone(client, PERSISTENT_VOLUMES, "v")
        assert (await client.get(PERSISTENT_VOLUME_CLAIMS, "c", "default"))["status"]["phase"] == "Pending"


async def test_claim_without_volume_is_lost(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes"):
        volume = await client.create(PERSISTENT_VOLUMES, new_volume())
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        await wait_for_phase(client, claim, "Bound")
        volume = await client.get(PERSISTENT_VOLUMES, "v")
        volume = await client.patch(PERSISTENT_VOLUMES, volume, {"metadata": {"finalizers": None}})
        await client.delete(PERSISTENT_VOLUMES, volume)
        await wait_for_phase(client, claim, "Lost")
        await client.create(PERSISTENT_VOLUMES, new_volume())
        await wait_for_phase(client, claim, "Bound")


async def test_many_claims_get_one_volume_each(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes"):
        for number in range(40):
            await client.create(PERSISTENT_VOLUMES, new_volume(f"v{number}"))
        for number in range(40):
            await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim(f"c{number}"))
        async with asyncio.timeout(20):
            for number in range(40):
                await wait_for_phase(client, new_claim(f"c{number}"), "Bound")
        claims = await client.list(PERSISTENT_VOLUME_CLAIMS, "default")
        volumes = {name_of(each): each for each in await client.list(PERSISTENT_VOLUMES)}
        assert len({claim["spec"]["volumeName"] for claim in claims}) == 40
        for claim in claims:
            assert volumes[claim["spec"]["volumeName"]]["spec"]["claimRef"]["uid"] == uid_of(claim)


async def test_new_volumes_are_bound_to_the_largest_claims(client: Client, run_controllers: RunControllers) -> None:
    """Also if several volumes are created before the first is bound, and if a claim disappears."""
    async with run_controllers("volumes"):
        for number in range(1, 21):
            await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim(f"c{number}", size=f"{number}Gi"))
        await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("other", size="20Gi", storageClassName="other"))
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(client.create(PERSISTENT_VOLUMES, new_volume(f"v{number}", "20Gi")))
        await client.delete(PERSISTENT_VOLUME_CLAIMS, new_claim("c1"))
        async with asyncio.timeout(20):
            for number in range(2, 21):
                await wait_for_phase(client, new_claim(f"c{number}"), "Bound")
        bound = [each for each in await client.list(PERSISTENT_VOLUME_CLAIMS) if "volumeName" in each["spec"]]
        assert len({each["spec"]["volumeName"] for each in bound}) == len(bound)


async def test_recycled_volume_fails_with_event(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes"):
        await client.create(PERSISTENT_VOLUMES, new_volume(persistentVolumeReclaimPolicy="Recycle"))
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim())
        claim = await wait_for_phase(client, claim, "Bound")
        await client.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"finalizers": None}})
        await client.delete(PERSISTENT_VOLUME_CLAIMS, new_claim())
        volume = await wait_for_phase(client, new_volume(), "Failed")
        assert volume["status"]["message"] == "No recycler plugin found for the volume!"
        assert (await wait_for_event(client, "VolumeFailedRecycle"))["involvedObject"]["name"] == "v"


async def test_class_is_provisioned_and_defaulted(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("volumes"):
        claim = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim(storageClassName=None))
        mark = {"storageclass.kubernetes.io/is-default-class": "true"}
        default = new_class("now", "Immediate")
        await client.create(STORAGE_CLASSES, {**default, "metadata": {"name": "now", "annotations": mark}})
        marked = await wait_for(
            client,
            PERSISTENT_VOLUME_CLAIMS,
            name_of(claim),
            "default",
            until=lambda obj: annotations_of(obj or claim).get("volume.kubernetes.io/storage-provisioner") == "maker",
            timeout=20,
        )
        assert marked is not None
        assert marked["spec"]["storageClassName"] == "now"


# -- perturbation


async def claims_before_volumes(client: Client) -> None:
    labels = {"disk": "fast"}
    await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("a", selector={"matchLabels": labels}))
    await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("b", size="2Gi"))
    for volume in (new_volume("w", "2Gi"), new_volume("v", metadata={"labels": labels})):
        await client.create(PERSISTENT_VOLUMES, {**volume, "status": {"phase": "Pending"}})
    for name in ("a", "b"):
        await wait_for_phase(client, new_claim(name), "Bound", AN_HOUR)


async def binding_and_release(client: Client) -> None:
    await client.create(PERSISTENT_VOLUMES, {**new_volume("v"), "status": {"phase": "Pending"}})
    await client.create(PERSISTENT_VOLUMES, {**new_volume("w", "2Gi"), "status": {"phase": "Pending"}})
    for name in ("v", "w"):
        await wait_for_phase(client, new_volume(name), "Available", AN_HOUR)
    first = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("a"))
    await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("b", size="2Gi"))
    for name in ("a", "b"):
        await wait_for_phase(client, new_claim(name), "Bound", AN_HOUR)
    claims = {key_of(each): each for each in await client.list(PERSISTENT_VOLUME_CLAIMS)}
    for volume in await client.list(PERSISTENT_VOLUMES):
        reference = volume["spec"]["claimRef"]
        claim = claims[f"{reference['namespace']}/{reference['name']}"]
        assert claim["spec"]["volumeName"] == name_of(volume)
    first = await client.get(PERSISTENT_VOLUME_CLAIMS, name_of(first), "default")
    await client.delete(PERSISTENT_VOLUME_CLAIMS, first)
    await wait_for_phase(client, new_volume(first["spec"]["volumeName"]), "Released", AN_HOUR)


def check(scenario: Scenario) -> None:
    report = perturb(scenario)
    assert report.calls > 0
    assert not report.failures, report


def is_no_event(call: str) -> bool:
    return "/events" not in call


def test_perturbed_claims_are_bound_once() -> None:
    served = [PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, EVENTS]
    for world in (binding_and_release, claims_before_volumes):
        check(Scenario("volumes", served, volume_binder.install, world, counts=is_no_event))
