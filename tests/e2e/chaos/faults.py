"""Faults: what they are, how they follow each other, and how long it takes until all is well after each.

A fault hits one binding: its processes, its way to the physical cluster, or the way of one process to the virtual one.
At its end a new pod is bound there.  The time until that pod runs, as the virtual cluster sees it, is the time to heal;
seconds in which another fault of the same binding was under way do not count, for nobody heals then.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tapestry.kube.objects import name_of, object_named
from tapestry.kube.resources import PODS

from ...integration.lending import Lending
from .churn import a_pod
from .gates import Gate
from .replicas import Replica
from .witness import Witness, phase_of

EVERY = 5.0
"""Seconds between the beginnings of two faults."""
LASTING = (1.0, 4.0)
PROBE = "probe"
PATIENCE = 120.0
"""Seconds after which a binding that has not healed is given up."""


@dataclass
class Target:
    """A binding under fire."""

    site: Lending
    below: Gate
    replicas: Sequence[Replica]
    nodes: Sequence[str]
    """Virtual nodes that are never closed."""
    ailing: int = 0
    """Of how many faults it has not healed yet."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When faults began and ended; of one that is under way the end is yet to come, and infinite."""


@contextmanager
def killed(target: Target, rng: random.Random) -> Iterator[None]:
    rng.choice(target.replicas).signal(signal.SIGKILL)
    yield


@contextmanager
def asked_to_go(target: Target, rng: random.Random) -> Iterator[None]:
    rng.choice(target.replicas).signal(signal.SIGTERM)
    yield


@contextmanager
def stopped(target: Target, rng: random.Random) -> Iterator[None]:
    replica = rng.choice(target.replicas)
    replica.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        replica.signal(signal.SIGCONT)


@contextmanager
def cut(gate: Gate) -> Iterator[None]:
    gate.cut()
    yield


@contextmanager
def reset(gate: Gate) -> Iterator[None]:
    gate.reset()
    yield


Way = Callable[[Gate], AbstractContextManager[None]]
WAYS: dict[str, Way] = {
    "silence": lambda gate: gate.silent(broken=False),
    "silence, then broken connections": lambda gate: gate.silent(broken=True),
    "one second late": lambda gate: gate.slow(),
    "429": lambda gate: gate.refusing(429),
    "500": lambda gate: gate.refusing(500),
    "500 for what was done": lambda gate: gate.spoiling(),
    "410": lambda gate: gate.forgetting(),
    "watches cut": cut,
    "connections reset": reset,
}
PROCESSES = {"killed": killed, "asked to go": asked_to_go, "stopped": stopped}
MOMENTARY = frozenset({"watches cut", "connections reset", "killed", "asked to go"})
"""They are over when they begin."""


@dataclass(frozen=True)
class Fault:
    name: str
    seconds: float
    begin: Callable[[Target, random.Random], AbstractContextManager[None]]


def faults(rng: random.Random) -> Iterator[Fault]:
    """Without end; each kind comes once before any comes again."""
    kinds = [*PROCESSES, *WAYS]
    while True:
        rng.shuffle(kinds)
        for kind in kinds:
            seconds = 0.0 if kind in MOMENTARY else rng.uniform(*LASTING)
            if kind in PROCESSES:
                # Some are stopped for long enough that others have to take over.
                yield Fault(kind, 3 * seconds, PROCESSES[kind])
            else:
                side = rng.choice(("above", "below"))
                yield Fault(f"{kind} {side}", seconds, partial(on_the_way, WAYS[kind], side))


def on_the_way(way: Way, side: str, target: Target, rng: random.Random) -> AbstractContextManager[None]:
    """A fault on the way to the physical cluster, or on that of one replica to the virtual one."""
    return way(target.below if side == "below" else rng.choice(target.replicas).gate)


@dataclass
class Storm:
    """Has faults happen, and measures what comes after each."""

    targets: Sequence[Target]
    witness: Witness
    rng: random.Random
    story: Path
    """A file that gets what was done when, for whoever looks for the cause of something."""
    healed: list[tuple[float, str]] = field(default_factory=list)
    """Seconds, and after what."""

    async def rage(self, count: int) -> None:
        """That many faults, one after the other, though some last until the next; returns when all have healed.

        Each hits a binding that has healed from those before, if there is one.
        """
        coming = faults(self.rng)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                target = min(self.targets, key=lambda each: (each.ailing, each.spans[-1:]))
                group.create_task(self.strike(number, next(coming), target))
                await asyncio.sleep(EVERY)

    async def strike(self, number: int, fault: Fault, target: Target) -> None:
        target.ailing += 1
        self.tell(f"{number} {target.site.name} {fault.name}, {fault.seconds:.1f} s")
        target.spans.append((time.monotonic(), float("inf")))
        place = len(target.spans) - 1
        with fault.begin(target, self.rng):
            await asyncio.sleep(fault.seconds)
        ended = time.monotonic()
        target.spans[place] = (target.spans[place][0], ended)
        healed = await self.healed_after(number, target)
        target.ailing -= 1
        seconds = healed - ended - overlap(target.spans, ended, healed)
        self.healed.append((seconds, fault.name))
        self.tell(f"{number} {target.site.name} healed in {seconds:.1f} s")

    async def healed_after(self, number: int, target: Target) -> float:
        """When a pod that was bound now ran; never, where that took too long."""
        name = f"{PROBE}-{number}"
        pod = await target.site.virtual.create(PODS, a_pod(name, self.rng.choice(target.nodes), PROBE, 0))
        ran = await self.witness.wait_until(lambda: self.runs(f"default/{name}"), PATIENCE)
        healed = time.monotonic() if ran else float("inf")
        await target.site.virtual.delete(PODS, object_named(name_of(pod), "default"))
        return healed

    def runs(self, key: str) -> bool:
        pod = self.witness.above.store.get(key)
        return pod is not None and phase_of(pod) == "Running"

    def tell(self, what: str) -> None:
        with self.story.open("a") as story:
            story.write(f"{datetime.now(UTC):%H:%M:%S.%f} {what}\n")

    def healed_within(self, share: float) -> float:
        """The seconds within which so large a share of all was healed."""
        seconds = sorted(each for each, _ in self.healed)
        return seconds[min(int(len(seconds) * share), len(seconds) - 1)]


def overlap(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """How many of the seconds from `begin` to `end` lie in one of the spans."""
    seconds, reached = 0.0, begin
    for since, until in sorted(spans):
        since, until = max(since, reached), min(until, end)
        if until > since:
            seconds, reached = seconds + until - since, until
    return seconds
