"""The story of Tapestry, which the README tells, played in a world of its own: every command is shown, and run.

A third cluster joins and lends half of what is idle on weeknights; a Job runs on all three; the owner of the third
wants it back at once, and gets it; the pods go on elsewhere, and it can be asked why.
"""

import asyncio
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapestry.local.world import TAPESTRY_PROGRAM, World, WorldError

STEP_TIMEOUT = 60.0
"""Seconds for a scene to come to its end."""
POLL_INTERVAL = 0.5
KUBECONFIG = ".tapestry/third/kubeconfig"
WEEKNIGHTS = "20:00-08:00 Mon,Tue,Wed,Thu,Fri"


@dataclass(frozen=True)
class DemoStep:
    """A sentence, and what somebody types then."""

    text: str
    commands: tuple[str, ...]
    expected_output: str = ""
    """What is to be seen at last: a pattern.  Until then the last command is typed again."""


STEPS = (
    DemoStep(
        "Two clusters have joined; they lend half of what is idle.",
        ("tapestry status",),
        expected_output=r"cluster-2 +Leasing +5 ",
    ),
    DemoStep(
        "A third one joins.  Its owner lends half of what is idle, on weeknights.",
        (
            "tapestry add third --nodes 5",
            f'tapestry join third --cluster-kubeconfig {KUBECONFIG} --lease 50% --window "{WEEKNIGHTS}"',
            "tapestry policies",
        ),
        expected_output=r"owner/third",
    ),
    DemoStep(
        "So as not to wait for the night, the owner lends all day.",
        (
            f"tapestry join third --cluster-kubeconfig {KUBECONFIG} --window always",
            "tapestry k wait clusterbinding/third --for condition=Leasing",
        ),
    ),
    DemoStep(
        "A Job of twenty pods; they run in all three clusters, as if these were one.",
        (
            "tapestry k create job work --image busybox --requests cpu=500m,memory=256Mi --completions 20 -- sleep 600",
            "tapestry k wait job/work --for 'jsonpath={.status.ready}=20'",
            "tapestry status",
        ),
        expected_output=r"third +Leasing +5 +[1-9]",
    ),
    DemoStep(
        "The owner wants all of it back, now: the kill switch, an annotation.  The pods go on elsewhere.",
        (
            f"tapestry k annotate namespace tapestry-leased tapestry.io/reclaim=now --kubeconfig {KUBECONFIG}",
            "tapestry k wait job/work --for 'jsonpath={.status.ready}=20'",
            "tapestry status",
        ),
        expected_output=r"third +Reclaimed +5 +0 ",
    ),
    DemoStep(
        "Why does it lend nothing any more?",
        ("tapestry explain node vnode-third-third-1",),
        expected_output="kill switch",
    ),
)


@dataclass(frozen=True)
class Demo:
    """Plays in `folder`, which is empty, and leaves nothing running."""

    folder: Path
    print_line: Callable[[str], None]
    pace: float
    """Seconds to read a sentence in."""

    async def run_steps(self) -> None:
        await self.print_text("A virtual cluster, and two physical ones.")
        self.print_line("$ tapestry up")
        async with World(self.folder / ".tapestry", report=self.print_line).run():
            for scene in STEPS:
                await self.print_text(scene.text)
                *first, last = scene.commands
                for command in first:
                    await self.type_command(command)
                await self.type_command(last, scene.expected_output)

    async def print_text(self, text: str) -> None:
        self.print_line(f"\n# {text}")
        await asyncio.sleep(self.pace)

    async def type_command(self, command: str, until: str = "") -> None:
        """Run a command as a person would, again until it shows what it should, and show what it says."""
        self.print_line(f"$ {command}")
        async with asyncio.timeout(STEP_TIMEOUT):
            shown = await asyncio.to_thread(self.run_command, command)
            while not re.search(until, shown):
                await asyncio.sleep(POLL_INTERVAL)
                shown = await asyncio.to_thread(self.run_command, command)
        self.print_line(shown)

    def run_command(self, command: str) -> str:
        """Run a command in this world, whatever cluster the person who watches works with."""
        path = os.pathsep.join([str(TAPESTRY_PROGRAM.parent), os.environ.get("PATH", os.defpath)])
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "KUBECONFIG": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise WorldError(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
        return done.stdout.rstrip()
