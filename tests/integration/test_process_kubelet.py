"""Syncer Deployments run as local processes."""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDING, CLUSTER_BINDINGS
from tapestry.apis.policies import POLICY
from tapestry.client.watch import wait_for
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd, decode_spec
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import (
    CRDS,
    DEPLOYMENTS,
    PODS,
    SECRETS,
)
from tapestry.local.world import MANIFEST_RESOURCES
from tapestry.manager.config import BindingsConfig
from tapestry.manager.grants import Grant, binding_permissions
from tapestry.manager.installation import installation_objects
from tapestry.manager.manifests import syncer_manifests
from tapestry.manager.syncers import load_templates, packaged_templates, scopes, template_values

from ..unit.local.worlds import MASTERS, World, new_cluster

SYSTEM = "tapestry-system"
CLOSED_INPUT = re.compile(r"E\d{4} .*(write on closed stream 0|websocket: close sent)")
"""Messages of kubectl if a session ends before it has closed its input."""
WORKLOADS = ("deployments", "replicasets", "scheduler", "garbage")


def kubeconfig(world: World) -> str:
    """Administrator kubeconfig with embedded certificates."""
    certificate, key = world.authority.client_certificate("admin", MASTERS)

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    cluster = {"server": world.server, "certificate-authority-data": data(world.authority.certificate_file)}
    user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A cluster with a binding to itself.  The test takes the role of the manager."""
    async with new_cluster(tmp_path, *WORKLOADS) as world:
        for obj in installation_objects():
            if obj["kind"] != DEPLOYMENTS.kind:
                await world.client.create(MANIFEST_RESOURCES[obj["kind"]], obj)
        for kind in (CLUSTER_BINDING, POLICY):
            await wait_for(world.client, CRDS, name_of(crd(kind)), until=is_established)
        data = {"kubeconfig": base64.b64encode(kubeconfig(world).encode()).decode()}
        await world.client.create(SECRETS, {"metadata": {"name": "east", "namespace": SYSTEM}, "data": data})
        yield world


def is_established(definition: Object | None) -> bool:
    return definition is not None and is_condition_true(definition, "Established")


async def new_syncer(world: World) -> Object:
    """Create the syncer Deployment of a binding and its prerequisites, as the manager does."""
    secret = {"name": "east", "namespace": SYSTEM}
    content = {"clusterID": "east", "mountNamespace": "leased", "secretRef": secret}
    binding = await world.client.create(CLUSTER_BINDINGS, {"metadata": {"name": "east"}, "spec": content})
    spec, config = decode_spec(CLUSTER_BINDING, binding), BindingsConfig(allow_loopback=True)
    filled = template_values(binding, spec, config)
    for each in syncer_manifests(load_templates(packaged_templates("syncer")), filled, scopes(config)):
        made = await world.client.create(each.resource, each.object)
        if each.resource is DEPLOYMENTS:
            deployment = made
    grant = Grant(binding, spec, SYSTEM, binding_permissions(binding, spec, []))
    for kind, obj in zip(grant.kinds, (grant.role(), grant.role_binding()), strict=True):
        await world.client.create(kind, obj)
    return deployment


def has_ready(count: int) -> Callable[[Object | None], bool]:
    return lambda deployment: value_at(deployment, "status", "readyReplicas") == count


def kubectl_of(world: World, assets: Path) -> Callable[..., Awaitable[str]]:
    (world.folder / "kubeconfig").write_text(kubeconfig(world))

    async def run(*arguments: str, code: int = 0) -> str:
        command = [assets / "kubectl", f"--kubeconfig={world.folder / 'kubeconfig'}", *arguments]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    return run


async def start_simulated_pod(world: World) -> None:
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "nginx"}]}
    await world.client.create(PODS, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    await world.wait_for_pod("web", lambda pod: is_condition_true(pod, "Ready"))


async def test_kubectl_reads_the_log_line_of_simulated_pods(tmp_path: Path, kube_assets: Path) -> None:
    async with new_cluster(tmp_path, simulated=True) as world:
        kubectl = kubectl_of(world, kube_assets)
        await start_simulated_pod(world)
        assert await kubectl("logs", "web", "-f") == (
            "default/web is simulated: nothing runs in c, and nothing is written\n"
        )
        assert "1/1" in await kubectl("get", "pod", "web")
        assert "Ready" in await kubectl("get", "nodes")


async def test_streams_of_simulated_pods_end_with_an_error(tmp_path: Path, kube_assets: Path) -> None:
    async with new_cluster(tmp_path, simulated=True) as world:
        kubectl = kubectl_of(world, kube_assets)
        await start_simulated_pod(world)
        source = tmp_path / "source"
        source.touch()
        for arguments in (["exec", "web", "--", "true"], ["attach", "-q", "web"], ["cp", str(source), "web:/tmp/x"]):
            lines = (await kubectl(*arguments, code=126)).splitlines()
            line, *rest = [each for each in lines if not CLOSED_INPUT.match(each)]
            assert line.startswith("default/web is simulated: ")
            assert rest == ["command terminated with exit code 126"]
        assert "simulated: nothing listens on port 80. " in await error_of_forwarding(world, kube_assets)


async def error_of_forwarding(world: World, assets: Path) -> str:
    """Return what `kubectl port-forward` writes after a connection to its port."""
    process = await asyncio.create_subprocess_exec(
        *(assets / "kubectl", f"--kubeconfig={world.folder / 'kubeconfig'}", "port-forward", "web", ":80"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
            _, writer = await asyncio.open_connection("127.0.0.1", int(line.split("127.0.0.1:")[1].split()[0]))
            writer.close()
            assert process.stderr is not None
            return (await process.stderr.readline()).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_syncer_processes_are_started_and_restarted(world: World, kube_assets: Path) -> None:
    kubectl = partial(kubectl_of(world, kube_assets), "-n", SYSTEM)

    async def pids() -> dict[str, int]:
        """Process id of each replica, read from its log."""
        found = {}
        for pod in await world.client.list(PODS, SYSTEM):
            text = await kubectl("logs", name_of(pod))
            entry = next(json.loads(line) for line in text.splitlines() if 'listeners started"' in line)
            found[name_of(pod)] = int(entry["identity"].split("-")[-2])
        return found

    deployment = await new_syncer(world)
    name = name_of(deployment)
    await wait_for(world.client, DEPLOYMENTS, name, SYSTEM, until=has_ready(2), timeout=60)
    running = await pids()
    assert len(running) == 2
    victim, pid = next(iter(running.items()))
    os.kill(pid, signal.SIGKILL)
    await world.wait_for_pod(victim, lambda pod: restarts(pod) == 1 and is_condition_true(pod, "Ready"), SYSTEM)
    assert (await pids())[victim] != pid
    assert "probe and metrics listeners started" in await kubectl("logs", victim, "--previous")
    assert "syncer" in await kubectl("get", "pods", "-o", "wide")
    await kubectl("scale", "deployment", name, "--replicas=0")
    for pod in running:
        await world.wait_until_gone(pod, SYSTEM)
    assert not any(map(is_alive, running.values()))


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def restarts(pod: Object) -> int:
    count: int = value_at(pod, "status", "containerStatuses", 0, "restartCount", default=0)
    return count
