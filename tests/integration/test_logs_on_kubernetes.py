"""Pod logs through two API servers and a syncer process."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tapestry.apis import keys
from tapestry.apiserver.access.certificates import CertificateAuthority, server_ssl_context
from tapestry.client.logs import pod_log
from tapestry.kube.errors import ApiError, BadRequest
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import NODES, SERVICE_ACCOUNTS
from tapestry.process.addresses import Address
from tapestry.process.probes import bound_socket, serve_app

from ..conftest import Kubectl
from .bound_clusters import BoundClusters, give, tainted
from .planes import Plane, also_mixed

LOOPBACK = "127.0.0.1"
ONCE = {"Connection": "close"}
"""Otherwise the API server keeps the connection and does not notice that the client is gone."""


@dataclass
class FakeKubelet:
    """Log endpoint of a kubelet that records requests and streams queued lines."""

    port: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    lines: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    async def log(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.match_info["pod"], dict(request.query)))
        if "previous" in request.query:
            why = f'no container before that in pod "{request.match_info["pod"]}"'
            raise web.HTTPBadRequest(text=why, headers=ONCE)
        answer = web.StreamResponse(headers=ONCE)
        await answer.prepare(request)
        await answer.write(b"this is " + request.match_info["container"].encode() + b"\n")
        try:
            while "follow" in request.query and (line := await self.lines.get()):
                await answer.write(line)
        except asyncio.CancelledError:
            self.disconnected.set()
            raise
        return answer


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    made, app = FakeKubelet(), web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", made.log)
    tls = server_ssl_context(*CertificateAuthority(tmp_path / "kubelet").server_certificate([LOOPBACK]), [])
    async with serve_app(app, bound_socket(Address(LOOPBACK, 0)), tls) as made.port:
        yield made


@asynccontextmanager
async def running_pod(clusters: BoundClusters, kubelet: FakeKubelet) -> AsyncIterator[str]:
    """Run a syncer and a pod on a virtual node.  Yield the name of the pod."""
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    addresses = [{"type": "InternalIP", "address": LOOPBACK}]
    endpoints = {"kubeletEndpoint": {"Port": kubelet.port}}
    status = {"addresses": addresses, "daemonEndpoints": endpoints}
    await clusters.physical.patch(NODES, object_named(node), {"status": status}, subresource="status")
    await clusters.add_policy("all")
    with clusters.syncer(kubelet_address=f"{LOOPBACK}:0"):
        await clusters.wait_for_virtual_node(node)
        pod = await clusters.run_pod("web", node)
        started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        container = {"name": "c", "image": "none", "imageID": "", "ready": True, "restartCount": 0, "state": started}
        await clusters.set_twin_status("web", phase="Running", containerStatuses=[container])
        await clusters.wait_for_pod("web", lambda found: value_at(found, "status", "phase") == "Running")
        yield name_of(pod)


async def read(clusters: BoundClusters, pod: str, **query: str) -> bytes:
    async with pod_log(clusters.virtual, pod, "default", query) as chunks:
        return b"".join([chunk async for chunk in chunks])


@also_mixed
async def test_pod_log_is_the_log_of_its_twin(clusters: BoundClusters, kubelet: FakeKubelet) -> None:
    async with running_pod(clusters, kubelet) as pod:
        assert await read(clusters, pod, container="c", tailLines="5", timestamps="true") == b"this is c\n"
        ((twin, query),) = kubelet.requests
        assert twin == await clusters.twin_name("web")
        assert {key: query[key] for key in ("tailLines", "timestamps")} == {"tailLines": "5", "timestamps": "true"}
        with pytest.raises(BadRequest, match=f'no container before that in pod "{pod}"'):
            await read(clusters, pod, previous="true")


@also_mixed
async def test_log_is_followed_until_the_reader_disconnects(clusters: BoundClusters, kubelet: FakeKubelet) -> None:
    async with running_pod(clusters, kubelet) as pod:
        async with pod_log(clusters.virtual, pod, "default", {"follow": "true"}) as chunks:
            assert await anext(chunks) == b"this is c\n"
            kubelet.lines.put_nowait(b"and now\n")
            assert await anext(chunks) == b"and now\n"
            assert not kubelet.disconnected.is_set()
        async with asyncio.timeout(30):
            await kubelet.disconnected.wait()


async def test_kubectl_logs_prints_the_log_or_the_reason(
    clusters: BoundClusters, kubelet: FakeKubelet, kubectl: Kubectl
) -> None:
    async with running_pod(clusters, kubelet) as pod:
        assert await asyncio.to_thread(kubectl, "logs", pod) == "this is c\n"
        cordon = {"spec": {"unschedulable": True}}
        await clusters.physical.patch(NODES, object_named(f"{clusters.name}-n1"), cordon)
        await clusters.wait_for_virtual_node(f"{clusters.name}-n1", tainted(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT))
        await clusters.bind_pod("late", f"{clusters.name}-n1")
        await clusters.wait_for_pod("late", lambda found: bool(value_at(found, "status", "conditions")))
        with pytest.raises(ApiError, match=f"`tapestry explain pod default/{clusters.name}-late` explains why"):
            await read(clusters, f"{clusters.name}-late")


async def test_virtual_cluster_authorizes_requests_to_its_nodes(
    clusters: BoundClusters, kubelet: FakeKubelet, virtual_plane: Plane
) -> None:
    await give(clusters.virtual, SERVICE_ACCOUNTS, object_named("curious", "default"))
    curious = (await clusters.virtual.request_token("curious", "default"))["token"]
    async with running_pod(clusters, kubelet) as pod:
        node = await clusters.virtual.get(NODES, clusters.above(f"{clusters.name}-n1"))
        url = f"{kubelet_of(node)}/containerLogs/default/{pod}/c"
        assert [await code(url, token) for token in ("", curious, virtual_plane.token)] == [401, 403, 200]


def kubelet_of(node: Object) -> str:
    status = node["status"]
    return f"https://{status['addresses'][0]['address']}:{status['daemonEndpoints']['kubeletEndpoint']['Port']}"


async def code(url: str, token: str) -> int:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=tls) as answer:
        return answer.status
