"""A deployment runner: the commands of Deployments as processes of this machine, until something better runs them.

It is a reconciler like any other.  A replica is a process with the arguments and the environment of the Deployment's
first container and the rights of its service account; one that ends is started again, and the Deployment's status says
how many run.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tapestry.controller import Controller, Informer, Manager
from tapestry.kube.objects import Object, key_of, name_of, namespace_of, value_at
from tapestry.kube.resources import DEPLOYMENTS

PROGRAMS = Path(sys.executable).parent
OWN_PORTS = ("--metrics-bind-address=0.0.0.0:0", "--health-probe-bind-address=127.0.0.1:0")
"""Replicas have one address between them here, not one each; metrics are for whoever may read them, as in a pod."""


@dataclass
class DeploymentRunner:
    """Runs the Deployments of one namespace; keyed as they are."""

    manager: Manager
    deployments: Informer
    kubeconfig: Path
    """An administrator's; each replica gets one of its own account's."""
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that every replica gets, beside those of its container."""
    replicas: dict[str, list[asyncio.subprocess.Process]] = field(default_factory=lambda: defaultdict(list))
    controller: Controller = field(init=False)

    def __post_init__(self) -> None:
        self.controller = self.manager.controller("deployments", self.reconcile, workers=1)
        self.controller.watch(self.deployments)

    async def reconcile(self, key: str) -> None:
        deployment = self.deployments.store.get(key)
        running = self.replicas[key] = [each for each in self.replicas[key] if each.returncode is None]
        wanted = value_at(deployment, "spec", "replicas", default=1) if deployment is not None else 0
        while len(running) < wanted:
            assert deployment is not None
            running.append(await self.start(deployment, key))
        for process in running[wanted:]:
            process.terminate()
            await process.wait()
        if deployment is not None:
            generation = deployment["metadata"]["generation"]
            counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), wanted)
            status = {**counts, "observedGeneration": generation}
            if {name: value_at(deployment, "status", name) for name in status} != status:
                await self.manager.client.patch(DEPLOYMENTS, deployment, {"status": status}, subresource="status")

    async def start(self, deployment: Object, key: str) -> asyncio.subprocess.Process:
        pod = value_at(deployment, "spec", "template", "spec")
        container = pod["containers"][0]
        command = [*container["command"], *container.get("args", []), *OWN_PORTS]
        environ = {each["name"]: each["value"] for each in container.get("env", [])}
        kubeconfig = await self.account_of(pod["serviceAccountName"], namespace_of(deployment) or "")
        with self.log(name_of(deployment)).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                PROGRAMS / command[0],
                *command[1:],
                env={**os.environ, **environ, **self.settings, "KUBECONFIG": str(kubeconfig)},
                stdout=log,
                stderr=log,
            )
        self.watch(process, key)
        return process

    def watch(self, process: asyncio.subprocess.Process, key: str) -> None:
        ended = asyncio.create_task(process.wait())
        ended.add_done_callback(lambda _: self.controller.queue.add(key))

    async def account_of(self, name: str, namespace: str) -> Path:
        """A kubeconfig with a token of the service account, as a pod of it would have."""
        issued = await self.manager.client.token(name, namespace)
        document = json.loads(self.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": issued["token"]}
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def log(self, deployment: str) -> Path:
        """Where the replicas of a Deployment write to."""
        return self.folder / f"{deployment}.log"

    async def stop(self) -> None:
        for process in (each for replicas in self.replicas.values() for each in replicas):
            if process.returncode is None:
                process.kill()
                await process.wait()

    def processes(self, deployment: Object) -> list[asyncio.subprocess.Process]:
        return self.replicas[key_of(deployment)]
