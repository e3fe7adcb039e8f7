"""Tapestry installed from its manifests, with only the permissions that they grant.

A node on this machine runs the pods as processes. The cluster has its own controllers and scheduler.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.kube.objects import Object, name_of, uid_of
from tapestry.kube.resources import NODES, PODS
from tapestry.local import program_allowlist
from tapestry.local.cluster import ClusterPlan, run_kubelets
from tapestry.local.control_planes import kubelet_manager
from tapestry.local.kubernetes import ControlPlane

TAPESTRY = Path(sys.executable).with_name("tapestry")
SYSTEM = "tapestry-system"
OFF_LOOPBACK = "--metrics-bind-address=0.0.0.0:0"
"""On loopback, where pods have their addresses here, metrics need no authorization."""


def tapestry(*command: object) -> str:
    """Return the output of a tapestry command that must succeed."""
    done = subprocess.run([TAPESTRY, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def client_of(plane: ControlPlane) -> Client:
    return Client(HttpTransport(load_access([plane.kubeconfig], environ={})))


def apply(manifests: str, plane: ControlPlane, assets: Path) -> None:
    subprocess.run(
        [assets / "kubectl", "apply", "-f", "-"],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
        input=manifests,
        stdout=subprocess.DEVNULL,
        text=True,
        check=True,
    )


@dataclass(frozen=True)
class Installation:
    """The running pods of Tapestry."""

    virtual: Client
    folder: Path
    """Parent of the folders of the pods."""

    async def pods(self, deployment: str) -> list[Object]:
        found = await self.virtual.list(PODS, SYSTEM)
        return [pod for pod in found if name_of(pod).startswith(f"{deployment}-")]

    async def logs(self, deployment: str) -> list[str]:
        """Return the log of each process of a Deployment, in the order in which the processes started."""
        files = [log for pod in await self.pods(deployment) for log in (self.folder / uid_of(pod)).rglob("*.log")]
        return [log.read_text() for log in sorted(files, key=lambda log: log.stat().st_ctime)]

    async def pids(self, deployment: str) -> list[int]:
        """Return the processes of a Deployment: those whose working folder belongs to one of its pods."""
        homes = tuple(str(self.folder / uid_of(pod)) for pod in await self.pods(deployment))
        return [pid for pid, path in process_folders().items() if path.startswith(homes)]

    def denials(self) -> list[str]:
        """Return the log lines about missing permissions."""
        logs = self.folder.rglob("*.log")
        return [line for log in logs for line in log.read_text().splitlines() if "Forbidden" in line]


def process_folders() -> dict[int, str]:
    """Return the working folder of every process on this machine."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(process.name)] = os.readlink(process / "cwd")
    return found


@asynccontextmanager
async def running_installation(
    plane: ControlPlane,
    assets: Path,
    folder: Path,
    manager: Mapping[str, str] | None = None,
    syncer: Mapping[str, Any] | None = None,
) -> AsyncIterator[Installation]:
    """Apply `tapestry manifests` and run a node for the pods.

    `manager` holds environment variables of the manager, `syncer` is the configuration of syncers.
    """
    (folder / "syncer.json").write_text(json.dumps(syncer or {}))
    args = f"--config={folder / 'syncer.json'},{OFF_LOOPBACK}"
    manifests = list(yaml.safe_load_all(tapestry("manifests", "--image", "mine:1")))
    variables = {
        "TAPESTRY_SYNCER_KUBELET_SERVICE": "false",  # kube-apiserver runs beside the nodes and reaches no Service
        **(manager or {}),
        "TAPESTRY_SYNCER_ARGS": args,
        "TAPESTRY_ALLOW_LOOPBACK": "true",
    }
    configured = [with_settings(each, variables) for each in manifests]
    await asyncio.to_thread(apply, yaml.safe_dump_all(configured), plane, assets)
    plan = ClusterPlan(folder, process_node=True)
    async with kubelet_manager(plane) as served:
        with allowed_settings(variables):
            async with run_kubelets(plan, served):
                yield Installation(served.client, folder / "pods")
        await served.client.delete(NODES, {"metadata": {"name": "this-machine"}})


@contextmanager
def allowed_settings(variables: Iterable[str]) -> Iterator[None]:
    """Let our pods have a configuration file and these variables, which process nodes do not allow otherwise."""
    flags = {command: allowed | {"--config"} for command, allowed in program_allowlist.ALLOWED_FLAGS.items()}
    with (
        patch.object(program_allowlist, "ALLOWED_FLAGS", flags),
        patch.object(program_allowlist, "ALLOWED_VARIABLES", program_allowlist.ALLOWED_VARIABLES | {*variables}),
    ):
        yield


def with_settings(manifest: Object, variables: Mapping[str, str]) -> Object:
    """Add variables to the manager's Deployment, and serve its metrics off loopback, as in a real pod."""
    if manifest["kind"] != "Deployment":
        return manifest
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["args"].append(OFF_LOOPBACK)
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    return manifest
