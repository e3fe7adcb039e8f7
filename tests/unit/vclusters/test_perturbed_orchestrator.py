"""The orchestrator with a fault injected at each of its API calls."""

import asyncio
from typing import Any

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.vclusters.operations import operation_id
from tapestry.vclusters.orchestrator import install

from .fake_engine import Cluster, FakeEngine

HOUR = 3600.0
NAMED = object_named("v", "default")
CLUSTERS: dict[str, Cluster] = {}
"""What exists outside of the API. It stays when the process dies."""


def setup(manager: Manager) -> None:
    install(manager, {"native": FakeEngine(CLUSTERS)})


def request(verb: Verb, **arguments: Any) -> Object:
    id = operation_id("jane", verb, "1")
    return {"id": id, "verb": verb.value, "principal": "jane", "arguments": arguments}


async def create(client: Client) -> None:
    CLUSTERS.clear()
    spec = {"project": "shop", "owner": "jane", "operation": request(Verb.CREATE)}
    await client.create(VCLUSTERS, {**NAMED, "spec": spec})
    await reach(client, Phase.RUNNING)


async def reach(client: Client, phase: Phase) -> Object:
    def is_there(obj: Object | None) -> bool:
        return value_at(obj, "status", "phase") == phase and not value_at(obj, "status", "journal")

    found = await wait_for(client, VCLUSTERS, "v", "default", until=is_there, timeout=HOUR)
    assert found is not None
    return found


async def suspended(client: Client) -> None:
    await create(client)
    operation = request(Verb.SUSPEND, createSnapshot=True, drainWorkloads=True)
    await client.patch(VCLUSTERS, NAMED, {"spec": {"operation": operation}})
    await reach(client, Phase.SUSPENDED)


async def deleted(client: Client) -> None:
    await create(client)
    await client.delete(VCLUSTERS, NAMED)
    await wait_for(client, VCLUSTERS, "v", "default", until=lambda obj: obj is None, timeout=HOUR)
    assert not CLUSTERS
    await asyncio.sleep(1)


def test_suspend_survives_any_fault() -> None:
    report = perturb(Scenario("suspend", [VCLUSTERS, OPERATIONS], setup, suspended))
    report.check()
    assert report.calls > 10


def test_delete_survives_any_fault() -> None:
    report = perturb(Scenario("delete", [VCLUSTERS, OPERATIONS], setup, deleted))
    report.check()
    assert report.calls > 10
