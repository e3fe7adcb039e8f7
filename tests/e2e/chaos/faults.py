"""Fault injection, and measurement of the time to heal after each fault.

A fault affects one binding: its processes, its connection to the physical cluster, or the connection of one process to
the virtual cluster. When the fault ends, a new pod is bound to a node of the binding. The time to heal ends when the
virtual cluster shows that pod as running, excluding the seconds in which the binding had another fault.
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

from ...integration.bound_clusters import BoundClusters
from .churn import new_pod
from .observer import Observer, phase_of
from .proxies import FaultProxy
from .replicas import Replica

DURATION_RANGE = (1.0, 4.0)
PROBE = "probe"
HEAL_TIMEOUT_SECONDS = 120.0
"""Seconds after which a binding counts as never healed."""


@dataclass
class Target:
    """A binding that gets faults."""

    clusters: BoundClusters
    physical_proxy: FaultProxy
    replicas: Sequence[Replica]
    nodes: Sequence[str]
    """Virtual nodes whose windows never close."""
    unhealed: int = 0
    """Number of faults that have not healed yet."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each fault. The end is infinite while the fault lasts."""


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
PROCESS_FAULTS = {"killed": killed, "terminated": terminated, "stopped": stopped}
MOMENTARY = frozenset({"watches cut", "connections reset", "killed", "terminated"})
"""Faults without a duration."""


@dataclass(frozen=True)
class Fault:
    name: str
    seconds: float
    begin: Callable[[Target, random.Random], AbstractContextManager[None]]


def faults(rng: random.Random) -> Iterator[Fault]:
    """Yield faults endlessly. Each kind occurs once before any is repeated."""
    kinds = [*PROCESS_FAULTS, *NETWORK_FAULTS]
    while True:
        rng.shuffle(kinds)
        for kind in kinds:
            seconds = 0.0 if kind in MOMENTARY else rng.uniform(*DURATION_RANGE)
            if kind in PROCESS_FAULTS:
                # Some stops last long enough for another replica to take over.
                yield Fault(kind, 3 * seconds, PROCESS_FAULTS[kind])
            else:
                side = rng.choice(("above", "below"))
                yield Fault(f"{kind} {side}", seconds, partial(network_fault, NETWORK_FAULTS[kind], side))


def network_fault(fault: NetworkFault, side: str, target: Target, rng: random.Random) -> AbstractContextManager[None]:
    """Start a fault on the connection to the physical cluster, or of one replica to the virtual cluster."""
    return fault(target.physical_proxy if side == "below" else rng.choice(target.replicas).proxy)


@dataclass
class FaultInjector:
    """Inject faults and measure the time to heal after each."""

    targets: Sequence[Target]
    observer: Observer
    rng: random.Random
    interval_seconds: float
    """Seconds between the starts of two faults."""
    log_file: Path
    """Log of all faults with their times, for debugging."""
    healed: list[tuple[float, str]] = field(default_factory=list)
    """Seconds to heal, and the name of the fault."""

    async def run(self, count: int) -> None:
        """Inject `count` faults at a fixed interval and return when all have healed. Faults may overlap.

        Each fault affects a binding with the fewest unhealed faults.
        """
        upcoming = faults(self.rng)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                target = min(self.targets, key=lambda each: (each.unhealed, each.spans[-1:]))
                group.create_task(self.inject(number, next(upcoming), target))
                await asyncio.sleep(self.interval_seconds)

    async def inject(self, number: int, fault: Fault, target: Target) -> None:
        target.unhealed += 1
        self.log(f"{number} {target.clusters.name} {fault.name}, {fault.seconds:.1f} s")
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
        self.log(f"{number} {target.clusters.name} healed in {seconds:.1f} s")

    async def healed_after(self, number: int, target: Target) -> float:
        """Bind a pod now and return the time at which it ran; infinity after a timeout."""
        name = f"{PROBE}-{number}"
        pod = await target.clusters.virtual.create(PODS, new_pod(name, self.rng.choice(target.nodes), PROBE, 0))
        ran = await self.observer.wait_until(lambda: self.runs(f"default/{name}"), HEAL_TIMEOUT_SECONDS)
        healed = time.monotonic() if ran else float("inf")
        await target.clusters.virtual.delete(PODS, object_named(name_of(pod), "default"))
        return healed

    def runs(self, key: str) -> bool:
        pod = self.observer.above.store.get(key)
        return pod is not None and phase_of(pod) == "Running"

    def log(self, message: str) -> None:
        with self.log_file.open("a") as log_file:
            log_file.write(f"{datetime.now(UTC):%H:%M:%S.%f} {message}\n")

    def healed_within(self, share: float) -> float:
        """Return the seconds within which this share of the faults healed."""
        seconds = sorted(each for each, _ in self.healed)
        return seconds[min(int(len(seconds) * share), len(seconds) - 1)]


def overlap(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Return the number of seconds between `begin` and `end` that lie in one of the spans."""
    seconds, reached = 0.0, begin
    for since, until in sorted(spans):
        since, until = max(since, reached), min(until, end)
        if until > since:
            seconds, reached = seconds + until - since, until
    return seconds
