"""The story of Tapestry, played in a world of its own: every command is shown, run, and seen to do what is said of it.

A third cluster joins and lends half of what is idle on weeknights; a Job runs on the others; an owner wants a node back
at once, and gets it; the pods go on elsewhere, and it can be asked why.
"""

import asyncio
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.objects import Object, annotations_of, is_deleting, value_at
from tapestry.kube.resources import NODES, PODS
from tapestry.local.simulation import ENDS
from tapestry.local.world import TAPESTRY, World, WorldFailed

PODS_WANTED = 20
WEEKNIGHTS = "22:00-06:00 Mon,Tue,Wed,Thu,Fri"
PATIENCE = 60.0
"""Seconds for a scene to come to its end."""
OF_THE_JOB = "batch.kubernetes.io/job-name=work"


def the_job() -> Object:
    """Twenty pods that work long enough to be watched."""
    asked = {"requests": {"cpu": "500m", "memory": "256Mi"}}
    container = {"name": "work", "image": "busybox", "command": ["work"], "resources": asked}
    template = {
        "metadata": {"annotations": {ENDS: "2m"}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec = {"completions": PODS_WANTED, "parallelism": PODS_WANTED, "backoffLimit": PODS_WANTED, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work"}, "spec": spec}


def the_switch(node: str) -> Object:
    """The kill switch: an annotation of a physical node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "annotations": {keys.RECLAIM: keys.NOW}},
    }


@dataclass(frozen=True)
class Demo:
    """Plays in `folder`, which is empty, and leaves nothing running."""

    folder: Path
    say: Callable[[str], None]
    pace: float
    """Seconds to read a sentence in."""

    @cached_property
    def world(self) -> World:
        return World(self.folder / ".tapestry", clusters=2, nodes=3, say=self.say)

    async def play(self) -> None:
        world = self.world
        await self.tell("A virtual cluster, and two physical ones that lend it half of what is idle.")
        try:
            await world.start()
            async with world.client("virtual") as virtual:
                await self.joining(world)
                await self.working(virtual)
                name, node = await self.reclaiming(virtual)
                await self.explaining(name, node)
        finally:
            await asyncio.to_thread(world.stop)

    async def joining(self, world: World) -> None:
        await self.tell("A third cluster joins: its owner lends half of what is idle, on weeknights.")
        world.spawn("cluster-3", "--nodes", "3")
        await world.answers("cluster-3")
        await self.types(
            *("join", "cluster-3", "--cluster-kubeconfig", ".tapestry/cluster-3/kubeconfig"),
            *("--lease", "50%", "--window", WEEKNIGHTS),
        )
        await self.types("policies")

    async def working(self, virtual: Client) -> None:
        await self.tell(f"A Job of {PODS_WANTED} pods; they run below, as if this were one cluster.")
        (self.folder / "job.yaml").write_text(yaml.safe_dump(the_job(), sort_keys=False))
        await self.types("k", "apply", "-f", "job.yaml")
        await settled(virtual, without="")
        await self.types("k", "get", "job", "work")
        await self.types("nodes")

    async def reclaiming(self, virtual: Client) -> tuple[str, str]:
        """Take the busiest node back; its virtual name, and its own."""
        pods = Counter(value_at(pod, "spec", "nodeName") for pod in await running(virtual))
        name = max(pods, key=lambda each: pods[each])
        seen = annotations_of(await virtual.get(NODES, name))
        node, cluster = seen[keys.PHYSICAL_NODE_NAME], seen[keys.CLUSTER_BINDING]
        await self.tell(f"The owner of {cluster} wants {node} back, now: the kill switch, {keys.RECLAIM}={keys.NOW}.")
        (self.folder / "switch.yaml").write_text(yaml.safe_dump(the_switch(node), sort_keys=False))
        await self.types("k", "apply", "--kubeconfig", f".tapestry/{cluster}/kubeconfig", "-f", "switch.yaml")
        await settled(virtual, without=name)
        await self.tell("Its pods were taken back, and others of the Job run elsewhere in their place.")
        await self.types("nodes")
        return name, node

    async def explaining(self, name: str, node: str) -> None:
        await self.tell(f"Why does {node} lend nothing any more?")
        await self.types("explain", "node", name)

    async def tell(self, text: str) -> None:
        self.say(f"\n# {text}")
        await asyncio.sleep(self.pace)

    async def types(self, *words: str) -> None:
        """Run one of our commands as a person would, and show what it says."""
        self.say(f"$ tapestry {shlex.join(words)}")
        done = await asyncio.to_thread(self.run, [str(TAPESTRY), *words])
        self.say(shortened(done.stdout))
        if done.returncode:
            raise WorldFailed(f"`tapestry {shlex.join(words)}` ended with {done.returncode}")

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in this world, whatever cluster the person who watches works with."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "KUBECONFIG": str(self.world.kubeconfig())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def shortened(text: str) -> str:
    """What a command says, the rights that join goes through counted and not told one by one."""
    lines = text.rstrip().splitlines()
    rest = [line for line in lines if not line.startswith("granted ")]
    count = len(lines) - len(rest)
    return "\n".join([*rest[:-1], *([f"granted    physical  {count} rights"] if count else []), *rest[-1:]])


async def running(virtual: Client) -> list[Object]:
    pods = await virtual.list(PODS, "default", labels=OF_THE_JOB)
    return [pod for pod in pods if value_at(pod, "status", "phase") == "Running" and not is_deleting(pod)]


async def settled(virtual: Client, without: str) -> None:
    """Until all pods of the Job run or have run, none of them on the node `without`."""
    async with asyncio.timeout(PATIENCE):
        while True:
            pods = await virtual.list(PODS, "default", labels=OF_THE_JOB)
            there = [pod for pod in pods if value_at(pod, "status", "phase") in ("Running", "Succeeded")]
            elsewhere = [pod for pod in there if value_at(pod, "spec", "nodeName") != without]
            left = [pod for pod in await running(virtual) if value_at(pod, "spec", "nodeName") == without]
            if len(elsewhere) >= PODS_WANTED and not left:
                return
            await asyncio.sleep(0.2)
