"""Tests of the claims of ephemeral volumes."""

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import ephemeral_volumes
from tapestry.kube.objects import Object, uid_of
from tapestry.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS

from .conftest import RunControllers
from .objects import new_pod, wait_for_event, wait_until_gone
from .volumes import new_claim

AN_HOUR = 3600.0


def new_pod_with_scratch() -> Object:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": new_claim()["spec"]}
    return new_pod("p", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])


async def wait_for_claim(client: Client, timeout: float = 20.0) -> Object:
    claim = await wait_for(
        client, PERSISTENT_VOLUME_CLAIMS, "p-scratch", "default", until=lambda obj: obj is not None, timeout=timeout
    )
    assert claim is not None
    return claim


async def test_claim_lives_with_its_pod(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("ephemeralvolumes", "garbage", "protection", "accounts"):
        pod = await client.create(PODS, new_pod_with_scratch())
        claim = await wait_for_claim(client)
        assert claim["metadata"]["labels"] == {"a": "b"}
        assert claim["metadata"]["ownerReferences"][0]["uid"] == uid_of(pod)
        await client.delete(PODS, pod, grace_seconds=0)
        await wait_until_gone(client, PERSISTENT_VOLUME_CLAIMS, "p-scratch", "default")


async def test_foreign_claim_is_reported_and_unchanged(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("ephemeralvolumes", "accounts"):
        foreign = await client.create(PERSISTENT_VOLUME_CLAIMS, new_claim("p-scratch"))
        await client.create(PODS, new_pod_with_scratch())
        event = await wait_for_event(client, "FailedBinding")
        assert "pod is not owner" in event["message"]
        assert await client.get(PERSISTENT_VOLUME_CLAIMS, "p-scratch", "default") == foreign


async def created_claim(client: Client) -> None:
    await client.create(PODS, new_pod_with_scratch())
    await wait_for_claim(client, AN_HOUR)


def test_perturbed_claim_is_created() -> None:
    served = [PODS, PERSISTENT_VOLUME_CLAIMS, EVENTS]
    scenario = Scenario(
        "ephemeral", served, ephemeral_volumes.install, created_claim, counts=lambda call: "/events" not in call
    )
    report = perturb(scenario)
    assert report.calls > 0
    assert not report.failures, report
