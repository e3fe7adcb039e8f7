"""The service of virtual clusters as a process: the life of a virtual cluster by REST and by gRPC."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import free_ports

from .plane_clients import client_of
from .servers import PlanesProcess
from .vcluster_clients import COLLECTION, Clients, service

RUNNING, SUSPENDED = "PHASE_RUNNING", "PHASE_SUSPENDED"


async def created(world: Clients, protocol: str) -> Any:
    if protocol == "grpc":
        fields = {"name": protocol, "namespace": "shop", "wait_for_ready": True}
        return (await world.rpc("CreateVCluster", **fields))["vcluster"]
    body = {"name": protocol, "waitForReady": True}
    return (await world.rest("POST", COLLECTION, json=body))["vcluster"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["rest", "grpc"])
async def test_life_of_a_vcluster(tmp_path: Path, protocol: str) -> None:
    async with service(tmp_path) as world:
        vcluster = await created(world, protocol)
        assert vcluster["status"]["phase"] == RUNNING
        issued = await world.rest("POST", f"{COLLECTION}/{protocol}:generateKubeconfig")
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_bytes(base64.b64decode(issued["kubeconfig"]))
        async with client_of(kubeconfig) as plane:
            assert await plane.get(NAMESPACES, "default")
        for verb, phase in (("suspend", SUSPENDED), ("resume", RUNNING)):
            assert (await world.operate(protocol, verb))["phaseTo"] == phase
        assert (await world.rest("GET", f"{COLLECTION}/{protocol}"))["vcluster"]["status"]["phase"] == RUNNING
        await world.operate(protocol, "delete")
        assert (await world.rest("GET", "/v1/vclusters")) == {}


@pytest.mark.timeout(120)
async def test_pages_and_watch(tmp_path: Path) -> None:
    async with service(tmp_path) as world:
        async with world.http.post(f"{world.base}/v1/namespaces/kube-system/vclusters", json={"name": "a"}) as rejected:
            (violation,) = (await rejected.json())["error"]["details"][1]["fieldViolations"]
        assert (rejected.status, violation["field"]) == (400, "metadata.namespace")
        for number in range(3):
            await world.rest("POST", COLLECTION, json={"name": f"vc{number}"})
        names, token = [], ""
        while token or not names:
            page = await world.rest("GET", "/v1/vclusters", params={"pageSize": 1, "pageToken": token})
            names, token = [*names, *(each["name"] for each in page["vclusters"])], page.get("nextPageToken", "")
        assert names == ["vc0", "vc1", "vc2"]
        async with world.http.get(f"{world.base}/v1/vclusters:watch") as stream:
            lines = [json.loads(await stream.content.readline()) for _ in range(3)]
            assert {each["type"] for each in lines} == {"WATCH_EVENT_TYPE_ADDED"}
            await world.rest("DELETE", f"{COLLECTION}/vc0")
            types = set()
            while "WATCH_EVENT_TYPE_DELETED" not in types:
                line = (await stream.content.readline()).strip()
                types.add(json.loads(line)["type"] if line else "")
        records = await world.rest("GET", "/v1/auditrecords", params={"method": "DeleteVCluster"})
        assert [each["stage"] for each in records["records"]] == ["completed", "received"]
        assert (await world.rest("POST", "/v1/auditrecords:verify"))["isComplete"]


@pytest.mark.timeout(120)
async def test_client_of_the_published_contract(tmp_path: Path) -> None:
    """The calls of the published example, without TLS and credentials. It deletes while it resumes."""
    (rpc,) = free_ports(1)
    flags = "--grpc-address", f"127.0.0.1:{rpc}", "--compat-plaintext"
    spec = {
        "kubernetes_version": "1.28.0",
        "distro": "k3s",
        "replicas": 1,
        "resources": {"cpu_request": "100m", "cpu_limit": "1", "memory_request": "128Mi", "memory_limit": "1Gi"},
        "network": {"pod_cidr": "10.244.0.0/16", "service_cidr": "10.96.0.0/12"},
        "storage": {"enable_persistence": True, "persistence_size": "5Gi"},
        "sync": {"sync_persistent_volumes": True, "sync_ingresses": True},
    }
    named = {"name": "demo", "namespace": "default"}
    with PlanesProcess(tmp_path / "planes", *flags) as process:
        process.wait_for_output("served by grpc")
        async with (
            aiohttp.ClientSession() as http,
            grpc.aio.insecure_channel(f"127.0.0.1:{rpc}") as channel,
            asyncio.timeout(30),
        ):
            world = Clients(http, channel, "", [], process)
            created = await world.rpc("CreateVCluster", **named, spec=spec)
            await world.rpc("WaitOperation", id=created["operationId"])
            for method, fields in (
                ("GetVCluster", named),
                ("ListVClusters", {"namespace": "default"}),
                ("ScaleVCluster", {**named, "resources": {"cpu_limit": "2"}, "replicas": 1}),
                ("SuspendVCluster", named),
                ("ResumeVCluster", named),
                ("DeleteVCluster", named),
            ):
                response = await world.rpc(method, **fields)
                assert response
                if method in ("ScaleVCluster", "SuspendVCluster"):
                    await world.rpc("WaitOperation", id=response["operationId"])
