"""The world on one machine: a virtual cluster woven from physical ones, each a process of its own.

The manager is installed as anywhere else; the virtual cluster's process kubelet runs it, and through it the syncers.
Nothing outlives whoever runs the world, however they end; what is in its folder does.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import load
from tapestry.client.waiting import wait_for
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import Object, name_of, with_value
from tapestry.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from tapestry.local.kubernetes import COMPONENTS, find_assets
from tapestry.local.members import LOOK, TAPESTRY, Members, Progress, Say, answers, opened
from tapestry.local.readiness import wait_for_nodes
from tapestry.local.world_folder import VIRTUAL, Kept, WorldFailed, WorldFolder
from tapestry.manager.installation import installation
from tapestry.manager.joining import Plan, join
from tapestry.manager.offers import Offer
from tapestry.manager.steps import Cluster

__all__ = ["TAPESTRY", "VIRTUAL", "WELCOME", "World", "WorldFailed"]

WELCOME = signal.SIGUSR1
"""Tells the process that runs a world to look at the folders of clusters: one has come, or is to be removed."""
REMOVED = "removed"
"""The file in the folder of a cluster that is to be removed."""
GLANCE = 1.0
"""Seconds that a cluster has to answer somebody who asks how it is."""
ESTABLISHING = 120.0
"""Seconds for the server to take up a kind."""
ANSWERING = 120.0
"""Seconds for a cluster to answer that somebody else starts."""

INSTALLED = {
    each.kind: each
    for each in (
        *(NAMESPACES, CRDS, SERVICE_ACCOUNTS, DEPLOYMENTS),
        *(ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS),
    )
}
"""What the manager's manifests consist of."""


def quiet(_: object) -> None:
    """Says nothing."""


@dataclass
class World:
    """Clusters below one folder: `virtual`, and as many physical ones as wanted, with so many nodes each.

    What is None is as it was the last time.
    """

    folder: Path
    clusters: int | None = None
    nodes: int | None = None
    real_kubernetes: bool = False
    say: Say = print
    """Told what is done, with the time that it took."""
    begin: Say = quiet
    """Told what is about to be done."""
    happened: Say = print
    """Told what nobody asked for: a cluster that ended, and is started again."""
    members: Members = field(init=False, repr=False)

    @property
    def home(self) -> WorldFolder:
        return WorldFolder(self.folder)

    def kubeconfig(self, cluster: str = VIRTUAL) -> Path:
        return self.folder / cluster / "kubeconfig"

    def client(self, name: str) -> Client:
        return opened(self.kubeconfig(name))

    # -- to run it

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Kept]:
        """Have everything at work for as long as the context lasts; nothing is left running then.

        Raises WorldFailed, AssetsMissing.
        """
        loop = asyncio.get_running_loop()
        is_new = not self.home.has_world()
        if self.real_kubernetes:
            find_assets(os.environ, COMPONENTS)
        kept = self.home.wanted(self.clusters, self.nodes, real_kubernetes=self.real_kubernetes)
        self.members = Members(self.folder, self.happened)
        loop.add_signal_handler(WELCOME, self.welcome)
        try:
            with self.home.claimed(kept):
                async with self.running():
                    await self.start(kept, is_new=is_new)
                    yield kept
        finally:
            loop.remove_signal_handler(WELCOME)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have members, and say how long it took to end them."""
        ending = 0.0
        try:
            async with self.members.running():
                try:
                    yield
                finally:
                    self.begin("stopping")
                    ending = time.monotonic()
        finally:
            self.done("stopping", ending)

    async def start(self, kept: Kept, *, is_new: bool) -> None:
        began = datetime.now(UTC)
        physical = [f"cluster-{number}" for number in range(1, kept.clusters + 1)]
        with self.step(f"{1 + kept.clusters} clusters with {kept.clusters * kept.nodes} simulated nodes"):
            self.spawn(VIRTUAL, "--process-node")
            for name in physical:
                self.spawn(name, "--nodes", str(kept.nodes))
            self.welcome()
            for name in list(self.members.found):
                await self.members.wait_for_answer(name)
        async with self.client(VIRTUAL) as virtual:
            with self.step("Tapestry's manager"):
                await install(virtual)
            joined = [
                name for number, name in enumerate(physical) if number >= kept.joined or await binds(virtual, name)
            ]
            for name in joined:
                with self.step(f"{name} joins"):
                    await self.join(virtual, name)
            self.home.write(replace(kept, joined=kept.clusters))
            with self.step("virtual nodes"):
                found = await wait_for_nodes(virtual, len(joined) * kept.nodes, began)
        if found < len(joined) * kept.nodes:
            text = f"{found} of {len(joined) * kept.nodes} virtual nodes are ready; `tapestry status` says more"
            if is_new:
                raise WorldFailed(text)
            self.say(text)

    def spawn(self, name: str, *flags: str) -> None:
        """Have a process for a cluster of this world."""
        self.members.spawn(name, *flags, *(["--real-kubernetes"] if self.real_kubernetes else []))

    def welcome(self) -> None:
        """Start the clusters that have a folder here and do not run, and end those that are to be removed."""
        for folder in sorted(each for each in self.folder.iterdir() if each.is_dir()):
            if (folder / REMOVED).exists():
                self.members.remove(folder.name)
            elif folder.name not in self.members.found:
                self.spawn(folder.name)

    async def join(self, virtual: Client, name: str) -> None:
        access = load([self.kubeconfig(name)], environ={})
        async with self.client(name) as physical:
            above, below = Cluster("virtual", virtual, quiet), Cluster("physical", physical, quiet)
            await join(
                Plan(name, name, offer=Offer()), above, below, access, connect=HttpTransport, now=datetime.now(UTC)
            )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.begin(what)
        started = time.monotonic()
        yield
        self.done(what, started)

    def done(self, what: str, started: float) -> None:
        self.say(f"  {time.monotonic() - started:5.1f} s  {what}")

    # -- of one that somebody else runs

    def running_pid(self) -> int | None:
        """The process that runs the world, if one does."""
        return self.home.running_pid()

    def stop_running(self) -> bool:
        """Have the process that runs the world end it; whether there was one."""
        pid = self.running_pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        self.home.wait_until_free()
        return True

    async def wait_for_answer(self, name: str) -> None:
        """Return when a cluster answers."""
        progress = Progress(ANSWERING, ANSWERING)
        while not await answers(self.kubeconfig(name)):
            if progress.stalls(name):
                raise WorldFailed(f"{name} does not answer; its log is {self.folder / name / 'log'}")
            await asyncio.sleep(LOOK)

    async def silent_clusters(self) -> list[str]:
        """The clusters in the folder that do not answer."""
        files = sorted(self.folder.glob("*/kubeconfig"))
        async with asyncio.TaskGroup() as group:
            asked = [(file.parent.name, group.create_task(answers(file, GLANCE))) for file in files]
        return [name for name, task in asked if not task.result()]


async def install(virtual: Client) -> None:
    """The manager and what it needs, as `tapestry manifests` has it, for one process of it."""
    for obj in installation(replicas=1):
        resource = INSTALLED[obj["kind"]]
        wanted = with_settings(obj) if resource == DEPLOYMENTS else obj
        await virtual.apply(resource, wanted, manager="tapestry-up", force=True)
        if resource == CRDS:
            await wait_for(virtual, CRDS, name_of(obj), until=is_established, timeout=ESTABLISHING)


async def binds(virtual: Client, name: str) -> bool:
    """Whether a cluster has joined, and has not left."""
    return await virtual.find(CLUSTER_BINDINGS, name) is not None


def is_established(definition: Object | None) -> bool:
    return definition is not None and is_true(definition, "Established")


def with_settings(manager: Object) -> Object:
    """The manager's Deployment with the settings of a world on one machine.

    Each syncer has one replica, for there is but one machine to fail.  The clusters are on loopback addresses.
    """
    template = manager["spec"]["template"]
    settings = {"TAPESTRY_SYNCER_REPLICAS": "1", "TAPESTRY_ALLOW_LOOPBACK": "true"}
    env = [{"name": name, "value": value} for name, value in settings.items()]
    containers = [{**each, "env": [*each.get("env", ()), *env]} for each in template["spec"]["containers"]]
    return with_value(manager, ("spec", "template", "spec", "containers"), containers)
