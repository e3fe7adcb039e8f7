"""Tapestry in a cluster, at work as its manifests say, with nobody's rights but those that were granted."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.kube.resources import DEPLOYMENTS
from tapestry.local.kubernetes import ControlPlane

from .deployments import DeploymentRunner

TAPESTRY = Path(sys.executable).with_name("tapestry")
SYSTEM = "tapestry-system"


def tapestry(*command: object) -> str:
    """What the command line prints; it has to succeed."""
    done = subprocess.run([TAPESTRY, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


@asynccontextmanager
async def at_work(plane: ControlPlane, assets: Path, folder: Path, **settings: str) -> AsyncIterator[DeploymentRunner]:
    """`tapestry manifests` applied, and a runner for the Deployments that come of it: first of all the manager's.

    The logs of what runs are in `folder`.  `settings` are variables for all of it.
    """
    await asyncio.to_thread(apply, tapestry("manifests"), plane, assets)
    access = load([plane.kubeconfig], environ={})
    config = ManagerConfig(name="runner", metrics=Metrics(address=""), probes=Probes(address=""))
    host = Manager(config, lambda: HttpTransport(access), identity="runner")
    deployments = host.informer(DEPLOYMENTS, namespace=SYSTEM)
    runner = DeploymentRunner(host, deployments, plane.kubeconfig, folder, settings)
    host.with_("runner", lambda _: None)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(host.run())
        try:
            yield runner
        finally:
            host.stop()
            await asyncio.wait([task])
            await runner.stop()


def denials(folder: Path) -> list[str]:
    """What the logs in `folder` say about rights that were missing."""
    return [line for log in folder.glob("*.log") for line in log.read_text().splitlines() if "Forbidden" in line]
