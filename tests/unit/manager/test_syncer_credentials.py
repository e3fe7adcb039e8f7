"""Credentials of syncers in another cluster, on virtual time."""

import base64
import json
from typing import Any

from tapestry.apis import keys
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.tls import Pem, ServerVerification
from tapestry.controller.testing import InProcessApi
from tapestry.kube.objects import Object, annotations_of, object_named
from tapestry.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, SECRETS, SERVICE_ACCOUNTS
from tapestry.manager.app import SyncerCluster
from tapestry.manager.config import BindingsConfig
from tapestry.manager.syncer_credentials import RENEWAL_AGE

World = Any  # of conftest.py
SYSTEM, NAME = keys.SYSTEM_NAMESPACE, "tapestry-syncer-east"
CONFIG = BindingsConfig(deploy_kubeconfig="there")
VIRTUAL = Access("https://virtual.example", verification=ServerVerification(Pem("ca", b"authority")))


def management(world: World) -> tuple[Client, SyncerCluster]:
    api = InProcessApi([DEPLOYMENTS, DISRUPTION_BUDGETS, SECRETS], now=world.clock.now)
    return Client(api.connect()), SyncerCluster(api.connect(), api.connect(), VIRTUAL)


def decoded(secret: Object, key: str) -> bytes:
    return base64.b64decode(secret["data"][key])


async def test_secret_has_the_address_and_a_token(world: World) -> None:
    there, cluster = management(world)
    async with world.running(CONFIG, cluster):
        await world.join("east")
        secret = await there.get(SECRETS, NAME, SYSTEM)
        found = json.loads(decoded(secret, "kubeconfig"))
        authority = base64.b64encode(b"authority").decode()
        assert found["clusters"][0]["cluster"] == {
            "server": "https://virtual.example",
            "certificate-authority-data": authority,
        }
        assert found["users"][0]["user"] == {"tokenFile": "token"}
        assert decoded(secret, "token")


async def test_token_is_renewed_before_expiry_and_for_new_account(world: World) -> None:
    there, cluster = management(world)
    async with world.running(CONFIG, cluster):
        await world.join("east")
        first = await there.get(SECRETS, NAME, SYSTEM)
        await world.wait(RENEWAL_AGE.total_seconds() / 2)
        assert await there.get(SECRETS, NAME, SYSTEM) == first
        await world.wait(RENEWAL_AGE.total_seconds() / 2 + 400)
        second = await there.get(SECRETS, NAME, SYSTEM)
        assert annotations_of(second)[keys.TOKENS_RENEWAL] > annotations_of(first)[keys.TOKENS_RENEWAL]
        await world.client.delete(SERVICE_ACCOUNTS, object_named(NAME, SYSTEM))
        await world.wait(400)
        third = await there.get(SECRETS, NAME, SYSTEM)
        assert annotations_of(third)[keys.VIRTUAL_UID] != annotations_of(second)[keys.VIRTUAL_UID]


async def test_foreign_secret_is_not_changed(world: World) -> None:
    there, cluster = management(world)
    foreign = await there.create(SECRETS, object_named(NAME, SYSTEM))
    async with world.running(CONFIG, cluster):
        await world.add_cluster("https://east.example")
        await world.add_secret("east", {"kubeconfig": world.kubeconfig("https://east.example")})
        await world.add_binding("east")
        await world.reaches("east", "Failed", "SyncerFailed")
        assert "does not belong to this binding" in await world.message("east")
        assert await there.get(SECRETS, NAME, SYSTEM) == foreign
