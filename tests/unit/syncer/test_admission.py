"""Admission: an example of each rule, and leases that hold under any order of events."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapestry.apis import keys
from tapestry.controller import Informer
from tapestry.controller.testing import running_clock
from tapestry.controller.testing.clock import START, run
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import Object, annotations_of, key_of, object_named, value_at
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.quantity import Quantity, ResourceList, parse_quantity
from tapestry.kube.resources import NODES, PODS
from tapestry.syncer.admission import (
    Reject,
    Wait,
    capacity_decision,
    closed_decision,
    node_closure,
    resize_decision,
)
from tapestry.syncer.cache_transforms import virtual_pod
from tapestry.syncer.leasing import Lease, LeaseState, ReclaimTerms
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.views import Twin, VirtualPod

from .test_leasing import at, new_node, new_policy
from .test_leasing import lease as lease_at
from .world import MOUNT, NODE, World, new_world

NOW = at("12:00")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}


def amounts(**texts: str) -> ResourceList:
    return ResourceList.parse(texts)


def new_pod(owner: bool = False, scheduled: bool = False, tolerations: list[Object] | None = None) -> VirtualPod:
    references = {"ownerReferences": [OWNER]} if owner else {}
    return virtual_pod(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u", **references},
            "spec": {"nodeName": NODE, "tolerations": tolerations or []},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}] if scheduled else []},
        }
    )


# -- closed


@pytest.mark.parametrize(
    ("reason", "node", "lease"),
    [
        ("Withdrawn", None, None),
        ("Withdrawn", new_node(), Lease(LeaseState.WITHDRAWN, "NoPolicy")),
        ("Reclaimed", new_node(), Lease(LeaseState.CLOSED, "Reclaimed", terms=ReclaimTerms(NOW))),
        ("OutOfTimeWindows", new_node(), Lease(LeaseState.CLOSED, "OutOfTimeWindows")),
        ("Cordoned", {**new_node(), "spec": {"unschedulable": True}}, Lease(LeaseState.OPEN, "Leased")),
        (None, new_node(), Lease(LeaseState.OPEN, "Leased")),
    ],
)
def test_closed_node_gives_a_reason(reason: str | None, node: Object | None, lease: Lease | None) -> None:
    found = node_closure(node, lease, NOW)
    assert (found and found.reason) == reason


def test_closed_lease_states_its_opening_time() -> None:
    lease = lease_at(new_policy("night", "22:00-06:00"), new_policy("noon", "13:00-14:00"), now=NOW)
    found = node_closure(new_node(), lease, NOW)
    assert found is not None
    assert found.opens == at("13:00")
    assert "2026-03-02T13:00:00Z" in found.message


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        (new_pod(owner=True, scheduled=True), Reject),
        (new_pod(owner=True, scheduled=False), Wait),  # its template names the node: a new pod would be no better
        (new_pod(owner=False, scheduled=True), Wait),  # no controller would create another one
        (new_pod(True, True, [{"operator": "Exists"}]), Wait),
        (new_pod(True, True, [{"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "operator": "Exists"}]), Wait),
        (new_pod(True, True, [{"key": "other", "operator": "Exists"}]), Reject),
    ],
)
def test_closed_node_fails_scheduled_controlled_intolerant_pods(pod: VirtualPod, outcome: type) -> None:
    closure = node_closure(new_node(), Lease(LeaseState.CLOSED, "OutOfTimeWindows"), NOW)
    assert closure is not None
    assert isinstance(closed_decision(pod, closure), outcome)


# -- capacity


@pytest.mark.parametrize(
    ("requests", "held", "known", "reason"),
    [
        ({"cpu": "2"}, {"cpu": "2"}, {"cpu": "2"}, None),
        ({"cpu": "2001m"}, {"cpu": "2"}, {"cpu": "2"}, "OutOfcpu"),
        ({"cpu": "3", "memory": "9Gi", "pods": "1"}, {"cpu": "2"}, {"cpu": "2"}, "OutOfcpu"),
        ({"cpu": "3", "pods": "1"}, {"cpu": "2", "pods": "10"}, {"cpu": "2", "pods": "10"}, "OutOfpods"),
        ({"z.io/gpu": "1", "a.io/gpu": "1"}, {}, {}, "OutOfa.io/gpu"),
        ({"z.io/gpu": "0"}, {}, {}, None),
        ({"cpu": "2"}, {"cpu": "3"}, {"cpu": "2"}, "CapacityPending"),
    ],
)
def test_pod_fits_or_names_lacking_resource(
    requests: dict[str, str], held: dict[str, str], known: dict[str, str], reason: str | None
) -> None:
    leased = amounts(cpu="4", memory="8Gi", pods="10")
    found = capacity_decision(ResourceList.parse(requests), leased, ResourceList.parse(held), ResourceList.parse(known))
    assert (found and found.reason) == reason


@pytest.mark.parametrize(
    ("wanted", "own", "held", "reason"),
    [
        ("2", "1", "3", None),
        ("3", "1", "3", "Deferred"),
        ("5", "1", "1", "Infeasible"),
        ("1", "2", "9", None),
    ],
)
def test_resize_is_done_or_pending(wanted: str, own: str, held: str, reason: str | None) -> None:
    found = resize_decision(amounts(cpu=wanted), amounts(cpu=own), amounts(cpu="4"), amounts(cpu=held), None)
    assert (found and found.reason) == reason


# -- the ledger behind a lagging cache


def cpu(amount: int) -> ResourceList:
    return ResourceList(cpu=Quantity(amount * 10**9), pods=parse_quantity(1))


def new_twin(name: str, amount: int | None) -> Twin:
    annotations = {
        keys.VIRTUAL_NODE_NAME: NODE,
        keys.VIRTUAL_POD_UID: f"uid-{name}",
        keys.VIRTUAL_POD_NAMESPACE: "default",
        keys.VIRTUAL_POD_NAME: name,
    }
    twin = {"metadata": {"name": name, "namespace": MOUNT, "annotations": annotations}, "spec": {}}
    return Twin(name, "1", twin, cpu(amount) if amount is not None else None, b"{}")


def virtual(name: str) -> VirtualPod:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return virtual_pod({"metadata": metadata, "spec": {"nodeName": NODE}})


NAMES = st.sampled_from([f"p{number}" for number in range(8)])


class LedgerMachine(RuleBasedStateMachine):
    """Pods are created, resized and end; the cache sees that later, in order. Responses may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now = NOW
        self.leased = cpu(8)
        self.below: dict[str, int] = {}
        self.under_way: dict[str, int] = {}
        self.events: list[tuple[str, int | None]] = []
        self.cache: dict[str, Twin] = {}
        self.used: set[str] = set()

    def committed(self) -> int:
        """Return what runs in the physical cluster and what may still start there."""
        names = {*self.below, *self.under_way}
        return sum(max(self.below.get(name, 0), self.under_way.get(name, 0)) for name in names)

    @rule(name=NAMES, amount=st.integers(1, 4))
    def arrive(self, name: str, amount: int) -> None:
        if name in self.used or name in self.under_way:
            return
        key = f"{MOUNT}/{name}"
        held = self.ledger.held_amounts(NODE) - self.ledger.twin_amounts(key)
        if capacity_decision(cpu(amount), self.leased, held, held) is None:
            self.ledger.reserve(key, virtual(name), cpu(amount))
            self.under_way[name] = amount
            assert self.committed() <= value(self.leased)

    @rule(name=NAMES, answered=st.booleans())
    def created(self, name: str, answered: bool) -> None:
        if name in self.under_way and name not in self.used:
            self.used.add(name)
            self.below[name] = self.under_way.pop(name)
            self.events.append((name, self.below[name]))
            if answered:
                self.ledger.mark_written(f"{MOUNT}/{name}", self.now)

    @rule(name=NAMES)
    def rejected(self, name: str) -> None:
        if name in self.under_way and name not in self.used:
            del self.under_way[name]
            self.ledger.release(f"{MOUNT}/{name}")

    @rule(name=NAMES, amount=st.integers(1, 8))
    def resize(self, name: str, amount: int) -> None:
        key = f"{MOUNT}/{name}"
        if name not in self.cache or name not in self.below or name in self.under_way:
            return
        own = self.ledger.twin_amounts(key)
        if resize_decision(cpu(amount), own, self.leased, self.ledger.held_amounts(NODE), None) is None:
            grows = amount > self.below[name]
            self.ledger.reserve(key, virtual(name), cpu(amount))
            self.below[name] = amount
            self.events.append((name, amount))
            self.ledger.mark_written(key, self.now)
            assert not grows or self.committed() <= value(self.leased)

    @precondition(lambda self: self.below)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.below)))
        del self.below[name]
        self.events.append((name, None))

    @precondition(lambda self: self.events)
    @rule()
    def see(self) -> None:
        name, amount = self.events.pop(0)
        old = self.cache.pop(name, None)
        new = new_twin(name, amount) if amount is not None else None
        if new is not None:
            self.cache[name] = new
        if old is not None or new is not None:
            self.ledger.on_physical_pod_change(old, new)

    @rule(amount=st.integers(0, 12))
    def lease(self, amount: int) -> None:
        self.leased = cpu(amount)
        self.leased["pods"] = parse_quantity(100)

    @invariant()
    def ledger_counts_at_least_the_committed_amounts(self) -> None:
        assert value(self.ledger.held_amounts(NODE)) >= self.committed()

    @invariant()
    def ledger_is_exact_after_the_cache_catches_up(self) -> None:
        if not self.events and not self.under_way:
            self.ledger.release_expired(NODE, self.now + timedelta(hours=1))
            held = self.ledger.held_amounts(NODE)
            assert value(held) == sum(self.below.values())
            assert held["pods"].nano == len(self.below) * 10**9


def value(found: ResourceList) -> int:
    return found["cpu"].nano // 10**9


LedgerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_ledger_never_counts_less_than_runs_below = LedgerMachine.TestCase


# -- a whole syncer


@dataclass
class Observer:
    """Watch every twin on the physical server and compare it with the lease."""

    world: World
    is_killed: bool = False
    leased: str = "4"
    twins: dict[str, Object] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def saw(self, old: Object | None, new: Object | None) -> None:
        twin = new or old
        assert twin is not None
        if keys.VIRTUAL_POD_UID not in annotations_of(twin):
            return
        before = self.held()
        if new is None:
            self.twins.pop(key_of(twin), None)
            return
        self.twins[key_of(twin)] = new
        now, after = running_clock().now(), self.held()
        if old is None and (self.is_killed or not is_open(now)):
            self.faults.append(f"{key_of(twin)} started at {now}: the lease is closed")
        if after["cpu"] > before["cpu"] and after["cpu"] > parse_quantity(self.leased):
            self.faults.append(f"{key_of(twin)}: {after['cpu']} of {self.leased} at {now}")

    def held(self) -> ResourceList:
        live = (
            twin for twin in self.twins.values() if value_at(twin, "status", "phase") not in ("Succeeded", "Failed")
        )
        return sum(map(effective_requests, live), ResourceList())


WINDOWS = [{"start": f"00:{minute:02}", "end": f"00:{minute + 10:02}"} for minute in (5, 25, 45)]
POLICY = {"timeWindows": WINDOWS, "forceReclaim": True, "gracefulReclaimPeriodSeconds": 60}


def is_open(now: datetime) -> bool:
    minutes = (now - START).total_seconds() / 60
    return any(start <= minutes < start + 10 for start in (5, 25, 45))


POD_NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), POD_NAMES, st.sampled_from(["1", "2", "3", "5"]), st.integers(0, 2)),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0, 60.0, 240.0, 299.999, 600.0])),
        st.tuples(st.just("resize"), POD_NAMES, st.sampled_from(["1", "2", "3", "4"])),
        st.tuples(st.just("delete"), POD_NAMES, st.sampled_from([None, 0])),
        st.tuples(st.just("finish"), POD_NAMES),
        st.tuples(st.just("vanish"), POD_NAMES),
        st.tuples(st.just("kill"), st.booleans()),
        st.tuples(st.just("foreign"), st.booleans()),
    ),
    min_size=4,
    max_size=25,
)


async def play(steps: list[tuple[Any, ...]]) -> list[str]:
    """Run the steps and return what exceeded the lease or ran outside its time."""
    world = await new_world(policy=POLICY)
    observer = Observer(world)
    informer = Informer(world.physical, PODS, namespace=MOUNT)
    informer.on_change(observer.saw)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(informer.run())
        async with world.syncer():
            await asyncio.sleep(295)
            for step in steps:
                try:
                    await take(world, observer, *step)
                except ApiError:
                    continue  # no such pod, or it exists already, or it cannot be resized
            await asyncio.sleep(120)
        following.cancel()
    return observer.faults


async def take(world: World, observer: Observer, what: str, *args: Any) -> None:
    if what == "arrive":
        name, amount, kind = args
        tolerations = [{"operator": "Exists"}] if kind else []
        metadata = {"ownerReferences": [OWNER]} if kind == 2 else None
        await world.add_pod(
            name,
            requests={"cpu": amount},
            tolerations=tolerations,
            metadata=metadata,
            terminationGracePeriodSeconds=600,
        )
    elif what == "pass":
        await asyncio.sleep(args[0])
    elif what == "resize":
        patch = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": args[1]}}}]}}
        await world.change_pod(patch, args[0], subresource="resize")
    elif what == "delete":
        await world.delete_pod(args[0], grace=args[1])
    elif what == "finish":
        await world.end("Succeeded", args[0])
    elif what == "vanish":
        await world.stop(args[0])
    elif what == "kill":
        mark = {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW if args[0] else None}}}
        if not args[0]:
            observer.is_killed = False
        await world.physical.patch(NODES, object_named("n1"), mark)
        await asyncio.sleep(0.001)
        observer.is_killed = args[0]
    elif args[0]:
        await world.add_foreign_pod("shop", "n1", requests={"cpu": "2"})
        await asyncio.sleep(0.001)
        observer.leased = "2"
    else:
        observer.leased = "4"
        await world.physical.delete(PODS, object_named("shop", "default"), grace_seconds=0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example([("pass", 60.0), ("arrive", "a", "1", 0), ("arrive", "b", "3", 0), ("pass", 1.0), ("resize", "a", "3")])
@example([("pass", 60.0), *(("arrive", name, "2", 1) for name in "abcde")])
@example([("pass", 60.0), ("arrive", "a", "3", 0), ("pass", 1.0), ("delete", "a", 0), ("arrive", "b", "2", 0)])
@given(STEPS)
def test_twins_stay_within_an_open_lease(steps: list[tuple[Any, ...]]) -> None:
    assert run(play(steps)) == []


def test_observer_detects_an_exceeded_lease() -> None:
    observer = Observer(world=None)  # type: ignore[arg-type]

    async def scene() -> None:
        running_clock()
        for name in "abcde":
            containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
            twin = {**new_twin(name, 1).object, "spec": {"containers": containers}, "status": {}}
            observer.saw(None, twin)

    run(scene())
    assert len([fault for fault in observer.faults if "of 4" in fault]) == 1
    assert len([fault for fault in observer.faults if "closed" in fault]) == 5
