"""ServiceAccount admission."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.app import run_apiserver
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.kube.objects import Object

from ..conftest import ServerClient

CORE = "/api/v1/namespaces/default"
PODS, ACCOUNTS = f"{CORE}/pods", f"{CORE}/serviceaccounts"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
async def accounts(tmp_path: Path) -> AsyncIterator[ServerClient]:
    """A server that sets the service accounts of pods."""
    config = ApiServerConfig(backend="memory", secure_address="", file_rootpath=str(tmp_path))
    async with run_apiserver(config) as running:
        yield ServerClient(running.server, running.account_tokens)


def pod_body(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


async def test_pod_mounts_the_token_of_its_account(accounts: ServerClient) -> None:
    await accounts.made(ACCOUNTS, {"metadata": {"name": "robot"}, "imagePullSecrets": [{"name": "s"}]})
    own = {"name": "own", "image": "i", "volumeMounts": [{"name": "v", "mountPath": TOKEN_PATH}]}
    containers = [{"name": "c", "image": "i"}, own]
    body = pod_body("p", serviceAccountName="robot", containers=containers, volumes=[{"name": "v", "emptyDir": {}}])
    spec = (await accounts.made(PODS, body))["spec"]
    volume = spec["volumes"][1]["name"]
    assert volume.startswith("kube-api-access-")
    mounts = [each["volumeMounts"] for each in spec["containers"]]
    assert mounts == [[{"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}], own["volumeMounts"]]
    assert (spec["serviceAccount"], spec["imagePullSecrets"]) == ("robot", [{"name": "s"}])


async def test_replicas_share_no_volume_name(accounts: ServerClient) -> None:
    await accounts.made(ACCOUNTS, {"metadata": {"name": "default"}})
    specs = [(await accounts.made(PODS, pod_body(f"p{number}")))["spec"] for number in range(4)]
    names = [spec["volumes"][0]["name"] for spec in specs]
    assert len(set(names)) == len(names)
    assert [spec["containers"][0]["volumeMounts"][0]["name"] for spec in specs] == names


@pytest.mark.parametrize(("of_account", "of_pod", "mounted"), [(False, None, 0), (False, True, 1), (True, False, 0)])
async def test_pod_overrides_automount_of_account(
    accounts: ServerClient, of_account: bool, of_pod: bool | None, mounted: int
) -> None:
    await accounts.made(ACCOUNTS, {"metadata": {"name": "robot"}, "automountServiceAccountToken": of_account})
    override = {} if of_pod is None else {"automountServiceAccountToken": of_pod}
    spec = (await accounts.made(PODS, pod_body("p", serviceAccountName="robot", **override)))["spec"]
    assert len(spec.get("volumes", [])) == mounted


async def test_unknown_account_is_forbidden(accounts: ServerClient) -> None:
    status, response = await accounts("POST", PODS, pod_body("p", serviceAccountName="robot"))
    assert (status, response["message"]) == (
        403,
        'pods "p" is forbidden: error looking up service account default/robot: serviceaccount "robot" not found',
    )


async def test_pod_waits_for_default_account(accounts: ServerClient) -> None:
    async with asyncio.TaskGroup() as group:
        pod = group.create_task(accounts.made(PODS, pod_body("p")))
        await asyncio.sleep(0)
        await accounts.made(ACCOUNTS, {"metadata": {"name": "default"}})
    assert pod.result()["spec"]["serviceAccountName"] == "default"
