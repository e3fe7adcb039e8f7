"""`tapestry apiext` as a process in front of an API server."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from .planes import Plane

TAPESTRY = Path(sys.executable).with_name("tapestry")


@pytest.fixture
def address(shared_plane: Plane) -> Iterator[str]:
    """Address of a process that serves a few kinds."""
    command = [TAPESTRY, "apiext", "--kubeconfig", shared_plane.kubeconfig, "--listen", "127.0.0.1:0"]
    command += ["--kinds", "namespaces,configmaps,*.apps", "--log-level", "info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        started = next(line for line in map(json.loads, process.stderr) if line["message"] == "apiext server listening")
        yield started["address"]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
async def session(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """HTTP session without a token."""
    async with aiohttp.ClientSession(f"http://{address}") as opened:
        yield opened


async def test_known_users_can_use_plain_rest(
    session: aiohttp.ClientSession, shared_plane: Plane, namespace: str
) -> None:
    refused = await session.get("/apiext/v1/namespaces")
    assert refused.status == 401
    session.headers["Authorization"] = f"Bearer {shared_plane.token}"

    async def listed(path: str, **query: str) -> Any:
        answer = await session.get(path, params=query)
        assert answer.status == 200, await answer.text()
        return await answer.json()

    names = [each["name"] for each in (await listed("/apiext/v1"))["kinds"]]
    assert {"namespaces", "configmaps", "deployments"} <= set(names)
    assert "pods" not in names
    (found,) = (await listed("/apiext/v1/namespaces", filter=f"name={namespace},phase=Active"))["items"]
    assert found["spec"] == {"finalizers": ["kubernetes"]}

    for name in ("a", "b", "c"):
        body = {"name": name, "namespace": namespace, "data": {"size": "3"}}
        made = await session.post("/apiext/v1/configmaps", json=body)
        assert made.status == 201, await made.text()
    page = await listed("/apiext/v1/configmaps", namespace=namespace, filter="name!~ca.crt", sort="-name", limit="2")
    assert [each["name"] for each in page["items"]] == ["c", "b"]
    assert (page["total"], page["pages"]) == (3, 2)
    first = await listed("/apiext/v1/configmaps", namespace=namespace, limit="1")
    second = await listed("/apiext/v1/configmaps", namespace=namespace, limit="1", cursor=first["next"])
    assert second["items"] != first["items"]

    wrong = await session.post("/apiext/v1/configmaps", json={"name": "d", "namespace": namespace, "dta": {}})
    assert wrong.status == 400
    assert 'unknown field "dta"' in (await wrong.json())["message"]
    wrong = await session.post("/apiext/v1/deployments", json={"name": "d", "namespace": namespace, "spec": {}})
    assert wrong.status == 422
    assert "spec.selector" in [each["field"] for each in (await wrong.json())["fields"]]

    gone = await session.delete("/apiext/v1/configmaps/a", params={"namespace": namespace})
    assert await gone.json() == {"name": "a", "namespace": namespace, "deleted": True}
    going = await session.delete(f"/apiext/v1/namespaces/{namespace}")
    assert (going.status, (await going.json())["deleted"]) == (202, False)
