"""Renewal of many node Leases as in kwok: one delay queue and a few workers."""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.controller.app import configure_process, freeze_heap, run_app
from tapestry.controller.config import Logs, ManagerConfig
from tapestry.controller.controller import Controller, Result
from tapestry.kube.objects import Object, with_value
from tapestry.kube.resources import LEASES
from tapestry.kube.times import micro_timestamp

NAMESPACE = "kube-node-lease"
PERIOD = 10.0
WORKERS = 8


@dataclass
class Renewals:
    """The last written Leases, their due times, and the delay of each renewal."""

    client: Client
    leases: dict[str, Object] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)
    renewed: int = 0

    async def create(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_timestamp(datetime.now(UTC))}
        lease = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }
        self.leases[name] = await self.client.create(LEASES, lease)

    async def renew(self, name: str) -> Result:
        now = asyncio.get_running_loop().time
        self.late.append(now() - self.due[name])
        renewed = with_value(self.leases[name], ("spec", "renewTime"), micro_timestamp(datetime.now(UTC)))
        self.leases[name] = await self.client.replace(LEASES, renewed)
        self.renewed += 1
        self.due[name] += PERIOD
        return Result(requeue_after=self.due[name] - now())


def renewed(kubeconfig: str, nodes: str, seconds: str) -> dict[str, float]:
    """Return the used share of a core, and the 99th percentile of the delay in seconds."""
    configure_process(ManagerConfig(log=Logs(level="warning")))
    measured: dict[str, float] = {}

    async def run() -> None:
        access = default_access(Path(kubeconfig), None, environ=os.environ, home=Path.home())
        renewals = Renewals(Client(HttpTransport(access)))
        controller = Controller("leases", renewals.renew, workers=WORKERS)
        names = [f"node-{number:04d}" for number in range(int(nodes))]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(renewals.create(name))
        freeze_heap()
        async with asyncio.TaskGroup() as group:
            for name in names:
                delay = random.uniform(0, PERIOD)
                renewals.due[name] = asyncio.get_running_loop().time() + delay
                controller.queue.add_after(name, delay)
            cpu = time.process_time()
            group.create_task(controller.run())
            await asyncio.sleep(float(seconds))
            measured["cores"] = (time.process_time() - cpu) / float(seconds)
            controller.queue.close()
        late = sorted(renewals.late)
        measured["late"] = late[int(len(late) * 0.99)]
        measured["renewals"] = renewals.renewed
        measured["failures"] = len(late) - renewals.renewed
        await renewals.client.close()

    run_app(run)
    return measured
