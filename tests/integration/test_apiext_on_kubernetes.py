"""`tapestry apiext` as a process in front of an API server."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd
from tapestry.kube.resources import CRDS

from .planes import Plane

TAPESTRY = Path(sys.executable).with_name("tapestry")
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "apiext.md"


@contextmanager
def running(plane: Plane, kinds: str, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Run a process that serves these kinds; yield its address."""
    command = [TAPESTRY, "apiext", "--kubeconfig", plane.kubeconfig, "--listen", "127.0.0.1:0"]
    command += ["--kinds", kinds, "--log-level", "info"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
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
def address(shared_plane: Plane) -> Iterator[str]:
    """Address of a process that serves a few kinds."""
    with running(shared_plane, "namespaces,configmaps,*.apps") as address:
        yield address


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

    changed = await session.patch(
        "/apiext/v1/cm/b", params={"namespace": namespace}, json={"labels": {"x": "y"}, "data": {"size": "4"}}
    )
    assert (changed.status, (await changed.json())["data"]) == (200, {"size": "4"})
    replaced = await session.put("/apiext/v1/cm/b", params={"namespace": namespace}, json={"data": {"color": "red"}})
    found = await replaced.json()
    assert (replaced.status, found["data"], found["labels"]) == (200, {"color": "red"}, {})
    stale = {**found, "version": "1"}
    assert (await session.put("/apiext/v1/cm/b", params={"namespace": namespace}, json=stale)).status == 409

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


async def test_watches_resume_where_they_ended(
    session: aiohttp.ClientSession, shared_plane: Plane, namespace: str
) -> None:
    session.headers["Authorization"] = f"Bearer {shared_plane.token}"
    query = {"watch": "true", "namespace": namespace, "filter": "name!~ca.crt"}

    async def events(last: str, until: str) -> list[tuple[str, str]]:
        """Types and names of the events up to one of type or name `until`, and the id of the last one."""
        found, id, type = [], last, ""
        headers = {"Last-Event-ID": last} if last else {}
        async with session.get("/apiext/v1/configmaps", params=query, headers=headers) as response:
            assert response.status == 200
            async for line in response.content:
                field, _, value = line.decode().strip().partition(": ")
                if field == "id":
                    id = value
                elif field == "event":
                    type = value
                elif field == "data" and type != "bookmark":
                    found.append((type, json.loads(value).get("name", "")))
                    if until in found[-1]:
                        return [*found, ("id", id)]
        raise AssertionError(f"the stream ended without {until}: {found}")

    async def change(method: str, name: str, body: Any = None) -> None:
        path = "/apiext/v1/configmaps" if method == "POST" else f"/apiext/v1/configmaps/{name}"
        answer = await session.request(method, path, params={"namespace": namespace}, json=body)
        assert answer.status in (200, 201), await answer.text()

    async with asyncio.timeout(60):
        await change("POST", "a", {"name": "a"})
        *first, (_, id) = await events("", "synced")
        assert first == [("added", "a"), ("synced", "")]
        await change("POST", "b", {"name": "b"})
        await change("PATCH", "a", {"labels": {"x": "y"}})
        await change("DELETE", "b")
        *later, _ = await events(id, "deleted")
        assert later == [("added", "b"), ("modified", "a"), ("deleted", "b")]


REGISTER = """
def register(registry):
    registry.register("tasks", lambda manager: None, kinds=(TASK,))
"""


async def test_interfaces_of_installed_packages_are_served(
    client: Client, shared_plane: Plane, namespace: str, tmp_path: Path
) -> None:
    (snippet,) = re.findall("```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "tasks.py").write_text(snippet + REGISTER)
    package = tmp_path / "tasks-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tasks\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[tapestry.controllers]\ntasks = tasks:register\n")
    names: dict[str, Any] = {"__name__": "tasks"}
    exec(snippet, names)
    kind = names["TASK"]
    await client.create(CRDS, crd(kind))
    await wait_for(client, CRDS, kind.resource.name, until=lambda each: is_condition_true(each or {}, "Established"))
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    headers = {"Authorization": f"Bearer {shared_plane.token}"}
    with running(shared_plane, "tasks", {**os.environ, "PYTHONPATH": paths}) as address:
        async with aiohttp.ClientSession(f"http://{address}", headers=headers) as session:
            made = await session.post("/apiext/v1/tasks", json={"name": "a", "namespace": namespace, "spec": {}})
            assert made.status == 201, await made.text()
            called = await session.post(f"/apiext/v1/tasks/a/retry?namespace={namespace}", json={"times": 2})
            assert (called.status, await called.json()) == (200, {"attempts": 2})
            document = await (await session.get("/apiext/openapi.json")).json()
            assert "/apiext/v1/tasks.example.com/{name}/retry" in document["paths"]
    assert (await client.get(kind.resource, "a", namespace))["spec"]["attempts"] == 2
