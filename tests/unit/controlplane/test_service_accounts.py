"""Accounts: a pod can run in every namespace, from the first moment on."""

import pytest

from tapestry.client.client import Client
from tapestry.client.waiting import wait_for
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS

from .conftest import AUTHORITY, Beside
from .objects import a_namespace, a_pod


def is_there(obj: Object | None) -> bool:
    return obj is not None


@pytest.mark.parametrize("namespace", ["default", "kube-system", "x"])
async def test_every_namespace_has_an_account_and_the_authority(client: Client, beside: Beside, namespace: str) -> None:
    async with beside("accounts"):
        if namespace == "x":
            await client.create(NAMESPACES, a_namespace("x"))
        assert await wait_for(client, SERVICE_ACCOUNTS, "default", namespace, until=is_there, timeout=10)
        root = await wait_for(client, CONFIGMAPS, "kube-root-ca.crt", namespace, until=is_there, timeout=10)
        assert value_at(root, "data", "ca.crt") == AUTHORITY


async def test_what_somebody_takes_away_or_changes_comes_back(client: Client, beside: Beside) -> None:
    async with beside("accounts"):
        account = await wait_for(client, SERVICE_ACCOUNTS, "default", "default", until=is_there, timeout=10)
        assert account is not None
        await client.delete(SERVICE_ACCOUNTS, account)
        uid = account["metadata"]["uid"]
        assert await wait_for(
            client,
            SERVICE_ACCOUNTS,
            "default",
            "default",
            until=lambda obj: obj is not None and obj["metadata"]["uid"] != uid,
            timeout=10,
        )
        root = await wait_for(client, CONFIGMAPS, "kube-root-ca.crt", "default", until=is_there, timeout=10)
        assert root is not None
        await client.patch(CONFIGMAPS, root, {"data": {"ca.crt": "another"}})
        assert await wait_for(
            client,
            CONFIGMAPS,
            "kube-root-ca.crt",
            "default",
            until=lambda obj: value_at(obj, "data", "ca.crt") == AUTHORITY,
            timeout=10,
        )


async def test_a_pod_in_a_namespace_that_just_came_waits_for_its_account(client: Client, beside: Beside) -> None:
    async with beside("accounts"):
        await client.create(NAMESPACES, a_namespace("x"))
        pod = await client.create(PODS, a_pod("p", "x"))
        assert pod["spec"]["serviceAccountName"] == "default"
        assert pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]


async def test_a_pod_of_an_account_that_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(Forbidden, match='serviceaccount "robot" not found'):
        await client.create(PODS, a_pod("p", serviceAccountName="robot"))
