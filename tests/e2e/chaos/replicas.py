"""Processes of the syncer that are started again whenever they end, as a Deployment does."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...integration.lending import TAPESTRY
from .proxies import FaultProxy

ELECTION = {"LEASE_SECONDS": "10", "DEADLINE_SECONDS": "7", "RETRY_SECONDS": "2"}
"""A process that was killed says nothing: for a whole lease everybody waits for it."""
SSL_NOISE = "Fatal error on SSL protocol"
"""What uvloop says of a connection that is cut while it reads: as is done with all of them when the lead is lost."""
CRASH_PAUSE = 1.0
"""Seconds until one that ended by itself is started again."""
EXIT_SECONDS = 20.0


@dataclass
class Replica:
    """One `tapestry syncer`, which reaches the virtual cluster through a gate of its own."""

    binding: str
    proxy: FaultProxy
    kubeconfig: Path
    log: Path
    process: asyncio.subprocess.Process | None = None
    crashes: list[int] = field(default_factory=list)
    """Codes of those that ended and were not told to."""
    was_signalled: bool = False

    async def run(self) -> None:
        """Have one process after the other run until the last is told to end for good, which has to go well."""
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
        """Send it to the process; one that is about to be started again has nobody to hear it."""
        if self.process is not None and self.process.returncode is None:
            self.was_signalled = self.was_signalled or number in (signal.SIGKILL, signal.SIGTERM)
            self.process.send_signal(number)

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Ask the process to end; one that does not is killed, and that is a crash."""
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
    """All of them run, until they are asked to end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in replicas]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
