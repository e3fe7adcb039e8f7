"""Syncer processes that are restarted whenever they end, as in a Deployment."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...integration.bound_clusters import TAPESTRY
from .proxies import FaultProxy

ELECTION = {"LEASE_SECONDS": "10", "DEADLINE_SECONDS": "7", "RETRY_SECONDS": "2"}
"""Short leases: after a kill, the other replicas wait until the lease expires."""
SSL_NOISE = "Fatal error on SSL protocol"
"""Message of uvloop for a connection that is closed while it reads, as happens on lost leadership."""
CRASH_PAUSE = 1.0
"""Seconds until a crashed process is restarted."""
EXIT_SECONDS = 20.0


@dataclass
class Replica:
    """One `tapestry syncer` that reaches the virtual cluster through its own proxy."""

    binding: str
    proxy: FaultProxy
    kubeconfig: Path
    log: Path
    process: asyncio.subprocess.Process | None = None
    crashes: list[int] = field(default_factory=list)
    """Exit codes of processes that ended without a signal from the test."""
    was_signalled: bool = False

    async def run(self) -> None:
        """Run one process after the other until cancelled. The last one must exit with code 0."""
        self.kubeconfig.write_text(self.proxy.kubeconfig)
        command = [str(TAPESTRY), "syncer", "--binding", self.binding, "--kubeconfig", str(self.kubeconfig)]
        command += ["--allow-loopback", "--metrics-bind-address", "", "--health-probe-bind-address", ""]
        election = {f"TAPESTRY_LEADER_ELECTION_{name}": value for name, value in ELECTION.items()}
        with self.log.open("ab") as log:
            while True:
                self.process = await asyncio.create_subprocess_exec(*command, env=os.environ | election, stderr=log)
                try:
                    code = await self.process.wait()
                except asyncio.CancelledError:
                    await self.end(self.process)
                    raise
                if not self.was_signalled:
                    self.crashes.append(code)
                    await asyncio.sleep(CRASH_PAUSE)
                self.was_signalled = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. It is lost while no process runs."""
        if self.process is not None and self.process.returncode is None:
            self.was_signalled = self.was_signalled or number in (signal.SIGKILL, signal.SIGTERM)
            self.process.send_signal(number)

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Terminate the process. If it does not end in time, kill it and count a crash."""
        try:
            process.terminate()
            async with asyncio.timeout(EXIT_SECONDS):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if code != 0:
            self.crashes.append(code)

    def tracebacks(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "Traceback" in line and SSL_NOISE not in line]


@asynccontextmanager
async def running_replicas(replicas: list[Replica]) -> AsyncIterator[None]:
    """Run all replicas; terminate them on exit."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
