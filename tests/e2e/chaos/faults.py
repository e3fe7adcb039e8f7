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
from .observer import Observer, phase_of
from .proxies import FaultProxy
from .replicas import Replica

INTERVAL_SECONDS = 5.0
"""Seconds between the beginnings of two faults."""
DURATION_RANGE = (1.0, 4.0)
PROBE = "probe"
HEAL_TIMEOUT_SECONDS = 120.0
"""Seconds after which a binding that has not healed is given up."""


@dataclass
class Target:
    """A binding under fire."""

    site: Lending
    physical_proxy: FaultProxy
    replicas: Sequence[Replica]
    nodes: Sequence[str]
    """Virtual nodes that are never closed."""
    unhealed: int = 0
    """Of how many faults it has not healed yet."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """When faults began and ended; of one that is under way the end is yet to come, and infinite."""


@contextmanager
def killed(target: Target, rng: random.Random) -> Iterator[None]:
    rng.choice(target.replicas).signal(signal.SIGKILL)
    yield


@contextmanager
def terminated(target: Target, rng: random.Random) -> Iterator[None]:
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
def cut_watches(proxy: FaultProxy) -> Iterator[None]:
    proxy.cut_watches()
    yield


@contextmanager
def reset_connections(proxy: FaultProxy) -> Iterator[None]:
    proxy.reset_connections()
    yield


NetworkFault = Callable[[FaultProxy], AbstractContextManager[None]]
NETWORK_FAULTS: dict[str, NetworkFault] = {
    "silence": lambda proxy: proxy.blocked(broken=False),
    "silence, then broken connections": lambda proxy: proxy.blocked(broken=True),
    "one second late": lambda proxy: proxy.slow(),
    "429": lambda proxy: proxy.failing(429),
    "500": lambda proxy: proxy.failing(500),
    "500 for what was done": lambda proxy: proxy.hiding_success(),
    "410": lambda proxy: proxy.expiring(),
    "watches cut": cut_watches,
    "connections reset": reset_connections,
}
PROCESS_FAULTS = {"killed": killed, "asked to go": terminated, "stopped": stopped}
MOMENTARY = frozenset({"watches cut", "connections reset", "killed", "asked to go"})
"""They are over when they begin."""


@dataclass(frozen=True)
class Fault:
    name: str
    seconds: float
    begin: Callable[[Target, random.Random], AbstractContextManager[None]]


def faults(rng: random.Random) -> Iterator[Fault]:
    """Without end; each kind comes once before any comes again."""
    kinds = [*PROCESS_FAULTS, *NETWORK_FAULTS]
    while True:
        rng.shuffle(kinds)
        for kind in kinds:
            seconds = 0.0 if kind in MOMENTARY else rng.uniform(*DURATION_RANGE)
            if kind in PROCESS_FAULTS:
                # Some are stopped for long enough that others have to take over.
                yield Fault(kind, 3 * seconds, PROCESS_FAULTS[kind])
            else:
                side = rng.choice(("above", "below"))
                yield Fault(f"{kind} {side}", seconds, partial(network_fault, NETWORK_FAULTS[kind], side))


def network_fault(fault: NetworkFault, side: str, target: Target, rng: random.Random) -> AbstractContextManager[None]:
    """A fault on the way to the physical cluster, or on that of one replica to the virtual one."""
    return fault(target.physical_proxy if side == "below" else rng.choice(target.replicas).proxy)


@dataclass
class FaultInjector:
    """Has faults happen, and measures what comes after each."""

    targets: Sequence[Target]
    observer: Observer
    rng: random.Random
    log_file: Path
    """A file that gets what was done when, for whoever looks for the cause of something."""
    healed: list[tuple[float, str]] = field(default_factory=list)
    """Seconds, and after what."""

    async def run(self, count: int) -> None:
        """That many faults, one after the other, though some last until the next; returns when all have healed.

        Each hits a binding that has healed from those before, if there is one.
        """
        upcoming = faults(self.rng)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                target = min(self.targets, key=lambda each: (each.unhealed, each.spans[-1:]))
                group.create_task(self.inject(number, next(upcoming), target))
                await asyncio.sleep(INTERVAL_SECONDS)

    async def inject(self, number: int, fault: Fault, target: Target) -> None:
        target.unhealed += 1
        self.log(f"{number} {target.site.name} {fault.name}, {fault.seconds:.1f} s")
        target.spans.append((time.monotonic(), float("inf")))
        index = len(target.spans) - 1
        with fault.begin(target, self.rng):
            await asyncio.sleep(fault.seconds)
        ended = time.monotonic()
        target.spans[index] = (target.spans[index][0], ended)
        healed = await self.healed_after(number, target)
        target.unhealed -= 1
        seconds = healed - ended - overlap(target.spans, ended, healed)
        self.healed.append((seconds, fault.name))
        self.log(f"{number} {target.site.name} healed in {seconds:.1f} s")

    async def healed_after(self, number: int, target: Target) -> float:
        """When a pod that was bound now ran; never, where that took too long."""
        name = f"{PROBE}-{number}"
        pod = await target.site.virtual.create(PODS, a_pod(name, self.rng.choice(target.nodes), PROBE, 0))
        ran = await self.observer.wait_until(lambda: self.runs(f"default/{name}"), HEAL_TIMEOUT_SECONDS)
        healed = time.monotonic() if ran else float("inf")
        await target.site.virtual.delete(PODS, object_named(name_of(pod), "default"))
        return healed

    def runs(self, key: str) -> bool:
        pod = self.observer.above.store.get(key)
        return pod is not None and phase_of(pod) == "Running"

    def log(self, message: str) -> None:
        with self.log_file.open("a") as log_file:
            log_file.write(f"{datetime.now(UTC):%H:%M:%S.%f} {message}\n")

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
