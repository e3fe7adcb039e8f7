"""The perturbation driver: a reconciler must reach the same final state after any single fault.

It first runs a scenario without faults, which gives the final state and the number of API calls.  Then it replays the
scenario once for every call and every disturbance: the process dies before or after the call, the request or its
response is lost, the server responds with a conflict, or the caches fall behind from that call on.  With several
clusters, the caches of all clusters, of the called one or of the others fall behind.  Disturbances that cannot differ
in their effect on a read are replayed once.  Each replay must reach the same state, except for times, versions, UIDs.

    perturb(Scenario("at", [AT.resource, PODS], setup, world)).check()

Everything runs on virtual time against the in-process API, so a few hundred replays take seconds.
"""

import asyncio
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import structs

from tapestry.client.client import Client
from tapestry.client.responses import ENCODER
from tapestry.client.transport import Request, Response, Stream, Transport
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.controller import Controller, Reconcile, Result
from tapestry.controller.manager import Manager
from tapestry.controller.testing.api import InProcessApi
from tapestry.controller.testing.clock import Spinning, run, running_clock
from tapestry.kube.errors import ApiError, Conflict, TransportError
from tapestry.kube.objects import Object, key_of
from tapestry.kube.resources import EVENTS, LEASES, Resource

STALE_SECONDS = 20
LIMIT_SECONDS = 24 * 3600.0
"""Limit of virtual seconds for one replay."""
# Limits after which a run counts as endless.  All are reached within seconds of real time.
MAX_RECONCILES = 10_000
"""Reconciles of one controller."""
MAX_RECONCILE_CALLS = 5_000
"""Equal calls in the reconciles of one key."""
MAX_CALLS = 20_000
"""Equal calls of a background task, which may send heartbeats, or of the world."""
MAX_LOOP_TURNS = 200_000
"""Iterations of the event loop."""
WORLD = "the world function"
ADVICE = "wait for a change instead of polling, or poll less often"
VOLATILE = frozenset({"resourceVersion", "generation", "observedGeneration", "managedFields"})
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


Rejection = Callable[[int, Request], ApiError | None]
RECONCILING: ContextVar[tuple[str, str] | None] = ContextVar("reconciling", default=None)
"""Controller and key of the reconcile that the running code is part of."""


class Disturbance(StrEnum):
    DIES_BEFORE = "the process dies before the call"
    DIES_AFTER = "the process dies after the call"
    LOSES_REQUEST = "the request is lost"
    LOSES_RESPONSE = "the response is lost"
    CONFLICTS = "the server responds with a conflict"
    FALLS_BEHIND = "the caches fall behind from the call on"
    FALLS_BEHIND_THERE = "the caches of the called cluster fall behind from the call on"
    FALLS_BEHIND_ELSEWHERE = "the caches of the other clusters fall behind from the call on"


ONE_SIDED = (Disturbance.FALLS_BEHIND_THERE, Disturbance.FALLS_BEHIND_ELSEWHERE)
ONLY_OF_WRITES = (Disturbance.DIES_AFTER, Disturbance.LOSES_RESPONSE, Disturbance.CONFLICTS)
"""On a call that only reads, these do the same as another one, or nothing."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A reconciler and the environment in which it runs."""

    name: str
    resources: Sequence[Resource]
    """Resources that the API serves, in addition to Events and Leases."""
    setup: Callable[..., Any]
    """Install the reconciler, as the setup function of a registry does.  With `others`, it is awaited as
    `setup(manager, *transports)`, with one transport for each of them."""
    world: Callable[..., Awaitable[None]]
    """Act as users, kubelets and other controllers.  Called with a client of the API and one of each of the `others`.
    Returns when it has observed the final state."""
    config: ManagerConfig = field(default_factory=ManagerConfig)
    others: Sequence[Sequence[Resource]] = ()
    """Resources that further clusters serve."""
    counts: Callable[[str], bool] = lambda _: True
    """Select the calls to disturb, by method and path.  Used to skip heartbeats, which are many and alike."""
    rejection: Rejection = lambda _cluster, _request: None
    """Return the error for a request of the process under test, by the number of the cluster."""
    is_plane: bool = False
    """True if the first cluster is the plane of a tenant, and the process under test is its syncer."""


@dataclass(frozen=True, slots=True)
class Failure:
    disturbance: Disturbance
    call: int
    what: str

    def __str__(self) -> str:
        return f"call {self.call}, {self.disturbance}: {self.what}"


@dataclass(frozen=True, slots=True)
class Report:
    """Result of the replays of one scenario."""

    scenario: str
    calls: int
    cases: int
    failures: list[Failure]

    def __str__(self) -> str:
        summary = f"{self.scenario}: {self.calls} calls, {self.cases} replays, {len(self.failures)} ended differently"
        return "\n  ".join([summary, *map(str, self.failures)])

    def check(self) -> None:
        """Raise an AssertionError that lists every failure, if any."""
        if self.failures:
            raise AssertionError(str(self))


class Endless(AssertionError):
    """A run that did not end.  The message names the controller and key that did most, and the calls."""


class EndlessPolling(Endless):
    """A run that would go on for minutes of real time."""


class ProcessDied(BaseException):
    """The process under test has died.  Its code must not catch this."""


class FaultInjector:
    """Count the calls of the process under test to all its clusters and disturb one of them."""

    def __init__(
        self, disturbance: Disturbance | None, at: int, counts: Callable[[str], bool], clusters: int = 1
    ) -> None:
        self.calls: list[str] = []
        self._counts = counts
        self.caches_behind = asyncio.Event()
        self.caches_current = [asyncio.Event() for _ in range(clusters)]
        """One event per cluster, set while its caches receive events."""
        self.catch_up()
        self.is_over = False
        self.reconciles: Counter[tuple[str, str]] = Counter()
        """Number of reconciles by controller and key."""
        self.unfinished: set[tuple[str, str]] = set()
        self._controllers: Counter[str] = Counter()
        self._calls_of: defaultdict[tuple[str, str] | str, Counter[str]] = defaultdict(Counter)
        """Number of calls by the reconcile or task that made them."""
        self.endless = asyncio.Event()
        self._disturbance = disturbance
        self._at = at
        self._dead = False

    def disturbance_for(self, call: str) -> Disturbance | None:
        if self._dead:
            raise ProcessDied
        self.count_call(call)
        if not self._counts(call):
            return None
        self.calls.append(call)
        return self._disturbance if len(self.calls) == self._at else None

    @contextmanager
    def count_reconcile(self, controller: str, key: str) -> Iterator[None]:
        self.reconciles[controller, key] += 1
        self._controllers[controller] += 1
        if self._controllers[controller] >= MAX_RECONCILES:
            self.endless.set()
        self.unfinished.add((controller, key))
        token = RECONCILING.set((controller, key))
        try:
            yield
        finally:
            RECONCILING.reset(token)
            if not isinstance(sys.exception(), asyncio.CancelledError):  # the end of the run cancels the unfinished
                self.unfinished.discard((controller, key))

    def count_call(self, call: str, caller: str = "") -> None:
        task, reconcile = asyncio.current_task(), RECONCILING.get()
        calls = self._calls_of[caller or reconcile or (f"task {task.get_name()!r}" if task else "a callback")]
        calls[call] += 1
        if calls[call] >= (MAX_RECONCILE_CALLS if reconcile else MAX_CALLS):
            self.endless.set()

    def explanation(self) -> str:
        """Return the reconcile or task that did most, its calls, and the reconciles that did not finish."""
        work = Counter({caller: calls.total() for caller, calls in self._calls_of.items()})
        work.update(self.reconciles)
        if not work:
            return "no key was reconciled; no call was made"
        caller = max(work, key=lambda each: (work[each], each in self.unfinished))
        calls = [f"{call} ({plural(count, 'time')})" for call, count in self._calls_of[caller].most_common(3)]
        unfinished = " and did not finish" if caller in self.unfinished else ""
        parts = [f"{self._name(caller)}{unfinished}; its calls: {', '.join(calls) or 'none'}"]
        parts += [f"{self._name(each)} and did not finish" for each in sorted(self.unfinished - {caller})]
        return "; ".join(parts)

    def _name(self, caller: tuple[str, str] | str) -> str:
        if isinstance(caller, str):
            return f"{caller} made {plural(self._calls_of[caller].total(), 'call')}"
        controller, key = caller
        return f"controller {controller!r} reconciled {key!r} {plural(self.reconciles[caller], 'time')}"

    def die(self) -> None:
        self._dead = True
        raise ProcessDied

    def revive(self) -> None:
        self._dead = False
        self.unfinished.clear()

    def fall_behind(self, disturbance: Disturbance, called: int) -> None:
        """Make the caches of some clusters fall behind, after a call to cluster number `called`."""
        for number, current in enumerate(self.caches_current):
            is_called = number == called
            if disturbance is Disturbance.FALLS_BEHIND or is_called == (disturbance is Disturbance.FALLS_BEHIND_THERE):
                current.clear()
        self.caches_behind.set()

    def catch_up(self) -> None:
        for current in self.caches_current:
            current.set()


@dataclass(frozen=True, slots=True)
class FaultyTransport:
    """Transport of the process under test to the cluster `number`, with faults."""

    api: Transport
    faults: FaultInjector
    number: int = 0

    async def send(self, request: Request) -> Response:
        disturbance = self.faults.disturbance_for(str(request))
        match disturbance:
            case Disturbance.DIES_BEFORE:
                self.faults.die()
            case Disturbance.LOSES_REQUEST:
                raise TransportError(f"{request}: lost on purpose", maybe_sent=True)
            case Disturbance.CONFLICTS if request.method != "GET":
                error = Conflict(409, "Conflict", "made on purpose")
                return Response(409, {}, ENCODER.encode(error.status()))
            case Disturbance.FALLS_BEHIND | Disturbance.FALLS_BEHIND_THERE | Disturbance.FALLS_BEHIND_ELSEWHERE:
                self.faults.fall_behind(disturbance, self.number)
        response = await self.api.send(request)
        match disturbance:
            case Disturbance.DIES_AFTER:
                self.faults.die()
            case Disturbance.LOSES_RESPONSE:
                raise TransportError(f"{request}: its response was lost on purpose", maybe_sent=True)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        match self.faults.disturbance_for(f"watch {request.path}"):
            case Disturbance.DIES_BEFORE | Disturbance.DIES_AFTER:
                self.faults.die()
            case Disturbance.LOSES_REQUEST | Disturbance.LOSES_RESPONSE:
                raise TransportError(f"watch {request.path}: lost on purpose", maybe_sent=True)
        async with self.api.stream(request) as stream:
            yield DelayedStream(stream, self.faults.caches_current[self.number])

    def abort(self) -> None:
        self.api.abort()

    async def close(self) -> None:
        """The API outlives the process."""


@dataclass(frozen=True, slots=True)
class RejectingTransport:
    """Transport to the cluster `number` that rejects some requests."""

    api: Transport
    rejection: Rejection
    number: int

    async def send(self, request: Request) -> Response:
        error = self.rejection(self.number, request)
        return (
            await self.api.send(request) if error is None else Response(error.code, {}, ENCODER.encode(error.status()))
        )

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.api.stream(request)

    def abort(self) -> None:
        self.api.abort()

    async def close(self) -> None:
        await self.api.close()


@dataclass(frozen=True, slots=True)
class DelayedStream:
    """A stream that holds back its chunks until the caches may receive them."""

    stream: Stream
    current: asyncio.Event

    @property
    def status(self) -> int:
        return self.stream.status

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self.stream.chunks():
            await self.current.wait()
            yield chunk


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def perturb(scenario: Scenario) -> Report:
    """Run the scenario without faults, then once for each call and disturbance.

    Raise Endless if the run without faults does not end.  A replay that polls endlessly is the last one: others would
    poll too, and take minutes.
    """
    try:
        expected, calls = _replay(scenario, None, 0)
    except BaseExceptionGroup as group:
        if isinstance(error := first_error(group), Endless):
            raise error from None
        raise
    failures, cases = [], 0
    for at, call in enumerate(calls, start=1):
        for disturbance in disturbances_of(call, one_sided=bool(scenario.others)):
            cases += 1
            try:
                actual, _ = _replay(scenario, disturbance, at)
            except Exception as error:  # noqa: BLE001  any error of a replay is a finding
                failures.append(Failure(disturbance, at, f"{call}: {first_error(error)!r}"))
                if isinstance(first_error(error), EndlessPolling):
                    return Report(scenario.name, len(calls), cases, failures)
                continue
            if actual != expected:
                failures.append(Failure(disturbance, at, f"{call}: {difference(expected, actual)}"))
    return Report(scenario.name, len(calls), cases, failures)


def disturbances_of(call: str, *, one_sided: bool) -> list[Disturbance]:
    """Return the disturbances that have different effects on this call."""
    method = call.split()[0]
    if method == "watch":
        return [Disturbance.DIES_BEFORE, Disturbance.LOSES_REQUEST]
    omitted = (*(ONLY_OF_WRITES if method == "GET" else ()), *(() if one_sided else ONE_SIDED))
    return [each for each in Disturbance if each not in omitted]


def _replay(scenario: Scenario, disturbance: Disturbance | None, at: int) -> tuple[dict[str, Any], list[str]]:
    """Return the final state of one run and its calls."""
    faults = FaultInjector(disturbance, at, scenario.counts, 1 + len(scenario.others))
    try:
        return run(_final_state(scenario, faults), turns=MAX_LOOP_TURNS), faults.calls
    except Spinning:
        raise EndlessPolling(f"{scenario.name}: {faults.explanation()}; {ADVICE}") from None


async def _final_state(scenario: Scenario, faults: FaultInjector) -> dict[str, Any]:
    served = [[*resources, EVENTS, LEASES] for resources in (scenario.resources, *scenario.others)]
    # Names of twins contain UIDs, which must be the same in each replay.
    planes = [scenario.is_plane, *(False for _ in scenario.others)]
    apis = [
        InProcessApi(resources, now=running_clock().now, seed=number, is_plane=planes[number])
        for number, resources in enumerate(served)
    ]
    transports = [
        FaultyTransport(
            RejectingTransport(api.connect(as_syncer=planes[number]), scenario.rejection, number), faults, number
        )
        for number, api in enumerate(apis)
    ]

    def count_call(_: int, request: Request) -> None:
        faults.count_call(str(request), WORLD)

    try:
        async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as group:
            process = group.create_task(_process(scenario, transports, faults))
            limit = group.create_task(_stop_endless(scenario, faults))
            await scenario.world(*(Client(RejectingTransport(api.connect(), count_call, 0)) for api in apis))
            faults.is_over = True
            process.cancel()
            limit.cancel()
    except TimeoutError:
        limit_hours = f"{LIMIT_SECONDS / 3600:g} hours of virtual time"
        message = f"{scenario.name}: the world function did not return within {limit_hours}: {faults.explanation()}"
        raise Endless(message) from None
    return comparable_state([api.dump() for api in apis])


async def _stop_endless(scenario: Scenario, faults: FaultInjector) -> None:
    """Stop a run that reconciles a key endlessly: reaching the time limit would take minutes."""
    await faults.endless.wait()
    raise EndlessPolling(f"{scenario.name}: at {running_clock().now().isoformat()} {faults.explanation()}; {ADVICE}")


class ReconcileCounter(Manager):
    """A manager that counts the reconciles of its controllers."""

    faults: FaultInjector

    def controller(self, name: str, reconcile: Reconcile, **options: Any) -> Controller:
        async def counted(key: str) -> Result | None:
            with self.faults.count_reconcile(name, key):
                return await reconcile(key)

        return super().controller(name, counted, **options)


async def _process(scenario: Scenario, transports: list[FaultyTransport], faults: FaultInjector) -> None:
    """Run the process under test, and restart it whenever it dies."""
    config = without_listeners(scenario.config)
    while not faults.is_over:  # a death at the very end can hide the cancellation
        faults.revive()
        clock = running_clock()
        manager = ReconcileCounter(
            config, lambda: transports[0], identity="perturbed", now=clock.now, monotonic=clock.monotonic
        )
        manager.faults = faults
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_resync_stale_caches(manager, faults))
                if scenario.others:
                    await scenario.setup(manager, *transports[1:])
                else:
                    manager.register(scenario.name, scenario.setup)
                await manager.run()
        except* ProcessDied:
            faults.catch_up()
        except* TransportError:
            faults.catch_up()  # a request at startup was lost: start again


async def _resync_stale_caches(manager: Manager, faults: FaultInjector) -> None:
    """Once the caches have fallen behind, resync repeatedly, then let them catch up."""
    await faults.caches_behind.wait()
    for _ in range(STALE_SECONDS):
        for controller in manager.controllers:
            controller.resync()
        await asyncio.sleep(1)
    faults.catch_up()


def without_listeners(config: ManagerConfig) -> ManagerConfig:
    """Return `config` without listeners, because replays share one machine."""
    return structs.replace(config, metrics=Metrics(address=""), probes=Probes(address=""))


def comparable_state(clusters: Sequence[Sequence[Object]]) -> dict[str, Any]:
    """Return the comparable part of a final state: without times, versions and the order of conditions.

    UIDs are replaced by names.
    """
    objects = [(f"{number}: {obj['kind']} {key_of(obj)}", obj) for number, each in enumerate(clusters) for obj in each]
    names = {obj["metadata"]["uid"]: f"uid of {name}" for name, obj in objects}
    return {
        name: without_volatile(obj, names) for name, obj in objects if obj["kind"] not in (EVENTS.kind, LEASES.kind)
    }


def without_volatile(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: without_volatile(child, names) for key, child in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        children = [without_volatile(child, names) for child in value]
        is_conditions = all(isinstance(child, dict) and {"type", "status"} <= child.keys() for child in children)
        return sorted(children, key=lambda child: str(child["type"])) if is_conditions else children
    if isinstance(value, str):
        return TIME.sub("some time", UID.sub(lambda match: names.get(match[0], "some uid"), value))
    return value


def first_error(error: BaseException) -> BaseException:
    """Return the first error in nested groups, which caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def difference(expected: dict[str, Any], actual: dict[str, Any]) -> str:
    """Return the first object that differs, with its expected and actual state."""
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            return f"{name} should be {expected.get(name)}, is {actual.get(name)}"
    return "nothing differs"
