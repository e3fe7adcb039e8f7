"""A virtual cluster on an in-process API, with an orchestrator that the test runs pass by pass."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.client.client import Client
from tapestry.client.transport import Request, Response
from tapestry.controller.testing import InProcessApi
from tapestry.controller.testing.connection import Connection
from tapestry.kube.objects import Object, value_at
from tapestry.vclusters.lifecycle import is_legal
from tapestry.vclusters.operations import operation_id
from tapestry.vclusters.orchestrator import Orchestrator

from .fake_engine import FakeEngine, ProcessKilled

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MAX_PASSES = 400


@dataclass
class LatestObjects:
    """A cache that the test updates before each pass."""

    objects: dict[str, Object] = field(default_factory=dict)

    @property
    def store(self) -> "LatestObjects":
        return self

    def get(self, key: str) -> Object | None:
        return self.objects.get(key)


@dataclass
class KillingTransport:
    """A transport that kills the process at a request, before or after it has had its effect."""

    transport: Connection
    requests_left: int | None = None
    is_after: bool = False

    async def send(self, request: Request) -> Response:
        if self.requests_left is None:
            return await self.transport.send(request)
        self.requests_left -= 1
        is_killed = self.requests_left < 0
        if is_killed:
            self.requests_left = None
        if is_killed and not self.is_after:
            raise ProcessKilled
        response = await self.transport.send(request)
        if is_killed:
            raise ProcessKilled
        return response


@dataclass
class World:
    """One virtual cluster, its engine and the orchestrator, which the test runs pass by pass."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    time: datetime = NOON
    requests: int = 0
    kills: int = 0
    phases: list[Phase | None] = field(default_factory=lambda: [None])

    def __post_init__(self) -> None:
        self.api = InProcessApi([VCLUSTERS, OPERATIONS], now=lambda: self.time)
        self.client = Client(self.api.connect())
        self.transport = KillingTransport(self.api.connect())
        self.cache = LatestObjects()
        self.restart()

    def restart(self) -> None:
        client = Client(self.transport)  # type: ignore[arg-type]
        self.orchestrator = Orchestrator(self.cache, client, {"native": self.engine}, lambda: self.time)  # type: ignore[arg-type]

    async def vcluster(self) -> Object | None:
        return await self.client.find(VCLUSTERS, "v", "default")

    async def status(self) -> Object:
        found = await self.vcluster()
        assert found is not None
        return found.get("status") or {}

    async def create(self, verb: Verb = Verb.CREATE, **arguments: Any) -> str:
        operation = self.operation(verb, **arguments)
        spec = {"project": "shop", "owner": "jane", "engine": "native", "operation": operation}
        await self.client.create(VCLUSTERS, {"metadata": {"name": "v", "namespace": "default"}, "spec": spec})
        return str(operation["id"])

    def operation(self, verb: Verb, **arguments: Any) -> Object:
        self.requests += 1
        id = operation_id("jane", verb, str(self.requests))
        return {"id": id, "verb": verb.value, "principal": "jane", "arguments": arguments}

    async def request(self, verb: Verb, **arguments: Any) -> str:
        """Ask for an operation, as the service does, unless another one waits."""
        found = await self.vcluster()
        if found is None:
            return ""
        current = value_at(found, "spec", "operation", "id")
        known = {value_at(found, "status", "lastOperation"), value_at(found, "status", "journal", "id")}
        if verb is not Verb.DELETE and current not in known:
            return ""
        operation = self.operation(verb, **arguments)
        await self.client.patch(VCLUSTERS, found, {"spec": {"operation": None}})
        found = await self.vcluster()
        assert found is not None
        suspended = {Verb.SUSPEND: {"suspended": True}, Verb.RESUME: {"suspended": False}}.get(verb, {})
        await self.client.patch(VCLUSTERS, found, {"spec": {"operation": operation, **suspended}})
        return str(operation["id"])

    async def cancel(self) -> None:
        found = await self.vcluster()
        if found is not None and value_at(found, "spec", "operation"):
            await self.client.patch(VCLUSTERS, found, {"spec": {"operation": {"cancelled": True}}})

    async def reconcile(self) -> float | None:
        """Run one pass; return the seconds after which the next one is due, or None if it waits for a change."""
        found = await self.vcluster()
        self.cache.objects = {"default/v": found} if found is not None else {}
        result = None
        try:
            result = await self.orchestrator.reconcile("default/v")
        except ProcessKilled:
            self.kills += 1
            self.restart()
        after = await self.vcluster()
        phase = Phase(value_at(after, "status", "phase")) if value_at(after or {}, "status", "phase") else None
        if phase is not self.phases[-1]:
            assert is_legal(self.phases[-1], phase), (self.phases, phase)
            self.phases.append(phase)
        if found != after or self.kills:
            self.kills = 0
            return 0.0
        return result.requeue_after if result is not None else None

    async def run_until_idle(self) -> None:
        """Run passes until the orchestrator waits for a change, or only observes."""
        for _ in range(MAX_PASSES):
            seconds = await self.reconcile()
            found = await self.vcluster()
            has_work = found is not None and (
                value_at(found, "status", "journal") or "deletionTimestamp" in found["metadata"]
            )
            if seconds is None or (seconds and not has_work):
                return
            self.time += timedelta(seconds=seconds)
        raise AssertionError(f"not idle after {MAX_PASSES} passes: {await self.vcluster()}")

    async def records(self) -> list[Object]:
        return list(await self.client.list(OPERATIONS))


async def running() -> World:
    world = World()
    await world.create()
    await world.run_until_idle()
    assert (await world.status())["phase"] == Phase.RUNNING
    world.engine.calls.clear()
    return world
