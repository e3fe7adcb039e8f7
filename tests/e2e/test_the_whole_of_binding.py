"""From `tapestry manifests` and `tapestry join` to virtual nodes, with nobody's rights but those that were granted.

The manager is a process under its own service account; the syncers are processes that the manager's Deployments ask
for, under theirs; what they may do below is what `tapestry join` granted.  A missing right shows as a failure here.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.client.waiting import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, named, value_at
from tapestry.kube.resources import DEPLOYMENTS, NODES
from tapestry.local.kubernetes import ControlPlane

from .deployments import DeploymentRunner

TAPESTRY = Path(sys.executable).with_name("tapestry")
SYSTEM = "tapestry-system"


def run(*command: object, **environ: object) -> str:
    done = subprocess.run(
        [TAPESTRY, *map(str, command)],
        env={**os.environ, **{key: str(value) for key, value in environ.items()}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def planes(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    """A virtual cluster with service accounts of its own, and a physical one."""
    folder = tmp_path_factory.mktemp("planes")
    with (
        ControlPlane(folder / "virtual", kube_assets, controller_manager=True, fsync=False) as virtual,
        ControlPlane(folder / "physical", kube_assets, controller_manager=True, fsync=False) as physical,
    ):
        yield virtual, physical


def client_of(plane: ControlPlane) -> Client:
    return Client(HttpTransport(load([plane.kubeconfig], environ={})))


def apply(manifests: str, plane: ControlPlane, assets: Path) -> None:
    subprocess.run(
        [assets / "kubectl", "apply", "-f", "-"],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
        input=manifests,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


def denials(folder: Path) -> list[str]:
    return [line for log in folder.glob("*.log") for line in log.read_text().splitlines() if "Forbidden" in line]


@asynccontextmanager
async def working(plane: ControlPlane, assets: Path, folder: Path) -> AsyncIterator[DeploymentRunner]:
    """`tapestry manifests` applied, and a runner for the Deployments that come of it: first of all the manager's."""
    await asyncio.to_thread(apply, run("manifests"), plane, assets)
    access = load([plane.kubeconfig], environ={})
    config = ManagerConfig(name="runner", metrics=Metrics(address=""), probes=Probes(address=""))
    host = Manager(config, lambda: HttpTransport(access), identity="runner")
    runner = DeploymentRunner(host, host.informer(DEPLOYMENTS, namespace=SYSTEM), plane.kubeconfig, folder)
    host.with_("runner", lambda _: None)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(host.run())
        try:
            yield runner
        finally:
            host.stop()
            await asyncio.wait([task])
            await runner.stop()


def a_node(name: str) -> Object:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts}}


async def reaches(client: Client, resource, name: str, until: Callable[[Object], bool], namespace=None) -> Object:
    found = await wait_for(
        client, resource, name, namespace, until=lambda obj: obj is not None and until(obj), timeout=60
    )
    assert found is not None
    return found


@pytest.mark.timeout(300)
async def test_a_cluster_joins_lends_survives_kills_and_leaves(
    planes: tuple[ControlPlane, ControlPlane], kube_assets: Path, tmp_path: Path
) -> None:
    above, below = planes
    virtual, physical = client_of(above), client_of(below)
    try:
        await physical.create(NODES, a_node("n1"))
        async with working(above, kube_assets, tmp_path) as runner:
            joined = await asyncio.to_thread(
                run,
                *("join", "east", "--kubeconfig", above.kubeconfig, "--cluster-kubeconfig", below.kubeconfig),
                *("--lease", "50%"),
            )
            assert "east" in joined
            await reaches(virtual, NODES, "vnode-east-n1", lambda node: node["status"]["allocatable"]["cpu"] == "2")
            await reaches(virtual, CLUSTER_BINDINGS, "east", lambda binding: is_true(binding, "SyncerReady"))

            [deployment] = [
                each
                for each in await virtual.list(DEPLOYMENTS, SYSTEM)
                if "syncer" in json.dumps(value_at(each, "spec", "template", "spec", "containers", 0, "args"))
            ]
            for process in runner.processes(deployment):
                process.kill()
            await physical.create(NODES, a_node("n2"))
            await reaches(virtual, NODES, "vnode-east-n2", lambda _: True)

            shown = await asyncio.to_thread(run, "status", "--kubeconfig", above.kubeconfig)
            assert "east" in shown
            await virtual.delete(CLUSTER_BINDINGS, named("east"))
            await wait_for(virtual, CLUSTER_BINDINGS, "east", until=lambda obj: obj is None, timeout=60)
            assert [node for node in await virtual.list(NODES) if node["metadata"]["name"].startswith("vnode-")] == []
    finally:
        await virtual.close()
        await physical.close()
    assert denials(tmp_path) == []
