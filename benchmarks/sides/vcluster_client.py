"""A client of the lifecycle service in a process of its own, with one access key for each of its identities.

All rates are those of the same client library over TLS, except gRPC, which has its own.
"""

import asyncio
import base64
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import uvloop
import yaml

from benchmarks.sides.client_process import execute_commands
from tapestry.vclusters.api import vcluster_api_pb2 as api

NAMESPACE = PROJECT = "bench"
IN_FLIGHT = 32
PAGE_SIZE = 100
VCLUSTERS = f"/v1/namespaces/{NAMESPACE}/vclusters"
SERVER_NAME = "localhost"


class VClusterClient:
    def __init__(self, session: aiohttp.ClientSession, ca: Path, rest: str, grpc_address: str, keys: list[str]) -> None:
        self._session, self._ca, self._rest, self._grpc, self._keys = session, ca, rest, grpc_address, keys

    async def create(self, first: int, count: int, at_once: int) -> list[float]:
        """Create virtual clusters until their APIs answer, and return the seconds that each took."""
        seconds = []

        async def create(number: int) -> None:
            started = time.monotonic()
            await self._create(f"new-{first + number}")
            seconds.append(time.monotonic() - started)

        await many(count, create, at_once)
        return seconds

    async def _create(self, name: str) -> None:
        """Create a virtual cluster, and read a namespace of it with the kubeconfig that the service issues."""
        headers = self._headers(0)
        body = {"name": name, "project": PROJECT, "waitForReady": True, "spec": {"replicas": 1}}
        created = await self._json("POST", self._rest + VCLUSTERS, body, headers)
        assert created["vcluster"]["status"]["phase"] == "PHASE_RUNNING", created
        url = f"{self._rest}{VCLUSTERS}/{name}:generateKubeconfig"
        issued = await self._json("POST", url, {}, headers)
        config = yaml.safe_load(base64.b64decode(issued["kubeconfig"]))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        token = {"Authorization": f"Bearer {user['token']}"}
        await self._json("GET", f"{cluster['server']}/api/v1/namespaces/default", None, token, **tls_options(cluster))

    async def delete(self, first: int, count: int) -> None:
        async def delete(number: int) -> None:
            await self._json("DELETE", f"{self._rest}{VCLUSTERS}/new-{first + number}", None, self._headers(0))

        await many(count, delete)

    async def list(self) -> dict[str, Any]:
        """List all virtual clusters in pages, and return how many there are, and the seconds for all pages."""
        started, token, names = time.monotonic(), "", []
        pages = 0
        while pages == 0 or token:
            url = f"{self._rest}{VCLUSTERS}?pageSize={PAGE_SIZE}&pageToken={token}"
            page = await self._json("GET", url, None, self._headers(0))
            names += [each["name"] for each in page["vclusters"]]
            token = page.get("nextPageToken", "")
            pages += 1
        return {"pages": pages, "names": len(set(names)), "list_seconds": time.monotonic() - started}

    async def get_objects(self, count: int, names: int, cluster: dict[str, str], token: str, path: str) -> None:
        """Get objects from our API server."""
        headers, options = {"Authorization": f"Bearer {token}"}, tls_options(cluster)

        async def get(number: int) -> None:
            url = f"{cluster['server']}{path}/c{number % names}"
            async with self._session.get(url, headers=headers, **options) as response:
                content = await response.read()
                assert response.status == 200, content

        await many(count, get)

    async def get_by_rest(self, count: int, names: int) -> None:
        async def get(number: int) -> None:
            url = f"{self._rest}{VCLUSTERS}/c{number % names}"
            async with self._session.get(url, headers=self._headers(number), server_hostname=SERVER_NAME) as response:
                content = await response.read()
                assert response.status == 200, content

        await many(count, get)

    async def get_by_grpc(self, count: int, names: int) -> None:
        credentials = grpc.ssl_channel_credentials(self._ca.read_bytes())
        # Each identity has a connection of its own.
        options = [("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.secure_channel(self._grpc, credentials, options=options) for _ in self._keys]
        serialize, parse = api.GetVClusterRequest.SerializeToString, api.GetVClusterResponse.FromString
        calls = [
            each.unary_unary(
                "/vcluster.api.v1.VClusterService/GetVCluster",
                request_serializer=serialize,
                response_deserializer=parse,
            )
            for each in channels
        ]

        async def get(number: int) -> None:
            request = api.GetVClusterRequest(namespace=NAMESPACE, name=f"c{number % names}")
            identity = number % len(calls)
            await calls[identity](request, metadata=(("authorization", f"Bearer {self._keys[identity]}"),))

        await many(count, get)
        for each in channels:
            await each.close()

    def _headers(self, number: int) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[number % len(self._keys)]}"}

    async def _json(self, method: str, url: str, body: Any, headers: dict[str, str], **options: Any) -> Any:
        options = options or {"server_hostname": SERVER_NAME}
        async with self._session.request(method, url, json=body, headers=headers, **options) as response:
            content = await response.read()
            assert response.status < 300, (url, response.status, content[:500])
            return msgspec.json.decode(content)


def tls_options(cluster: dict[str, str]) -> dict[str, Any]:
    """Return how to connect to the API server of a kubeconfig."""
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return {"ssl": ssl.create_default_context(cadata=authority), "server_hostname": cluster.get("tls-server-name")}


async def many(count: int, work: Callable[[int], Awaitable[None]], at_once: int = IN_FLIGHT) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


async def main(ca: str, rest: str, grpc_address: str, *keys: str) -> None:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ca), limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await execute_commands(VClusterClient(session, Path(ca), rest, grpc_address, list(keys)))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
