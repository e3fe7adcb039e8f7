"""Approval of serving certificates: only for the account, the names and the addresses of a binding's syncer."""

import asyncio
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tapestry.apis.serving_certificates import POD_NAME, POD_UID, service_names, signing_request
from tapestry.controller.testing import specimen
from tapestry.kube.objects import Object, uid_of, value_at
from tapestry.kube.resources import PODS, SERVICES, SIGNING_REQUESTS
from tapestry.manager.config import BindingsConfig, SyncerSettings

from .conftest import SYSTEM, World

SYNCER = "tapestry-syncer-east"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{SYNCER}"
KEY = ec.generate_private_key(ec.SECP256R1())
WITHOUT_SERVICE = BindingsConfig(syncer=SyncerSettings(kubelet_service=False))


async def service_of(world: World) -> Object:
    """Return the Service of a new binding's syncer."""
    await world.join("east")
    await world.reaches("east", "Ready")
    return await world.client.get(SERVICES, SYNCER, SYSTEM)


async def add_pod(world: World) -> str:
    """Create the pod of a syncer, and return its UID."""
    pod = await world.client.create(PODS, specimen(PODS, "syncer-1", SYSTEM))
    await world.client.patch(PODS, pod, {"status": {"podIP": "10.0.0.5"}}, subresource="status")
    return uid_of(pod)


def claims(pod_uid: str, pod: str = "syncer-1") -> Object:
    return {POD_NAME: [pod], POD_UID: [pod_uid]}


async def request(world: World, names: frozenset[str], **spec: Any) -> str | None:
    """Create a request, and return its condition after a minute."""
    made = signing_request("r", SYNCER, names, KEY)
    await world.api.insert_unvalidated(
        SIGNING_REQUESTS, {**made, "spec": {**made["spec"], "username": ACCOUNT, **spec}}
    )
    await asyncio.sleep(60)
    return value_at(await world.client.get(SIGNING_REQUESTS, "r"), "status", "conditions", 0, "type")


async def test_request_for_the_service_is_approved(world: World) -> None:
    async with world.running():
        names = service_names(await service_of(world))
        assert len(names) == 2
        assert await request(world, names) == "Approved"
        assert "CertificateNotApproved" not in await world.reasons()


@pytest.mark.parametrize("change", ["other address", "further name", "pod", "client"])
async def test_other_names_and_usages_are_reported(world: World, change: str) -> None:
    async with world.running():
        names, uid = service_names(await service_of(world)), await add_pod(world)
        usages = ["digital signature", "client auth" if change == "client" else "server auth"]
        match change:
            case "other address":
                names = frozenset({"192.0.2.1", f"{SYNCER}.{SYSTEM}.svc"})
            case "further name":
                names |= {"kubernetes.default.svc"}
            case "pod":  # although there is a Service
                names = frozenset({"10.0.0.5"})
        assert await request(world, names, extra=claims(uid), usages=usages) is None
        assert "CertificateNotApproved" in await world.reasons()


@pytest.mark.parametrize(
    "user",
    [
        f"system:serviceaccount:{SYSTEM}:tapestry-syncer-west",
        f"system:serviceaccount:other:{SYNCER}",
        f"system:serviceaccount:{SYSTEM}:tapestry-manager",
        "kubernetes-admin",
        "system:node:n1",
        "",
    ],
)
async def test_requests_of_others_are_left_alone(world: World, user: str) -> None:
    async with world.running():
        names = service_names(await service_of(world))
        assert await request(world, names, username=user) is None
        assert "CertificateNotApproved" not in await world.reasons()


async def test_other_signers_are_left_alone(world: World) -> None:
    async with world.running():
        names = service_names(await service_of(world))
        assert await request(world, names, signerName="example.com/signer") is None


@pytest.mark.parametrize("change", ["", "another UID", "no pod", "no claims", "other address"])
async def test_without_service_the_requesting_pod_is_certified(world: World, change: str) -> None:
    async with world.running(WITHOUT_SERVICE):
        await world.join("east")
        await world.reaches("east", "Ready")
        uid = await add_pod(world)
        extra = claims("u2" if change == "another UID" else uid, "none" if change == "no pod" else "syncer-1")
        names = frozenset({"10.0.0.6" if change == "other address" else "10.0.0.5"})
        found = await request(world, names, extra={} if change == "no claims" else extra)
        assert found == (None if change else "Approved")


async def test_service_is_deleted_when_not_needed(world: World) -> None:
    async with world.running():
        assert uid_of(await service_of(world))
    async with world.running(WITHOUT_SERVICE):
        await world.wait(600)
        assert await world.client.find(SERVICES, SYNCER, SYSTEM) is None
