"""The PhaseMachine of docs/guides/phases.md on real servers: its schema, its finalizer and its deletion."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import Filter, ManagerConfig, Metrics, Probes
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, object_named, value_at, with_type_meta
from tapestry.kube.resources import CRDS, JOBS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "phases.md"


@pytest.fixture(scope="module")
def snapshots() -> ModuleType:
    """The controller of the guide."""
    found = re.search(r"^```python\n# snapshots\.py\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    module = ModuleType("snapshots")
    exec(found[1], vars(module))
    return module


@pytest.fixture
async def kind(snapshots: ModuleType, client: Client) -> None:
    try:
        await client.create(CRDS, crd(snapshots.SNAPSHOT))
    except AlreadyExists:
        return
    name = snapshots.SNAPSHOTS.name
    await wait_for(client, CRDS, name, until=lambda found: is_condition_true(found or {}, "Established"))


@pytest.fixture
async def controller(kind: None, snapshots: ModuleType, kubeconfig: Path, namespace: str) -> AsyncIterator[None]:
    config = ManagerConfig(
        filter=Filter(namespaces=[namespace]), metrics=Metrics(address=""), probes=Probes(address="")
    )
    access = load_access([kubeconfig], environ=os.environ)
    manager = Manager(config, lambda: HttpTransport(access), identity="test").register("snapshots", snapshots.setup)
    async with asyncio.TaskGroup() as group:
        group.create_task(manager.run())
        yield
        manager.stop()


async def complete(client: Client, namespace: str, name: str) -> None:
    """Act as the Job controller."""
    job = await wait_for(client, JOBS, name, namespace, until=bool)
    assert job is not None
    now = job["metadata"]["creationTimestamp"]
    types = ("SuccessCriteriaMet", "Complete")
    conditions = [{"type": each, "status": "True", "lastTransitionTime": now} for each in types]
    status = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
    await client.patch(JOBS, job, {"status": status}, subresource="status")


async def test_snapshot_shows_limits_and_is_cleaned_up(
    controller: None, snapshots: ModuleType, client: Client, namespace: str
) -> None:
    resource = snapshots.SNAPSHOTS

    async def reach(phase: str) -> Object:
        there = lambda obj: value_at(obj, "status", "phase") == phase  # noqa: E731
        found = await wait_for(client, resource, "monday", namespace, until=there)
        assert found is not None
        return found

    snapshot = {**object_named("monday", namespace), "spec": {"volume": "data"}}
    await client.create(resource, with_type_meta(resource, snapshot))
    copying = await reach("Copying")
    assert copying["metadata"]["finalizers"] == ["snapshots.storage.example.com/phases"]
    assert (copying["status"]["retries"], copying["status"]["attempts"]) == (5, 0)
    assert copying["status"]["deadline"] > copying["metadata"]["creationTimestamp"]

    await complete(client, namespace, "monday-copy")
    ready = await reach("Ready")
    assert ready["status"]["location"] == "/snapshots/monday"
    assert not ready["status"].keys() & {"deadline", "retries", "lastError"}

    await client.delete(resource, object_named("monday", namespace))
    assert is_condition_true(await reach("Deleting"), "Deleting")
    await complete(client, namespace, "monday-delete")
    await wait_for(client, resource, "monday", namespace, until=lambda obj: obj is None)
