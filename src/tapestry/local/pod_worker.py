"""Lifecycle of a pod whose containers are processes: start order, restarts and termination.

Init containers run one after the other, sidecars alongside everything after them, and the containers in parallel.  A
container that ends is restarted according to the restart policy: the first time at once, then with growing backoff.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

import aiohttp

from tapestry.kube.objects import Object, name_of, uid_of, value_at
from tapestry.kube.pods import containers_of, is_sidecar
from tapestry.kube.times import parse_time
from tapestry.local.container_commands import Launch
from tapestry.local.container_logs import ContainerLog
from tapestry.local.container_processes import PodEnvironment, RunningContainer, container_process, start_command
from tapestry.local.pod_sandbox import Endpoint, PodNetwork, PodSandbox, pod_sandbox
from tapestry.local.probes import Prober, probe_results
from tapestry.local.statuses import (
    ContainerStatuses,
    container_status,
    exit_code,
    restart_policy,
    running_state,
    terminated_state,
    waiting_state,
)
from tapestry.process.child_processes import child

MIN_BACKOFF, MAX_BACKOFF = 10.0, 300.0
BACKOFF_RESET_SECONDS = 600.0
"""Seconds that a container must run to reset its backoff."""
SHUTDOWN_GRACE = 5.0
"""Seconds for processes to end when this process stops."""
SIGKILL_EXIT_CODE, START_FAILED_CODE = 137, 128
DEFAULT_GRACE = 30
SANDBOX_RETRY_SECONDS = 2.0
MAX_COMMAND_OUTPUT = 10 << 10
"""Bytes of the output of a probe that are kept."""

RecordEvent = Callable[[Literal["Normal", "Warning"], str, str], None]
"""Record an event of the pod."""


class Launcher(Protocol):
    """Source of the commands, log files and namespaces of containers."""

    def launch(self, container: Object) -> Launch: ...

    def isolated_environment(self, sandbox: PodSandbox) -> PodEnvironment: ...

    def api_servers(self) -> Sequence[Endpoint]: ...

    def probe(self, container: Object, command: Sequence[str]) -> Launch: ...

    def log(self, container: str, run: int) -> Path: ...


@dataclass
class Container:
    spec: Object
    uid: str
    state: Object = field(default_factory=lambda: waiting_state("ContainerCreating"))
    restarts: int = 0
    last_state: Object | None = None
    started: bool = False
    ready: bool = False
    running: RunningContainer | None = None
    log: ContainerLog | None = None
    unhealthy: asyncio.Event = field(default_factory=asyncio.Event)
    started_or_failed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has started, or will not start."""

    @property
    def name(self) -> str:
        name: str = self.spec["name"]
        return name

    def status(self) -> Object:
        identity = f"process://{self.uid}/{self.name}/{self.restarts}"
        status = container_status(self.spec, self.state, identity, self.restarts, self.last_state, ready=self.ready)
        return {**status, "started": self.started}

    def resume(self, before: Object | None, now: datetime) -> None:
        """Continue from the last reported status; a container that ran then has ended since."""
        if before is None:
            return
        self.restarts, self.last_state = before["restartCount"], before.get("lastState") or None
        if exit_code(before) is not None:
            self.state = before["state"]
        elif began := value_at(before, "state", "running", "startedAt"):
            self.state = terminated_state(
                SIGKILL_EXIT_CODE, parse_time(began), now, "it ended together with its kubelet process"
            )


@dataclass
class PodWorker:
    """Run a pod.  `run` returns when nothing of it runs and nothing will be restarted."""

    pod: Object
    address: str
    launcher: Launcher
    session: aiohttp.ClientSession
    now: Callable[[], datetime]
    on_change: Callable[[], None]
    record_event: RecordEvent
    isolated: bool = False
    """Use of Linux namespaces for the containers."""
    environment: PodEnvironment | None = None
    containers: dict[str, Container] = field(init=False)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    grace: float = field(init=False)
    is_done: bool = False
    _group: asyncio.TaskGroup | None = None

    def __post_init__(self) -> None:
        spec, status = self.pod["spec"], self.pod.get("status") or {}
        self.grace = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE)
        self.containers = {}
        for specs, statuses in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
            before = {each["name"]: each for each in status.get(statuses) or ()}
            for each in spec.get(specs) or ():
                container = Container(each, uid_of(self.pod))
                container.resume(before.get(each["name"]), self.now())
                self.containers[each["name"]] = container

    def start_ephemeral(self, spec: Object, rejection: str | None) -> None:
        """Start an ephemeral container; it runs once.  A second call for the same container does nothing."""
        if spec["name"] in self.containers or self._group is None or self.stopping.is_set():
            return
        container = Container(spec, uid_of(self.pod))
        statuses = value_at(self.pod, "status", "ephemeralContainerStatuses", default=())
        container.resume(next((each for each in statuses if each["name"] == spec["name"]), None), self.now())
        self.containers[spec["name"]] = container
        if rejection is not None:
            container.state = waiting_state("Refused", rejection)
            self.record_event("Warning", "Refused", rejection)
        elif exit_code({"state": container.state}) is None:
            self._group.create_task(self.run_once(container))

    def stop(self, grace: float) -> None:
        """Stop all containers within `grace` seconds; a second call can only shorten the time."""
        self.grace = min(grace, self.grace) if self.stopping.is_set() else grace
        self.stopping.set()

    def container_statuses(self) -> ContainerStatuses:
        def statuses_of(field: str) -> list[Object]:
            specs = [each for each in self.pod["spec"].get(field) or () if each["name"] in self.containers]
            return [self.containers[each["name"]].status() for each in specs]

        return ContainerStatuses(*map(statuses_of, ("containers", "initContainers", "ephemeralContainers")))

    async def run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self.isolated:
                    await self.create_sandbox(stack)
                async with asyncio.TaskGroup() as self._group:
                    await self._run(self._group)
        finally:
            self._group = None
            self.is_done = True
            self.on_change()

    async def create_sandbox(self, stack: AsyncExitStack) -> None:
        """Create the namespaces of the pod until the stack is closed; try again after a failure."""
        hostname = self.pod["spec"].get("hostname") or name_of(self.pod)
        user = value_at(self.pod, "spec", "securityContext", "runAsUser")
        shares_pids = bool(self.pod["spec"].get("shareProcessNamespace"))
        while not self.stopping.is_set():
            try:
                sandbox = await stack.enter_async_context(pod_sandbox(hostname, user=user, shares_pids=shares_pids))
            except OSError as error:
                self.record_event("Warning", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), SANDBOX_RETRY_SECONDS)
                continue
            network = PodNetwork(sandbox, self.address, await stack.enter_async_context(asyncio.TaskGroup()))
            stack.callback(network.close)
            failures = await network.serve_ports(declared_ports(self.pod))
            failures += await network.allow_servers(self.launcher.api_servers())
            for failure in failures:
                self.record_event("Warning", "PortNotAvailable", f"Failed to listen on {failure}")
            self.environment = self.launcher.isolated_environment(sandbox)
            return

    async def _run(self, group: asyncio.TaskGroup) -> None:
        sidecars, policy = [], restart_policy(self.pod)
        for spec in self.pod["spec"].get("initContainers") or ():
            container = self.containers[spec["name"]]
            if is_sidecar(spec):
                sidecars.append(group.create_task(self.run_with_restarts(container, "Always")))
                await container.started_or_failed.wait()
            elif await self.run_with_restarts(container, "Never" if policy == "Never" else "OnFailure") != 0:
                break
        else:
            main = [self.containers[each["name"]] for each in self.pod["spec"]["containers"]]
            await asyncio.wait([group.create_task(self.run_with_restarts(each, policy)) for each in main])
        self.stopping.set()  # the sidecars are no longer needed
        if sidecars:
            await asyncio.wait(sidecars)

    async def run_with_restarts(self, container: Container, policy: str) -> int:
        """Run a container until it is not restarted any more; return its last exit code."""
        failures = 0
        while not self.stopping.is_set():
            code = exit_code({"state": container.state})
            if code is not None:
                if policy == "Never" or (policy == "OnFailure" and code == 0):
                    break
                await self.back_off(container, failures)
                if self.stopping.is_set():
                    break
            began = self.now()
            await self.run_once(container)
            duration = (self.now() - began).total_seconds()
            failures = failures + 1 if duration < BACKOFF_RESET_SECONDS else 1
        container.started_or_failed.set()
        code = exit_code({"state": container.state})
        if code is None:  # it never ran
            container.state, code = terminated_state(SIGKILL_EXIT_CODE, self.now(), self.now()), SIGKILL_EXIT_CODE
        return code

    async def back_off(self, container: Container, failures: int) -> None:
        """Wait before the next run; the last result becomes the last state."""
        container.last_state = container.state
        if failures > 1:
            seconds = min(MIN_BACKOFF * 2 ** (failures - 2), MAX_BACKOFF)
            message = f"back-off {seconds:g}s restarting failed container={container.name}"
            container.state = waiting_state("CrashLoopBackOff", message)
            self.record_event("Warning", "BackOff", message)
            self.on_change()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), seconds)
        if self.stopping.is_set():
            container.state = container.last_state

    async def run_once(self, container: Container) -> None:
        began = self.now()
        container.restarts += container.last_state is not None
        container.unhealthy.clear()
        container.log = ContainerLog(self.launcher.log(container.name, container.restarts), self.now)
        code, message = START_FAILED_CODE, ""
        try:
            launch = self.launcher.launch(container.spec)
            target = self.target_namespace(container)
            async with container_process(launch, self.environment, container.log.write, target) as started:
                running = started.process
                container.running, container.state = started, running_state(began)
                self.record_event("Normal", "Started", f"Started container {container.name}")
                self.on_change()
                try:
                    await self.monitor(container, running.ended)
                    await running.stop(self.grace)
                except asyncio.CancelledError:
                    await running.stop(min(self.grace, SHUTDOWN_GRACE))
                    raise
                finally:
                    container.started = container.ready = False
                code = await running.wait() if running.ended.done() else SIGKILL_EXIT_CODE
        except OSError as error:
            message = str(error)
            self.record_event("Warning", "Failed", f"Error: {message}")
        finally:
            container.log.close()
            container.running = None
            container.state = terminated_state(code, began, self.now(), message)
            self.on_change()

    def target_namespace(self, container: Container) -> int | None:
        """Return the PID namespace that an ephemeral container joins.  Raise OSError if its target does not run."""
        target = container.spec.get("targetContainerName")
        if not target or self.environment is None:
            return None
        found = self.containers.get(target)
        if found is None or found.running is None:
            raise OSError(f"the target container {target} is not running")
        return found.running.namespaces[-1]

    async def monitor(self, container: Container, ended: asyncio.Future[None]) -> None:
        """Probe the container until it ends or has to be stopped."""
        async with asyncio.TaskGroup() as group:
            probe_task = group.create_task(self.probe(container))
            reasons = [group.create_task(wait_for_event(each)) for each in (self.stopping, container.unhealthy)]
            await asyncio.wait([ended, *reasons], return_when=asyncio.FIRST_COMPLETED)
            for task in (probe_task, *reasons):
                task.cancel()
        if not ended.done():
            self.record_event("Normal", "Killing", f"Stopping container {container.name}")

    async def probe(self, container: Container) -> None:
        spec = container.spec
        ports = {each["name"]: each["containerPort"] for each in spec.get("ports") or () if "name" in each}
        new_socket = self.environment.sandbox.new_socket if self.environment is not None else None

        async def run(command: Sequence[str]) -> tuple[int, bytes]:
            return await self.run_command(container, self.launcher.probe(spec, command))

        prober = Prober(self.session, self.address, ports, run, new_socket)

        async def attempt(kind: str) -> str | None:
            failure = await prober.attempt(spec[f"{kind.lower()}Probe"])
            if failure is not None:
                self.record_event("Warning", "Unhealthy", f"{kind} probe failed: {failure}")
            return failure

        if startup := spec.get("startupProbe"):
            async with aclosing(probe_results(startup, lambda: attempt("Startup"))) as results:
                if not await anext(results):
                    container.unhealthy.set()
                    return
        container.started, container.ready = True, not spec.get("readinessProbe")
        container.started_or_failed.set()
        self.on_change()
        async with asyncio.TaskGroup() as group:
            if liveness := spec.get("livenessProbe"):
                group.create_task(self.watch_liveness(container, probe_results(liveness, lambda: attempt("Liveness"))))
            if readiness := spec.get("readinessProbe"):
                group.create_task(
                    self.watch_readiness(container, probe_results(readiness, lambda: attempt("Readiness"), eager=True))
                )

    async def run_command(self, container: Container, launch: Launch) -> tuple[int, bytes]:
        """Run a command in the container; return its exit code and output.  Raise OSError."""
        output: list[bytes] = []
        if self.environment is None:
            async with child(launch.command, launch.environment, launch.folder, output.append) as running:
                code = await running.wait()
            return code, b"".join(output)
        if container.running is None:
            raise OSError("the container has ended")
        process = await start_command(container.running, launch, stdin=False, terminal=False, errors=False)
        try:
            while data := await process.read_stdout():
                output = [b"".join((*output, data))[:MAX_COMMAND_OUTPUT]]
            return await process.wait(), b"".join(output)
        finally:
            await process.close()

    async def watch_liveness(self, container: Container, results: AsyncIterator[bool]) -> None:
        async for healthy in results:
            if not healthy:
                container.unhealthy.set()

    async def watch_readiness(self, container: Container, results: AsyncIterator[bool]) -> None:
        async for container.ready in results:
            self.on_change()


def declared_ports(pod: Object) -> set[int]:
    """Return the TCP ports that the pod's containers declare."""
    ports = (port for each in containers_of(pod) for port in each.get("ports") or ())
    return {port["containerPort"] for port in ports if (port.get("protocol") or "TCP") == "TCP"}


async def wait_for_event(event: asyncio.Event) -> None:
    await event.wait()
