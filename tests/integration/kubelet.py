"""Simulated kubelet for all nodes of a cluster: pods run at once and end when they are deleted.

    python -m tests.integration.kubelet KUBECONFIG

Each pod costs two writes: one status update and one deletion.  The kubelet adds no delay of its own.
"""

import asyncio
import os
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.kubeconfig import load_access
from tapestry.client.watch import Changes, ListPage, Watch
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, namespace_of, object_named, uid_of, value_at
from tapestry.kube.resources import PODS
from tapestry.kube.times import timestamp

WORKERS = 32
CONDITIONS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


@dataclass
class Kubelet:
    client: Client
    started: set[str] = field(default_factory=set)
    """UIDs of the pods that run or are being started."""
    stopped: set[str] = field(default_factory=set)
    work: asyncio.Queue[Object] = field(default_factory=asyncio.Queue)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.process_queue())
            async with aclosing(
                Watch(self.client, PODS, fields="spec.nodeName!=", without_managed_fields=True).events()
            ) as events:
                async for event in events:
                    match event:
                        case ListPage(pods):
                            self.enqueue(pods)
                        case Changes(changes):
                            self.enqueue([pod for type, pod in changes if type != "DELETED"])

    def enqueue(self, pods: list[Object]) -> None:
        for pod in pods:
            waits = value_at(pod, "status", "phase") == "Pending"
            known = self.stopped if is_deleting(pod) else self.started
            if uid_of(pod) not in known and (waits or is_deleting(pod)):
                known.add(uid_of(pod))
                self.work.put_nowait(pod)

    async def process_queue(self) -> None:
        while True:
            pod = await self.work.get()
            try:
                if is_deleting(pod):
                    await self.client.delete(PODS, reference_to(pod), grace_seconds=0)
                else:
                    status = running_status(pod, timestamp(datetime.now(UTC)))
                    await self.client.patch(PODS, reference_to(pod), {"status": status}, subresource="status")
            except (NotFound, Conflict):  # the pod is gone or was recreated
                continue


def reference_to(pod: Object) -> Object:
    """Reference to the pod in any version."""
    target = object_named(name_of(pod), namespace_of(pod))
    return {"metadata": {**target["metadata"], "uid": uid_of(pod)}}


def running_status(pod: Object, now: str) -> Object:
    return {
        "phase": "Running",
        "startTime": now,
        "hostIP": "10.9.0.1",
        "podIP": "10.9.1.1",
        "podIPs": [{"ip": "10.9.1.1"}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in CONDITIONS],
        "containerStatuses": [running_container(each, now) for each in pod["spec"]["containers"]],
    }


def running_container(container: Object, now: str) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }


async def main(kubeconfig: Path) -> None:
    client = Client(HttpTransport(load_access([kubeconfig], environ=os.environ)))
    try:
        await Kubelet(client).run()
    finally:
        await client.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
