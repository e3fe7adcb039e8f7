"""Script of `tapestry demo`: every command is shown and run in a temporary world.

A third cluster joins and leases half of its idle capacity on weeknights.  A Job runs on all three clusters.  The owner
of the third cluster reclaims it at once, the pods continue elsewhere, and `explain` shows why.
"""

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapestry.local.world import TAPESTRY_PROGRAM, World, WorldError

STEP_TIMEOUT = 60.0
"""Seconds for a step to produce its expected output."""
POLL_INTERVAL = 0.5
KUBECONFIG = ".tapestry/third/kubeconfig"
WEEKNIGHTS = "20:00-08:00 Mon,Tue,Wed,Thu,Fri"


@dataclass(frozen=True)
class DemoStep:
    """A sentence and the commands that follow it."""

    text: str
    commands: tuple[str, ...]
    expected_output: str = ""
    """Pattern of the final output; the last command is repeated until it matches."""


STEPS = (
    DemoStep(
        "Two clusters have joined; they lend half of their idle capacity.",
        ("tapestry status",),
        expected_output=r"cluster-2 +Leasing +5 ",
    ),
    DemoStep(
        "A third cluster joins.  Its owner lends half of the idle capacity on weeknights.",
        (
            "tapestry add third --nodes 5",
            f'tapestry join third --cluster-kubeconfig {KUBECONFIG} --lease 50% --window "{WEEKNIGHTS}"',
            "tapestry policies",
        ),
        expected_output=r"owner/third",
    ),
    DemoStep(
        "To avoid waiting for the night, the owner lends all day.",
        (
            f"tapestry join third --cluster-kubeconfig {KUBECONFIG} --window always",
            "tapestry k wait clusterbinding/third --for condition=Leasing",
        ),
    ),
    DemoStep(
        "A Job of twenty pods runs in all three clusters as if they were one.",
        (
            "tapestry k create job work --image busybox --requests cpu=500m,memory=256Mi --completions 20 -- sleep 600",
            "tapestry k wait job/work --for 'jsonpath={.status.ready}=20'",
            "tapestry status",
        ),
        expected_output=r"third +Leasing +5 +[1-9]",
    ),
    DemoStep(
        "The owner reclaims everything now with the kill switch, an annotation.  The pods continue elsewhere.",
        (
            f"tapestry k annotate namespace tapestry-leased tapestry.io/reclaim=now --kubeconfig {KUBECONFIG}",
            "tapestry k wait job/work --for 'jsonpath={.status.ready}=20'",
            "tapestry status",
        ),
        expected_output=r"third +Reclaimed +5 +0 ",
    ),
    DemoStep(
        "Why does the cluster lend nothing any more?",
        ("tapestry explain node vnode-third-third-1",),
        expected_output="kill switch",
    ),
)


@dataclass(frozen=True)
class Demo:
    """Run the steps in the empty `folder` and leave nothing running."""

    folder: Path
    print_line: Callable[[str], None]
    pace: float
    """Seconds to pause after each sentence."""

    async def run_steps(self) -> None:
        await self.print_text("A virtual cluster and two physical clusters.")
        self.print_line("$ tapestry up")
        async with World(self.folder / ".tapestry", report=self.print_line).run():
            for step in STEPS:
                await self.print_text(step.text)
                *first, last = step.commands
                for command in first:
                    await self.type_command(command)
                await self.type_command(last, step.expected_output)

    async def print_text(self, text: str) -> None:
        self.print_line(f"\n# {text}")
        await asyncio.sleep(self.pace)

    async def type_command(self, command: str, until: str = "") -> None:
        """Print and run a command, repeated until its output matches; print the output."""
        self.print_line(f"$ {command}")
        async with asyncio.timeout(STEP_TIMEOUT):
            output = await asyncio.to_thread(self.run_command, command)
            while not re.search(until, output):
                await asyncio.sleep(POLL_INTERVAL)
                output = await asyncio.to_thread(self.run_command, command)
        self.print_line(output)

    def run_command(self, command: str) -> str:
        """Run a command in this world, independent of the user's KUBECONFIG."""
        path = os.pathsep.join([str(TAPESTRY_PROGRAM.parent), os.environ.get("PATH", os.defpath)])
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env={**os.environ, "PATH": path, "KUBECONFIG": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise WorldError(f"`{command}` exited with {done.returncode}:\n{done.stdout}")
        return done.stdout.rstrip()
