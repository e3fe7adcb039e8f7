"""A pod whose containers are processes: who starts when, who is started again, and how it all ends.

Init containers run one after the other, sidecars beside whatever comes after them, the containers all at once.  One
that ends is started again as the pod's restart policy says: the first time at once, then after pauses that grow.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

import aiohttp

from tapestry.kube.objects import Object, uid_of, value_at
from tapestry.kube.pods import is_sidecar
from tapestry.kube.times import parse_time
from tapestry.local.children import child
from tapestry.local.commands import Launch
from tapestry.local.container_logs import Log
from tapestry.local.probing import Prober, verdicts
from tapestry.local.statuses import (
    Containers,
    container_status,
    exit_code,
    restart_policy,
    runs,
    terminated,
    waiting,
)

FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
FORGIVEN_AFTER = 600.0
"""Seconds that a container has to run for its pauses to begin anew."""
HURRY = 5.0
"""Seconds for processes to end when we have to."""
KILLED, NOT_STARTED = 137, 128
GRACE = 30

Said = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Records an event of the pod."""


class Launching(Protocol):
    """What to run, as things stand."""

    def launch(self, container: Object) -> Launch: ...

    def probe(self, container: Object, command: Sequence[str]) -> Launch: ...

    def log(self, container: str, run: int) -> Path: ...


@dataclass
class Container:
    """What is known of one container."""

    spec: Object
    uid: str
    state: Object = field(default_factory=lambda: waiting("ContainerCreating"))
    restarts: int = 0
    last: Object | None = None
    started: bool = False
    ready: bool = False
    pid: int = 0
    log: Log | None = None
    ill: asyncio.Event = field(default_factory=asyncio.Event)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it started, or will not."""

    @property
    def name(self) -> str:
        name: str = self.spec["name"]
        return name

    def status(self) -> Object:
        identity = f"process://{self.uid}/{self.name}/{self.restarts}"
        said = container_status(self.spec, self.state, identity, self.restarts, self.last, ready=self.ready)
        return {**said, "started": self.started}

    def resume(self, before: Object | None, now: datetime) -> None:
        """Take up what was said of it by a kubelet that is no more: what ran then does not run any more."""
        if before is None:
            return
        self.restarts, self.last = before["restartCount"], before.get("lastState") or None
        if exit_code(before) is not None:
            self.state = before["state"]
        elif began := value_at(before, "state", "running", "startedAt"):
            self.state = terminated(KILLED, parse_time(began), now, "it ended with the process that ran it")


@dataclass
class Supervision:
    """Runs a pod.  `run` ends when nothing of it runs any more, and will not."""

    pod: Object
    address: str
    launching: Launching
    session: aiohttp.ClientSession
    now: Callable[[], datetime]
    changed: Callable[[], None]
    said: Said
    containers: dict[str, Container] = field(init=False)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    grace: float = field(init=False)
    over: bool = False

    def __post_init__(self) -> None:
        spec, status = self.pod["spec"], self.pod.get("status") or {}
        self.grace = spec.get("terminationGracePeriodSeconds", GRACE)
        self.containers = {}
        for specs, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
            before = {each["name"]: each for each in status.get(statuses) or ()}
            for each in spec.get(specs) or ():
                container = Container(each, uid_of(self.pod))
                container.resume(before.get(each["name"]), self.now())
                self.containers[each["name"]] = container

    def stop(self, grace: float) -> None:
        """Ask all containers to end, within so many seconds; the second call can only shorten them."""
        self.grace = min(grace, self.grace) if self.stopping.is_set() else grace
        self.stopping.set()

    def report(self) -> Containers:
        def of(field: str) -> list[Object]:
            return [self.containers[each["name"]].status() for each in self.pod["spec"].get(field) or ()]

        return Containers(of("containers"), of("initContainers"))

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                await self._run(group)
        finally:
            self.over = True
            self.changed()

    async def _run(self, group: asyncio.TaskGroup) -> None:
        sidecars, policy = [], restart_policy(self.pod)
        for spec in self.pod["spec"].get("initContainers") or ():
            container = self.containers[spec["name"]]
            if is_sidecar(spec):
                sidecars.append(group.create_task(self.keep(container, "Always")))
                await container.up.wait()
            elif await self.keep(container, "Never" if policy == "Never" else "OnFailure") != 0:
                break
        else:
            main = [self.containers[each["name"]] for each in self.pod["spec"]["containers"]]
            await asyncio.wait([group.create_task(self.keep(each, policy)) for each in main])
        self.stopping.set()  # nobody is left for sidecars to help
        if sidecars:
            await asyncio.wait(sidecars)

    async def keep(self, container: Container, policy: str) -> int:
        """Have a container run until it is not to be started again; what it ended with last."""
        failures = 0
        while not self.stopping.is_set():
            code = exit_code({"state": container.state})
            if code is not None:
                if policy == "Never" or (policy == "OnFailure" and code == 0):
                    break
                await self.pause(container, failures)
                if self.stopping.is_set():
                    break
            began = self.now()
            await self.once(container)
            lasted = (self.now() - began).total_seconds()
            failures = failures + 1 if lasted < FORGIVEN_AFTER else 1
        container.up.set()
        code = exit_code({"state": container.state})
        if code is None:  # it never ran
            container.state, code = terminated(KILLED, self.now(), self.now()), KILLED
        return code

    async def pause(self, container: Container, failures: int) -> None:
        """Wait before another run; what the last one came to is history from now on."""
        container.last = container.state
        if failures > 1:
            seconds = min(FIRST_PAUSE * 2 ** (failures - 2), LONGEST_PAUSE)
            message = f"back-off {seconds:g}s restarting failed container={container.name}"
            container.state = waiting("CrashLoopBackOff", message)
            self.said("Warning", "BackOff", message)
            self.changed()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), seconds)
        if self.stopping.is_set():
            container.state = container.last

    async def once(self, container: Container) -> None:
        """One run of a container, from its start to its end."""
        began = self.now()
        container.restarts += container.last is not None
        container.ill.clear()
        container.log = Log(self.launching.log(container.name, container.restarts), self.now)
        code, message = NOT_STARTED, ""
        try:
            launch = self.launching.launch(container.spec)
            async with child(launch.command, launch.environment, launch.folder, container.log.write) as running:
                container.pid, container.state = running.pid, runs(began)
                self.said("Normal", "Started", f"Started container {container.name}")
                self.changed()
                try:
                    await self.attend(container, running.ended)
                    await running.stop(self.grace)
                except asyncio.CancelledError:
                    await running.stop(min(self.grace, HURRY))
                    raise
                finally:
                    container.started = container.ready = False
                code = await running.wait() if running.ended.done() else KILLED
        except OSError as error:
            message = str(error)
            self.said("Warning", "Failed", f"Error: {message}")
        finally:
            container.log.close()
            container.pid = 0
            container.state = terminated(code, began, self.now(), message)
            self.changed()

    async def attend(self, container: Container, ended: asyncio.Future[None]) -> None:
        """Probe the container until it has ended, or has to."""
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self.probe(container))
            reasons = [group.create_task(set_(each)) for each in (self.stopping, container.ill)]
            await asyncio.wait([ended, *reasons], return_when=asyncio.FIRST_COMPLETED)
            for task in (probing, *reasons):
                task.cancel()
        if not ended.done():
            self.said("Normal", "Killing", f"Stopping container {container.name}")

    async def probe(self, container: Container) -> None:
        spec = container.spec
        ports = {each["name"]: each["containerPort"] for each in spec.get("ports") or () if "name" in each}
        prober = Prober(self.session, self.address, ports, lambda command: self.launching.probe(spec, command))

        async def found(kind: str) -> str | None:
            why = await prober.attempt(spec[f"{kind.lower()}Probe"])
            if why is not None:
                self.said("Warning", "Unhealthy", f"{kind} probe failed: {why}")
            return why

        if startup := spec.get("startupProbe"):
            async with aclosing(verdicts(startup, lambda: found("Startup"))) as opinions:
                if not await anext(opinions):
                    container.ill.set()
                    return
        container.started, container.ready = True, not spec.get("readinessProbe")
        container.up.set()
        self.changed()
        async with asyncio.TaskGroup() as group:
            if liveness := spec.get("livenessProbe"):
                group.create_task(self.live(container, verdicts(liveness, lambda: found("Liveness"))))
            if readiness := spec.get("readinessProbe"):
                group.create_task(self.serve(container, verdicts(readiness, lambda: found("Readiness"), eager=True)))

    async def live(self, container: Container, opinions: AsyncIterator[bool]) -> None:
        async for well in opinions:
            if not well:
                container.ill.set()

    async def serve(self, container: Container, opinions: AsyncIterator[bool]) -> None:
        async for container.ready in opinions:
            self.changed()


async def set_(event: asyncio.Event) -> None:
    await event.wait()
