"""A leased pod over a real kubelet: many exec sessions, idle or through a failover, much data, and its usage."""

import asyncio
import json
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.objects import uid_of
from tapestry.local.control_planes import KUBELET_CLIENT
from tapestry.streams.remote_command import V4, V5

from .cat_sessions import SPDY, CatSession, cat_session, check_echo, check_silence, wait_for_end
from .clusters import Cluster, PhysicalCluster
from .images import IMAGE
from .installation import Installation, process_folders, running_installation, tapestry
from .metrics_servers import aggregated_metrics
from .streams import Streams

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

PROTOCOLS = (V4, V5, SPDY, SPDY)
"""kube-apiserver passes version 4 on, and translates version 5 to SPDY."""
IDLE_SESSIONS, IDLE_SECONDS = 200, 600.0
KILLED_SESSIONS, ERROR_SECONDS = 50, 5.0
MEBIBYTE = 1 << 20
LEASE_SECONDS = 15.0
"""Duration of the leader's lease."""
FOLLOW_SECONDS = LEASE_SECONDS + 10
"""Limit until kubectl works: the lease, and the time until the API server knows the new address of the node."""
KUBELET_PORT = 10250
NODE = "vnode-east-n1"
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: work}}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: work
    image: {IMAGE}
    resources: {{requests: {{cpu: 10m, memory: 16Mi}}}}
"""


@dataclass(frozen=True)
class World:
    """A virtual cluster with one leased pod."""

    virtual: Cluster
    installed: Installation

    @property
    def streams(self) -> Streams:
        return Streams(self.virtual.plane.kubeconfig, self.virtual.assets, "default")

    @asynccontextmanager
    async def session(self, protocol: str = V4) -> AsyncIterator[CatSession]:
        """Open an exec session that returns what it gets."""
        plane, query = self.virtual.plane, "command=cat&stdin=true&stdout=true"
        url = f"{plane.url}/api/v1/namespaces/default/pods/work/exec?{query}"
        async with cat_session(url, unverified_tls(), protocol, plane.token) as session:
            yield session

    async def check_exec_at(self, address: str) -> None:
        """Run a command through the syncer at this address, as kube-apiserver does through a Service."""
        tls = unverified_tls()
        authority = CertificateAuthority(self.virtual.plane.folder / "pki")
        tls.load_cert_chain(*authority.client_certificate(KUBELET_CLIENT, ["system:masters"]))
        url = f"https://{address}:{KUBELET_PORT}/exec/default/work/work?command=cat&input=1&output=1"
        async with cat_session(url, tls, V4):
            pass

    async def syncer_addresses(self) -> set[str]:
        pods = await self.installed.pods("tapestry-syncer-east")
        return {pod["status"]["podIP"] for pod in pods if is_condition_true(pod, "Ready")}

    def node_address(self) -> str:
        node = json.loads(self.virtual.kubectl("get", "node", NODE, "-o", "json"))
        return str(node["status"]["addresses"][0]["address"])

    async def kill_syncer_at(self, address: str) -> None:
        """Kill the processes of the syncer with this address, if it runs."""
        pods = await self.installed.pods("tapestry-syncer-east")
        homes = tuple(str(self.installed.folder / uid_of(pod)) for pod in pods if pod["status"].get("podIP") == address)
        for pid, folder in process_folders().items():
            if folder.startswith(homes):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def unverified_tls() -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


@pytest.fixture
async def world(
    virtual_cluster: Cluster, physical_clusters: dict[str, PhysicalCluster], tmp_path: Path
) -> AsyncIterator[World]:
    virtual = virtual_cluster
    below = physical_clusters["east"].plane.kubeconfig
    access = ("--kubeconfig", virtual.plane.kubeconfig, "--cluster-kubeconfig", below)
    async with running_installation(virtual.plane, virtual.assets, tmp_path) as installed:
        await asyncio.to_thread(tapestry, "join", "east", *access, "--lease=50%")
        (tmp_path / "pod.yaml").write_text(POD)
        for state in ("create", "condition=Ready"):
            await asyncio.to_thread(virtual.kubectl, "wait", f"node/{NODE}", f"--for={state}", "--timeout=60s")
        await asyncio.to_thread(virtual.kubectl, "apply", "-f", tmp_path / "pod.yaml")
        await asyncio.to_thread(virtual.kubectl, "wait", "pod/work", "--for=condition=Ready", "--timeout=60s")
        yield World(virtual, installed)
        await asyncio.to_thread(virtual.kubectl, "delete", "pod/work", "--timeout=60s")
        await asyncio.to_thread(tapestry, "unjoin", "east", *access)


async def test_idle_sessions_survive(world: World) -> None:
    async with AsyncExitStack() as stack:
        protocols = PROTOCOLS * (IDLE_SESSIONS // len(PROTOCOLS))
        sessions = [await stack.enter_async_context(world.session(each)) for each in protocols]
        await check_silence(sessions, IDLE_SECONDS)
        for each in sessions:
            await check_echo(each)


async def test_killed_syncer_ends_its_sessions_and_the_standby_answers(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    async with AsyncExitStack() as stack:
        protocols = [PROTOCOLS[number % len(PROTOCOLS)] for number in range(KILLED_SESSIONS)]
        sessions = [await stack.enter_async_context(world.session(each)) for each in protocols]
        address = world.node_address()
        (standby,) = await world.syncer_addresses() - {address}
        killed = time.monotonic()
        await world.kill_syncer_at(address)
        for each in sessions:
            async with asyncio.timeout(ERROR_SECONDS):
                await wait_for_end(each)
        ended = time.monotonic() - killed
    async with asyncio.timeout(LEASE_SECONDS):
        await world.check_exec_at(standby)
    answered = time.monotonic() - killed
    while await asyncio.to_thread(world.node_address) == address:  # the kubelet restarts what was killed
        await world.kill_syncer_at(address)
    followed = await asyncio.to_thread(seconds_until_exec, world, killed)
    record_property("figure", f"{KILLED_SESSIONS} sessions ended {ended:.1f} s after the kill of the syncer")
    record_property("figure", f"the standby answered exec {answered:.1f} s after the kill")
    record_property("figure", f"kubectl exec worked {followed:.1f} s after the kill: the address had changed")
    assert ended < ERROR_SECONDS
    assert answered < LEASE_SECONDS
    assert followed < FOLLOW_SECONDS


def seconds_until_exec(world: World, since: float) -> float:
    world.streams.wait_for_exec("work", lambda done: done.returncode == 0)
    return time.monotonic() - since


@pytest.mark.parametrize("websockets", [True, False])
async def test_100_mebibytes_pass_unchanged(world: World, websockets: bool) -> None:
    streams = world.streams if websockets else world.streams.with_spdy()
    assert await asyncio.to_thread(streams.echoes, "work", 100 * MEBIBYTE)


async def test_top_shows_what_the_kubelet_measures(
    world: World, physical_clusters: dict[str, PhysicalCluster], tmp_path: Path
) -> None:
    def check() -> None:
        with (
            aggregated_metrics(physical_clusters["east"], tmp_path / "below"),
            aggregated_metrics(world.virtual, tmp_path / "above"),
        ):
            world.streams.check_top("work", NODE)

    await asyncio.to_thread(check)
