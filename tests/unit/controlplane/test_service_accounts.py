"""Tests of the default ServiceAccount and the root CA ConfigMap."""

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS

from .conftest import AUTHORITY, RunControllers
from .objects import new_namespace, new_pod


def exists(obj: Object | None) -> bool:
    return obj is not None


@pytest.mark.parametrize("namespace", ["default", "kube-system", "x"])
async def test_every_namespace_gets_account_and_ca(
    client: Client, run_controllers: RunControllers, namespace: str
) -> None:
    async with run_controllers("accounts"):
        if namespace == "x":
            await client.create(NAMESPACES, new_namespace("x"))
        assert await wait_for(client, SERVICE_ACCOUNTS, "default", namespace, until=exists, timeout=10)
        root = await wait_for(client, CONFIGMAPS, "kube-root-ca.crt", namespace, until=exists, timeout=10)
        assert value_at(root, "data", "ca.crt") == AUTHORITY


async def test_deleted_or_changed_objects_are_restored(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("accounts"):
        account = await wait_for(client, SERVICE_ACCOUNTS, "default", "default", until=exists, timeout=10)
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
        root = await wait_for(client, CONFIGMAPS, "kube-root-ca.crt", "default", until=exists, timeout=10)
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


async def test_pod_in_new_namespace_waits_for_account(client: Client, run_controllers: RunControllers) -> None:
    async with run_controllers("accounts"):
        await client.create(NAMESPACES, new_namespace("x"))
        pod = await client.create(PODS, new_pod("p", "x"))
        assert pod["spec"]["serviceAccountName"] == "default"
        assert pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]


async def test_pod_of_missing_account_is_rejected(client: Client) -> None:
    with pytest.raises(Forbidden, match='serviceaccount "robot" not found'):
        await client.create(PODS, new_pod("p", serviceAccountName="robot"))
