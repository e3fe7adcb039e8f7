"""The flows of the requirement document. Comments have the numbers of the arrows in its two sequence diagrams."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tenants.running_tenants import pod_named, wait_for_pod

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.planes import PLANES
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.client.client import Client
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import NAMESPACES, PODS

from .plane_clients import client_of, plane_kubeconfig, together
from .tenant_processes import OF_TENANTS
from .vcluster_clients import COLLECTION, Clients, rest_answer
from .vclusters_with_host import service_with_host

TIMEOUT = 60.0


@dataclass
class Flow:
    """Clients of the service, of the management API and of the host cluster, for one virtual cluster."""

    name: str
    world: Clients
    management: Client
    host: Client
    folder: Path

    async def vcluster(self) -> Object:
        return await self.management.get(VCLUSTERS, self.name, "shop")

    async def plane(self) -> Object:
        return await self.management.get(PLANES, (await self.vcluster())["status"]["plane"])

    async def phases(self) -> list[str]:
        return [each["data"]["to"] for each in (await self.vcluster())["status"]["outbox"]]

    async def ended(self, operation: str) -> Any:
        path = f"/v1/operations/{operation}:wait"
        ended = await self.world.rest("POST", path, json={"timeoutSeconds": 60})
        assert (ended["done"], ended.get("error")) == (True, None)
        assert [each["state"] for each in ended["steps"]] == ["Done"] * len(ended["steps"])
        begins = [each["startTime"] for each in ended["steps"]]
        ends = [each["endTime"] for each in ended["steps"]]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))  # one after the other
        return ended

    async def stages(self, method: str) -> list[str]:
        """Return the stages of the audit records of this virtual cluster, the oldest first."""
        answer = await self.world.rest("GET", "/v1/auditrecords", params={"method": method, "pageSize": 100})
        records = [each for each in answer.get("records", []) if self.name in each.get("target", self.name)]
        return [each["stage"] for each in records][::-1]

    async def twins(self) -> list[Object]:
        """Return the pods of this virtual cluster in the host cluster."""
        binding = await self.management.get(CLUSTER_BINDINGS, (await self.vcluster())["status"]["plane"])
        return await self.host.list(PODS, labels=f"{OF_TENANTS}={binding['metadata']['uid']}")

    async def plane_client(self) -> Client:
        name = (await self.vcluster())["status"]["plane"]
        return client_of(await plane_kubeconfig(self.management, name, self.folder / name))


@pytest.mark.timeout(120)
async def test_create_flow(tmp_path: Path) -> None:
    async with service_with_host(tmp_path) as (_, world, management, host):
        flow = Flow("blue", world, management, host, tmp_path)
        body: dict[str, Any] = {"name": "blue", "waitForReady": True}

        # 1, 1.1: without credentials nothing is forwarded
        wrong = {"headers": {"Authorization": "Bearer tap_unknown"}}
        async with world.http.post(world.base + COLLECTION, json=body, **wrong) as response:
            assert response.status == 401
        assert "received" not in await flow.stages("CreateVCluster")

        # 1.2, 2: the service gets the request, and validates it
        status, answer = await rest_answer(world, "POST", COLLECTION, {**body, "spec": {"helmValues": "a: 1"}})
        assert (status, answer["error"]["details"][0]["reason"]) == (400, "FIELD_UNSUPPORTED")
        assert await management.list(VCLUSTERS) == []

        # 1 to 7: a valid request is answered when the virtual cluster runs
        created = await world.rest("POST", COLLECTION, json=body)
        assert created["vcluster"]["status"]["phase"] == "PHASE_RUNNING"

        # 2.1: the task of the orchestrator is the operation in the spec
        vcluster = await flow.vcluster()
        assert value_at(vcluster, "spec", "operation", "id") == created["operationId"]
        assert value_at(vcluster, "spec", "operation", "verb") == "Create"

        # 3, 3.1, 5, 5.1: the state machine confirms each change of the phase
        assert await flow.phases() == ["Pending", "Creating", "Running"]

        # 4, 4.1: the engine installs (the native one instead of Helm)
        ended = await flow.ended(created["operationId"])
        assert [each["name"] for each in ended["steps"]] == ["Place", "Install", "WaitReady"]

        # 4.2, 4.3, 4.4: there is a plane, and in the host cluster a namespace of the tenant
        assert (await flow.plane())["status"]["phase"] == "Open"
        assert len(await host.list(NAMESPACES, labels=OF_TENANTS)) == 1

        # 6, 6.1: the operation has its result
        assert (ended.get("phaseFrom"), ended["phaseTo"]) == ("PHASE_PENDING", "PHASE_RUNNING")

        # 6.2, 7: each request was recorded before its effects, and its answer after them
        assert (await flow.stages("CreateVCluster"))[-2:] == ["received", "completed"]


async def check_suspend_and_resume(flow: Flow, *, has_snapshot: bool, has_drain: bool) -> None:
    await flow.world.rest("POST", COLLECTION, json={"name": flow.name, "waitForReady": True})
    async with await flow.plane_client() as client:
        await client.create(PODS, pod_named("work", terminationGracePeriodSeconds=1))
        await wait_for_pod(client, "work", is_running)
    [twin] = await flow.twins()

    # 1, 1.1: the engine carries out the steps that the request asks for
    body = {"createSnapshot": has_snapshot, "drainWorkloads": has_drain}
    requested = await flow.world.rest("POST", f"{COLLECTION}/{flow.name}:suspend", json=body)
    ended = await flow.ended(requested["operationId"])
    steps = [*(["Snapshot"] * has_snapshot), *(["Drain"] * has_drain), "Stop"]
    assert [each["name"] for each in ended["steps"]] == steps

    # 1.2: a snapshot
    found = await flow.world.rest("GET", f"{COLLECTION}/{flow.name}/snapshots")
    assert [each["status"] for each in found.get("snapshots", [])] == ["SNAPSHOT_STATUS_READY"] * has_snapshot

    # 1.3, 1.4: drained pods are gone from the host cluster; others run on
    assert [each["metadata"]["uid"] for each in await flow.twins()] == [twin["metadata"]["uid"]] * (not has_drain)

    # 2 to 2.3: the control plane runs no more
    assert (await flow.plane())["status"]["phase"] == "Suspended"

    # 3, 3.1: the phase and the response
    answer = await flow.world.rest("GET", f"{COLLECTION}/{flow.name}")
    assert answer["vcluster"]["status"]["phase"] == ended["phaseTo"] == "PHASE_SUSPENDED"
    between = ["Suspending"] if has_snapshot or has_drain else []
    assert await flow.phases() == ["Pending", "Creating", "Running", *between, "Suspended"]

    # 4, 4.1: resume
    requested = await flow.world.rest("POST", f"{COLLECTION}/{flow.name}:resume")
    ended = await flow.ended(requested["operationId"])
    assert [each["name"] for each in ended["steps"]] == ["Start", "WaitReady", "ResumeWorkloads"]

    # 5 to 5.3: the control plane answers again
    assert (await flow.plane())["status"]["phase"] == "Open"

    # 5.4: workloads are reconciled, so the pod runs
    async with await flow.plane_client() as client:
        await wait_for_pod(client, "work", is_running)
    [again] = await flow.twins()
    assert (again["metadata"]["uid"] == twin["metadata"]["uid"]) is not has_drain

    # 6, 6.1: the phase and the response
    answer = await flow.world.rest("GET", f"{COLLECTION}/{flow.name}")
    assert answer["vcluster"]["status"]["phase"] == ended["phaseTo"] == "PHASE_RUNNING"
    assert (await flow.phases())[-2:] == ["Resuming", "Running"]


def is_running(pod: Object | None) -> bool:
    return value_at(pod, "status", "phase") == "Running"


@pytest.mark.timeout(180)
async def test_suspend_and_resume_flow(tmp_path: Path) -> None:
    async with service_with_host(tmp_path) as (_, *clients):
        await together(
            check_suspend_and_resume(
                Flow(f"v{number}", *clients, tmp_path), has_snapshot=number in (1, 3), has_drain=number in (2, 3)
            )
            for number in range(4)
        )
