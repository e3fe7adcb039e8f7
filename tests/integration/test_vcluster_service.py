"""The service of virtual clusters as a process: the life of a virtual cluster by REST and by gRPC."""

import asyncio
import base64
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tapestry.kube.resources import NAMESPACES
from tapestry.local.kubernetes import free_ports
from tapestry.vclusters.rest_routes import RPCS

from .plane_clients import client_of
from .servers import PlanesProcess

RUNNING, SUSPENDED = "PHASE_RUNNING", "PHASE_SUSPENDED"
COLLECTION = "/v1/namespaces/shop/vclusters"


@dataclass
class Clients:
    http: aiohttp.ClientSession
    channel: grpc.aio.Channel
    base: str
    metadata: list[tuple[str, str]]

    async def rest(self, method: str, path: str, **options: Any) -> Any:
        async with self.http.request(method, self.base + path, **options) as response:
            text = await response.text()
            assert response.status < 300, text
            return json.loads(text)

    async def rpc(self, method: str, **fields: Any) -> Any:
        rpc = RPCS[method]
        request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
        call = self.channel.unary_unary(
            f"/{rpc.containing_service.full_name}/{rpc.name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return json_format.MessageToDict(await call(request(**fields), metadata=self.metadata))

    async def operate(self, protocol: str, verb: str) -> Any:
        """Request an operation, and wait until it has ended."""
        if protocol == "grpc":
            names = {"scale": "ScaleVCluster", "suspend": "SuspendVCluster", "resume": "ResumeVCluster"}
            name = names.get(verb, "DeleteVCluster")
            started = await self.rpc(name, name=protocol, namespace="shop")
            ended = await self.rpc("WaitOperation", id=started["operationId"], timeout_seconds=60)
        else:
            path = f"{COLLECTION}/{protocol}"
            method, path = ("DELETE", path) if verb == "delete" else ("POST", f"{path}:{verb}")
            started = await self.rest(method, path)
            ended = await self.rest(
                "POST", f"/v1/operations/{started['operationId']}:wait", json={"timeoutSeconds": 60}
            )
        assert ended["done"], ended
        assert "error" not in ended, ended
        return ended


@asynccontextmanager
async def clients(process: PlanesProcess, rest: int, rpc: int) -> AsyncIterator[Clients]:
    found = re.search(r"tap_\w+", process.output.read_text())
    assert found is not None
    authority = process.folder / "pki" / "ca.crt"
    context = ssl.create_default_context(cafile=str(authority))
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    header = f"Bearer {found[0]}"
    async with (
        aiohttp.ClientSession(headers={"Authorization": header}, connector=aiohttp.TCPConnector(ssl=context)) as http,
        grpc.aio.secure_channel(f"127.0.0.1:{rpc}", credentials) as channel,
    ):
        yield Clients(http, channel, f"https://127.0.0.1:{rest}", [("authorization", header)])


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Clients]:
    rest, rpc = free_ports(2)
    flags = "--rest-address", f"127.0.0.1:{rest}", "--grpc-address", f"127.0.0.1:{rpc}"
    with PlanesProcess(folder / "planes", *flags) as process:
        process.wait_for_output("served by grpc")
        async with clients(process, rest, rpc) as each:
            yield each


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
            world = Clients(http, channel, "", [])
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
