"""Two processes of the service of virtual clusters on one etcd: each continues what the other one has begun."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.planes import PLANES, own_process_name, plane_id
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.storage.etcd.connection import etcd_client
from tapestry.client.client import Client
from tapestry.controller.leader import holder_of
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, LEASES
from tapestry.planes.config import PlanesConfig, plane_storage_config
from tapestry.planes.etcd_prefixes import has_identity

from .plane_clients import client_of, together, wait_for_phase
from .vcluster_clients import COLLECTION, UnlimitedPlanesProcess
from .vcluster_groups import Member, group

BLUE = f"{COLLECTION}/blue"


async def plane_of(management: Client, name: str) -> Object:
    vcluster = await management.get(VCLUSTERS, name, "shop")
    return await management.get(PLANES, value_at(vcluster, "status", "plane"))


async def created(member: Member, name: str = "blue", **fields: Any) -> Any:
    body = {"name": name, "waitForReady": True, **fields}
    return (await member.service.rest("POST", COLLECTION, json=body))["vcluster"]


async def watched(member: Member, name: str) -> str:
    """Return the first phase of a virtual cluster in a watch."""
    async with member.service.http.get(f"{member.service.base}/v1/vclusters:watch") as stream:
        while True:
            event = json.loads(await stream.content.readline())
            if event["vcluster"]["name"] == name:
                return str(event["vcluster"]["status"]["phase"])


async def write_through(member: Member, id: str, name: str) -> None:
    """Create an object by the proxy of a process, and read it."""
    path = f"/v1/vclusters/{id}/k8s/api/v1/namespaces/default/configmaps"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    await member.service.rest("POST", path, json=body)
    assert (await member.service.rest("GET", f"{path}/{name}"))["metadata"]["name"] == name
    names = {each["metadata"]["name"] for each in (await member.service.rest("GET", path))["items"]}
    assert name in names


@pytest.mark.timeout(240)
async def test_each_process_serves_all_vclusters(kube_assets: Path, tmp_path: Path) -> None:
    async with group(kube_assets, tmp_path, "ab") as members:
        a, b = members.values()
        blue = await created(a)
        for member in (a, b):
            assert (await member.service.rest("GET", BLUE))["vcluster"]["id"] == blue["id"]
            assert [each["name"] for each in (await member.service.rest("GET", "/v1/vclusters"))["vclusters"]] == [
                "blue"
            ]
            assert await watched(member, "blue") == "PHASE_RUNNING"
            await write_through(member, blue["id"], f"by-{member.name}")
            issued = await member.service.rest("POST", f"{BLUE}:generateKubeconfig")
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_bytes(base64.b64decode(issued["kubeconfig"]))
            async with client_of(kubeconfig) as plane:
                assert await plane.get(CONFIGMAPS, f"by-{member.name}", "default")

        body = {"requestId": "r", "resources": {"cpuLimit": "2"}}
        first, second = await together(each.service.rest("POST", f"{BLUE}:scale", json=body) for each in (a, b))
        assert first["operationId"] == second["operationId"]
        assert "error" not in await b.ended(first["operationId"])
        records = [each for each in await a.management.list(OPERATIONS) if each["spec"]["verb"] == "Scale"]
        assert len(records) == 1

        for member in (a, b):
            records = (await member.service.rest("GET", "/v1/auditrecords", params={"pageSize": 200}))["records"]
            assert {each["instance"] for each in records} == {"a", "b"}
            assert (await member.service.rest("POST", "/v1/auditrecords:verify"))["isComplete"]
            async with member.service.http.get(f"{member.service.base}{BLUE}") as response:
                assert response.headers["RateLimit-Limit"] == "50"

        holder = (await plane_of(a.management, "blue"))["status"]["holder"]
        (other,) = members.keys() - {holder}
        members[holder].process.kill()
        url = f"{members[other].service.base}/v1/vclusters/{blue['id']}/k8s/api"
        async with members[other].service.http.get(url) as response:
            assert response.status == 503
            assert f"the process {holder} holds the plane and does not answer" in await response.text()
        await members[holder].restart()


@pytest.mark.timeout(240)
async def test_vcluster_moves_to_its_own_process_and_back(kube_assets: Path, tmp_path: Path) -> None:
    async with group(kube_assets, tmp_path, "ab") as members:
        a, b = members.values()
        blue = await created(a)
        issued = await a.service.rest("POST", f"{BLUE}:generateKubeconfig")
        kubeconfig = tmp_path / "kubeconfig"
        for member, cpus in ((a, "1"), (b, "100m")):
            started = await member.service.rest("POST", f"{BLUE}:scale", json={"resources": {"cpuRequest": cpus}})
            assert "error" not in await b.ended(started["operationId"])
            plane = await plane_of(a.management, "blue")
            own = own_process_name(plane_id(plane))
            assert (plane["status"]["holder"] == own) == (cpus == "1")
            for each in (a, b):
                await write_through(each, blue["id"], f"{cpus}-by-{each.name}")
            issued = await member.service.rest("POST", f"{BLUE}:generateKubeconfig")
            kubeconfig.write_bytes(base64.b64decode(issued["kubeconfig"]))
            async with client_of(kubeconfig) as client:
                assert await client.get(CONFIGMAPS, f"{cpus}-by-a", "default")
        await b.ended((await b.service.rest("DELETE", BLUE))["operationId"])
        assert await a.management.list(PLANES) == []


async def orchestrating(members: dict[str, Member]) -> tuple[Member, Member]:
    """Return the process that carries out operations, and the other one."""
    lease = await members["a"].management.get(LEASES, "vclusters", "kube-system")
    (leader,) = (each for each in members.values() if holder_of(lease).startswith(f"{each.name}_"))
    (other,) = (each for each in members.values() if each is not leader)
    return leader, other


@pytest.mark.timeout(240)
async def test_operation_ends_through_the_other_process(kube_assets: Path, tmp_path: Path) -> None:
    async with group(kube_assets, tmp_path, "ab") as members:
        leader, other = await orchestrating(members)
        await created(other)
        plane = await plane_of(other.management, "blue")
        await other.management.patch(PLANES, object_named(name_of(plane)), {"spec": {"process": other.name}})
        await wait_for_phase(other.management, name_of(plane), holder=other.name)
        body = {"requestId": "r", "createSnapshot": True, "drainWorkloads": True}
        started = await leader.service.rest("POST", f"{BLUE}:suspend", json=body)
        leader.process.kill()
        again = await other.service.rest("POST", f"{BLUE}:suspend", json=body)
        assert again["operationId"] == started["operationId"]
        ended = await other.ended(started["operationId"])
        assert (ended["phaseTo"], ended.get("error")) == ("PHASE_SUSPENDED", None)
        assert len((await other.service.rest("GET", "/v1/snapshots"))["snapshots"]) == 1
        await leader.restart()
        started = await leader.service.rest("POST", f"{BLUE}:resume", json={})
        assert (await leader.ended(started["operationId"]))["phaseTo"] == "PHASE_RUNNING"
        assert await orchestrating(members) == (other, leader)


@pytest.mark.timeout(240)
async def test_quota_holds_over_both_processes(kube_assets: Path, tmp_path: Path) -> None:
    async with group(kube_assets, tmp_path, "ab", UnlimitedPlanesProcess) as members:
        a, b = members.values()
        await a.service.rest("PATCH", "/v1/projects/default/quota", json={"limits": {"vclusters": "1"}})

        async def status_of(number: int) -> int:
            service = (a, b)[number % 2].service
            url = service.base + COLLECTION
            async with service.http.post(url, json={"name": f"vc{number}"}) as response:
                return response.status

        statuses = await together(status_of(number) for number in range(20))
        assert sorted(statuses) == [202, *[429] * 19]
        assert len(await b.management.list(VCLUSTERS)) == 1


async def kill_in_the_middle(member: Member, etcd: EtcdConfig) -> None:
    """Kill a process while it replaces the objects below a prefix, and start it again."""
    async with asyncio.timeout(60), etcd_client(etcd) as observer:
        while await has_identity(observer, etcd):
            pass
    member.process.kill()
    await member.restart()


@pytest.mark.timeout(240)
async def test_snapshot_is_restored_to_etcd_after_a_kill(kube_assets: Path, tmp_path: Path) -> None:
    async with group(kube_assets, tmp_path, "a") as members:
        member = members["a"]
        blue = await created(member)
        plane = await plane_of(member.management, "blue")
        issued = await member.service.rest("POST", f"{BLUE}:generateKubeconfig")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_bytes(base64.b64decode(issued["kubeconfig"]))
        async with client_of(kubeconfig) as client:
            for number in range(300):
                await client.create(CONFIGMAPS, object_named(f"c{number}", "default"))
            started = await member.service.rest("POST", f"{BLUE}:snapshot", json={})
            snapshot = (await member.ended(started["operationId"]))["snapshotId"]
            for number in range(200):
                await client.delete(CONFIGMAPS, object_named(f"c{number}", "default"))
            await client.create(CONFIGMAPS, object_named("later", "default"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_in_the_middle(member, etcd_of(member, plane)))
            started = await member.service.rest("POST", f"{BLUE}:restore", json={"snapshotId": snapshot})
        assert "error" not in await member.ended(started["operationId"])
        async with client_of(kubeconfig) as client:  # its users and keys are as before
            assert await own_configmaps(client) == {f"c{number}" for number in range(300)}

        body = {"snapshotId": snapshot, "createNew": True, "newName": "green"}
        started = await member.service.rest("POST", f"{BLUE}:restore", json=body)
        ended = await member.ended(started["operationId"])
        assert "error" not in ended, ended
        green = (await member.service.rest("GET", f"{COLLECTION}/green"))["vcluster"]
        assert green["id"] != blue["id"]
        path = f"/v1/vclusters/{green['id']}/k8s/api/v1/namespaces/default/configmaps"
        assert len((await member.service.rest("GET", path))["items"]) == 301


async def own_configmaps(client: Client) -> set[str]:
    return {name_of(each) for each in await client.list(CONFIGMAPS, "default")} - {"kube-root-ca.crt"}


def etcd_of(member: Member, plane: Object) -> EtcdConfig:
    """Return the prefix of a plane."""
    config = PlanesConfig(etcd=EtcdConfig(servers=[member.etcd_url], prefix="/tapestry"))
    return plane_storage_config(config, plane_id(plane), "etcd").etcd
