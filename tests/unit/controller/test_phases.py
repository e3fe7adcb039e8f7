import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.controller import Result, ensure_owned
from tapestry.controller.errors import Terminal
from tapestry.controller.manager import Manager
from tapestry.controller.phase_table import Handler, Next, Phase
from tapestry.controller.phases import PhaseMachine
from tapestry.controller.testing.api import specimen
from tapestry.controller.testing.clock import START, VirtualClock
from tapestry.controller.testing.perturbation import Scenario, perturb
from tapestry.kube.conditions import new_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, TransportError
from tapestry.kube.objects import Object, object_named, owned_object, value_at
from tapestry.kube.resources import CONFIGMAPS, Resource
from tapestry.kube.times import timestamp


class ScriptedHandler:
    """A handler that records its calls and returns scripted results.  After the last one it stays."""

    def __init__(self, clock: VirtualClock, *answers: Next | Result | Exception | None) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.times: list[float] = []

    async def __call__(self, obj: Object) -> Next | Result | None:
        self.times.append(round(self.clock.monotonic() - 1, 3))  # a manager takes a second to start
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def phase_table(working: Handler, **options: Any) -> dict[str, Phase]:
    """Return the table: Pending, then Working (the tested handler), then Done or Failed."""

    async def pending(obj: Object) -> Next:
        return Next("Working", "off we go")

    return {
        "Pending": Phase(pending, to=("Working",)),
        "Working": Phase(working, to=("Done", "Failed"), **options),
        "Done": Phase(),
        "Failed": Phase(),
    }


@asynccontextmanager
async def running(world: Any, phases: dict[str, Phase]) -> AsyncIterator[None]:
    def setup(manager: Manager) -> None:
        PhaseMachine(world.widgets, "Pending", phases).controller(manager, "machine")

    async with world.running(world.manager(setup)):
        yield


async def status(world: Any, name: str = "w") -> Object:
    return (await world.get(world.widgets, name)).get("status", {})


def condition(status: Object, type: str) -> Object:
    return next(each for each in status["conditions"] if each["type"] == type)


async def stay(obj: Object) -> None: ...


# -- transitions


async def test_object_passes_through_phases_to_its_end(world: Any) -> None:
    working = ScriptedHandler(world.clock, Result(requeue_after=30), Next("Done", "all is well"))
    async with running(world, phase_table(working)):
        await world.add(world.widgets, "w", spec={"size": 1})
        await asyncio.sleep(3600)
        found = await status(world)
        assert (found["phase"], found["attempts"], found["observedGeneration"]) == ("Done", 0, 1)
        assert working.times == [0, 30]
        await world.client.patch(world.widgets, object_named("w", "default"), {"spec": {"size": 2}})
        await asyncio.sleep(3600)
        assert await status(world) == found
        assert working.times == [0, 30]


async def test_conditions_record_history_with_times(world: Any) -> None:
    working = ScriptedHandler(world.clock, Result(requeue_after=30), Next("Done", "all is well"))
    async with running(world, phase_table(working)):
        await world.add(world.widgets, "w")
        await asyncio.sleep(60)
    began, ended = timestamp(START + timedelta(seconds=1)), timestamp(START + timedelta(seconds=31))
    assert (await status(world))["conditions"] == [
        entry("Pending", "False", "ToWorking", "off we go", began),
        entry("Working", "False", "ToDone", "all is well", ended),
        entry("Done", "True", "Entered", "all is well", ended),
    ]


def entry(type: str, status: str, reason: str, message: str, at: str) -> Object:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


async def test_each_transition_is_an_event(world: Any) -> None:
    async with running(world, phase_table(ScriptedHandler(world.clock, Next("Done")))):
        await world.add(world.widgets, "w")
        await asyncio.sleep(1)
    assert {(event["reason"], event["message"], event["type"]) for event in await world.events()} == {
        ("PhaseWorking", "Pending -> Working: off we go", "Normal"),
        ("PhaseDone", "Working -> Done", "Normal"),
    }


async def test_reentered_phase_starts_its_time_again(world: Any) -> None:
    check = ScriptedHandler(world.clock, Next("Repair"), Next("Repair"), Next("Done"))
    repair = ScriptedHandler(world.clock, *[Result(requeue_after=40), Next("Pending")] * 2)
    phases = {
        "Pending": Phase(check, to=("Repair", "Done")),
        "Repair": Phase(repair, to=("Pending", "Failed"), timeout=60, on_failure="Failed"),
        "Done": Phase(),
        "Failed": Phase(),
    }
    async with running(world, phases):
        await world.add(world.widgets, "w")
        await asyncio.sleep(600)
        assert (await status(world))["phase"] == "Done"
        assert repair.times == [0, 40, 40, 80]


async def test_restart_resumes_in_last_written_phase(world: Any) -> None:
    before, after = ScriptedHandler(world.clock, Result(requeue_after=3600)), ScriptedHandler(world.clock, Next("Done"))
    async with running(world, phase_table(before)):
        await world.add(world.widgets, "w")
        await asyncio.sleep(1)
    assert (await status(world))["phase"] == "Working"
    async with running(world, phase_table(after)):
        assert (await status(world))["phase"] == "Done"
    assert len(before.times) == len(after.times) == 1


async def test_setup_passes_settings_and_the_manager_to_handlers(world: Any) -> None:
    @dataclass(frozen=True)
    class Copies:
        manager: Manager
        content: Object

        async def make(self, obj: Object) -> Next:
            await self.manager.client.create(CONFIGMAPS, owned_object(obj, CONFIGMAPS, {"data": self.content}))
            return Next("Done", self.manager.identity)

    def setup(manager: Manager) -> None:
        phases = phase_table(Copies(manager, {"colour": "blue"}).make)
        PhaseMachine(world.widgets, "Pending", phases).controller(manager, "machine")

    await world.add(world.widgets, "w")
    async with world.running(world.manager(setup)):
        assert (await world.get(CONFIGMAPS, "w"))["data"] == {"colour": "blue"}
        assert condition(await status(world), "Done")["message"] == "first"  # the identity of the manager


async def test_other_status_fields_remain(world: Any) -> None:
    await world.add(world.widgets, "w")
    await world.set_status(world.widgets, "w", theirs="kept")
    async with running(world, phase_table(ScriptedHandler(world.clock, Next("Done")))):
        found = await status(world)
    assert (found["phase"], found["theirs"]) == ("Done", "kept")


async def test_next_writes_status_in_the_same_patch(world: Any) -> None:
    done = Next("Done", status={"size": 3, "old": None, "conditions": [new_condition("Cool", True, "Tested")]})
    await world.add(world.widgets, "w")
    await world.set_status(world.widgets, "w", old="gone", phase="Working")
    writes: list[Object] = []

    def record(manager: Manager) -> None:
        informer = manager.informer(world.widgets)
        informer.on_change(lambda _, new: writes.append(new["status"]))
        PhaseMachine(world.widgets, "Pending", phase_table(ScriptedHandler(world.clock, done))).controller(manager, "m")

    async with world.running(world.manager(record)):
        pass
    found = await status(world)
    assert (found["phase"], found["size"], "old" in found) == ("Done", 3, False)
    assert [each["type"] for each in found["conditions"]] == ["Cool", "Working", "Done"]
    assert [each["phase"] for each in writes] == ["Working", "Done"]


# -- deletion


FINALIZER = "widgets.example.com/phases"


def deletable(working: Handler, deleting: Handler, **options: Any) -> dict[str, Phase]:
    ends = {"Deleted": Phase(), "Leaked": Phase()}
    return {**phase_table(working), "Deleting": Phase(deleting, to=("Deleted", "Leaked"), **options), **ends}


async def delete(world: Any) -> None:
    await world.client.delete(world.widgets, object_named("w", "default"))


async def exists(world: Any) -> bool:
    return await world.client.find(world.widgets, "w", "default") is not None


async def test_terminating_object_without_our_finalizer_is_ignored(world: Any) -> None:
    working, deleting = ScriptedHandler(world.clock), ScriptedHandler(world.clock)
    await world.add(world.widgets, "w", finalizers=["example.com/hold"])
    await delete(world)
    async with running(world, phase_table(working)):
        assert await status(world) == {}
    async with running(world, deletable(working, deleting)):
        assert await status(world) == {}
    assert working.times == deleting.times == []


@pytest.mark.parametrize("phase", ["Pending", "Working", "Done", "Dreaming"])
async def test_deletion_runs_its_handler_from_any_phase(phase: str, world: Any) -> None:
    await world.add(world.widgets, "w", finalizers=["example.com/hold", FINALIZER])
    await world.set_status(world.widgets, "w", phase=phase)
    await delete(world)
    deleting = ScriptedHandler(world.clock, Result(requeue_after=30), Next("Deleted", "all clean"))
    working = ScriptedHandler(world.clock)
    async with running(world, deletable(working, deleting)):
        assert (await status(world))["phase"] == "Deleting"
        await asyncio.sleep(28)
        assert FINALIZER in (await world.get(world.widgets, "w"))["metadata"]["finalizers"]
        await asyncio.sleep(2)
        found = await world.get(world.widgets, "w")
    assert (found["status"]["phase"], found["metadata"]["finalizers"]) == ("Deleted", ["example.com/hold"])
    assert (deleting.times, working.times) == ([-1, 29], [])  # it runs while the manager starts


async def test_finalizer_is_added_before_any_handler_runs(world: Any) -> None:
    seen: list[list[str]] = []

    async def working(obj: Object) -> Next:
        seen.append(obj["metadata"]["finalizers"])
        return Next("Done")

    async with running(world, deletable(working, ScriptedHandler(world.clock, Next("Deleted")))):
        await world.add(world.widgets, "w", finalizers=["example.com/hold"])
        await asyncio.sleep(1)
        assert seen == [["example.com/hold", FINALIZER]]
        await world.client.patch(world.widgets, object_named("w", "default"), {"metadata": {"finalizers": [FINALIZER]}})
        await delete(world)
        await asyncio.sleep(1)
        assert not await exists(world)


async def test_failed_deletion_releases_the_object(world: Any) -> None:
    deleting = ScriptedHandler(world.clock, *[RuntimeError("no luck")] * 9)
    async with running(world, deletable(ScriptedHandler(world.clock), deleting, retries=2, on_failure="Leaked")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(1)
        await delete(world)
        await asyncio.sleep(1)
        assert not await exists(world)
    assert len(deleting.times) == 3
    assert "PhaseLeaked" in {event["reason"] for event in await world.events()}


async def test_machine_without_deletion_removes_a_former_finalizer(world: Any) -> None:
    await world.add(world.widgets, "w", finalizers=[FINALIZER])
    await delete(world)
    async with running(world, phase_table(ScriptedHandler(world.clock))):
        assert not await exists(world)


async def test_deletion_handler_never_runs_for_a_living_object(world: Any) -> None:
    deleting = ScriptedHandler(world.clock, Next("Deleted"))
    await world.add(world.widgets, "w")
    await world.set_status(world.widgets, "w", phase="Deleting")
    async with running(world, deletable(ScriptedHandler(world.clock), deleting)):
        await asyncio.sleep(60)
        assert (await status(world))["phase"] == "Deleting"
    assert deleting.times == []


def test_deletion_reaches_the_same_end_under_any_disturbance(widgets: Resource) -> None:
    def setup(manager: Manager) -> None:
        configs = manager.informer(CONFIGMAPS)

        async def working(widget: Object) -> Next:
            await ensure_owned(manager.client, configs, widget, {"data": {}})
            return Next("Done", status={"made": "yes"})

        async def deleting(widget: Object) -> Next:
            await manager.client.delete_if_exists(CONFIGMAPS, owned_object(widget, CONFIGMAPS, {}))
            return Next("Deleted")

        PhaseMachine(widgets, "Pending", deletable(working, deleting)).controller(manager, "machine")

    async def users(client: Client) -> None:
        await client.create(widgets, specimen(widgets, "w", "default"))
        await wait_for(client, widgets, "w", "default", until=lambda obj: value_at(obj, "status", "phase") == "Done")
        await client.delete(widgets, object_named("w", "default"))
        await wait_for(client, widgets, "w", "default", until=lambda obj: obj is None)

    report = perturb(Scenario("deletion", [widgets, CONFIGMAPS], setup, users))
    report.check()
    assert report.cases > 50


# -- illegal transitions


@pytest.mark.parametrize("target", ["Nowhere", "Pending"])
async def test_transition_outside_the_table_is_rejected(target: str, world: Any, growth: Callable[..., float]) -> None:
    reason = {"controller": "machine", "reason": "IllegalTransition"}
    growth("tapestry_reconcile_errors_total", **reason)
    working = ScriptedHandler(world.clock, Next(target))
    async with running(world, phase_table(working)):
        await world.add(world.widgets, "w")
        await asyncio.sleep(3600)
        assert (await status(world))["phase"] == "Working"
    assert len(working.times) == 1
    assert growth("tapestry_reconcile_errors_total", **reason) == 1
    (warning,) = [event for event in await world.events() if event["type"] == "Warning"]
    assert warning["reason"] == "IllegalTransition"
    assert warning["message"] == f"from Working to {target}; the machine allows Done, Failed"


async def test_unknown_phase_waits_for_a_change(world: Any, growth: Callable[..., float]) -> None:
    reason = {"controller": "machine", "reason": "UnknownPhase"}
    growth("tapestry_reconcile_errors_total", **reason)
    await world.add(world.widgets, "w")
    await world.set_status(world.widgets, "w", phase="Dreaming")
    async with running(world, phase_table(ScriptedHandler(world.clock, Next("Done")))):
        await asyncio.sleep(60)
        assert growth("tapestry_reconcile_errors_total", **reason) == 1
        assert await status(world) == {"phase": "Dreaming"}
        await world.set_status(world.widgets, "w", phase="Working")
        await asyncio.sleep(1)
        assert (await status(world))["phase"] == "Done"


# -- timeouts


@pytest.mark.parametrize(
    "answer", [None, Result(requeue_after=3600), RuntimeError("again and again")], ids=["stays", "waits", "raises"]
)
async def test_phase_fails_at_its_timeout(answer: Any, world: Any) -> None:
    working = ScriptedHandler(world.clock, *[answer] * 100)
    async with running(world, phase_table(working, timeout=60, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(59)
        found = await status(world)
        assert (found["phase"], found["deadline"]) == ("Working", timestamp(START + timedelta(seconds=61)))
        assert found.get("lastError") == (str(answer) if isinstance(answer, Exception) else None)
        await asyncio.sleep(2)
        found = await status(world)
    assert found["phase"] == "Failed"
    assert condition(found, "Failed")["message"] == "not done within 60 s"
    assert condition(found, "Failed")["reason"] == "TimedOut"
    assert "deadline" not in found
    assert condition(found, "Failed")["lastTransitionTime"] == timestamp(START + timedelta(seconds=61))


async def test_hanging_handler_is_cancelled_at_timeout(world: Any) -> None:
    ended: list[float] = []

    async def working(obj: Object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(world.clock.monotonic())

    async with running(world, phase_table(working, timeout=60, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(90)
        assert (await status(world))["phase"] == "Failed"
    assert ended == [61]


async def test_timeout_counts_while_no_manager_runs(world: Any) -> None:
    working = ScriptedHandler(world.clock, Next("Done"))
    await world.add(world.widgets, "w")
    first = ScriptedHandler(world.clock)
    async with running(world, phase_table(first, timeout=60, on_failure="Failed")):
        pass
    await asyncio.sleep(120)
    async with running(world, phase_table(working, timeout=60, on_failure="Failed")):
        assert (await status(world))["phase"] == "Failed"
    assert working.times == []


async def test_timeout_of_first_phase_starts_at_creation(world: Any) -> None:
    phases = {
        "Pending": Phase(stay, to=("Failed",), timeout=100, on_failure="Failed"),
        "Failed": Phase(),
    }
    await world.add(world.widgets, "w")
    await asyncio.sleep(50)
    async with running(world, phases):
        await asyncio.sleep(48)
        found = await status(world)
        assert (found["phase"], found["deadline"]) == ("Pending", timestamp(START + timedelta(seconds=100)))
        await asyncio.sleep(2)
        assert (await status(world))["phase"] == "Failed"


# -- failures


async def test_failed_attempts_are_counted_with_backoff(world: Any) -> None:
    working = ScriptedHandler(world.clock, *[RuntimeError("no luck")] * 10)
    attempts: list[tuple[Any, ...]] = []

    async def noted(obj: Object) -> Any:
        attempts.append(tuple(value_at(obj, "status", field) for field in ("attempts", "retries", "lastError")))
        return await working(obj)

    async with running(world, phase_table(noted, retries=3, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(60)
        found = await status(world)
    assert attempts == [(0, 3, None), (1, 3, "no luck"), (2, 3, "no luck"), (3, 3, "no luck")]
    assert working.times == [0, 0.01, 0.03, 0.07]
    assert (found["phase"], found["attempts"], found.get("lastError")) == ("Failed", 0, None)
    assert condition(found, "Failed")["reason"] == "RetriesExhausted"
    assert condition(found, "Failed")["message"] == "failed 4 times, the last error: no luck"


async def test_long_error_is_truncated_in_status(world: Any) -> None:
    working = ScriptedHandler(world.clock, *[RuntimeError("x" * 3_000_000)] * 10)
    async with running(world, phase_table(working, retries=1, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(1)
        found = await status(world)
    assert found["phase"] == "Failed"
    assert len(condition(found, "Failed")["message"]) < 1100


async def test_attempt_count_survives_a_restart(world: Any) -> None:
    working = ScriptedHandler(world.clock, *[RuntimeError("no luck")] * 10)
    await world.add(world.widgets, "w")
    await world.set_status(world.widgets, "w", phase="Working", attempts=3)
    async with running(world, phase_table(working, retries=3, on_failure="Failed")):
        assert (await status(world))["phase"] == "Failed"
    assert len(working.times) == 1


async def test_next_phase_starts_without_failures(world: Any) -> None:
    working = ScriptedHandler(world.clock, RuntimeError("no luck"), RuntimeError("no luck"), Next("Done"))
    async with running(world, phase_table(working, retries=2, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(60)
        found = await status(world)
    assert (found["phase"], found["attempts"]) == ("Done", 0)


async def test_without_retries_attempts_are_unlimited(world: Any) -> None:
    working = ScriptedHandler(world.clock, *[RuntimeError("no luck")] * 30, Next("Done"))
    async with running(world, phase_table(working)):
        await world.add(world.widgets, "w")
        await asyncio.sleep(86400)
        found = await status(world)
    assert (found["phase"], found["attempts"]) == ("Done", 0)
    assert len(working.times) == 31


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "moved on"), TransportError("silence", maybe_sent=True)])
async def test_unrelated_errors_are_not_counted(error: Exception, world: Any) -> None:
    working = ScriptedHandler(world.clock, *[error] * 5, Next("Done"))
    async with running(world, phase_table(working, retries=0, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(60)
        assert (await status(world))["phase"] == "Done"
    assert len(working.times) == 6


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Terminal("Hopeless", "the source is gone"), "the source is gone"),
        (InvalidSpec("spec.size: -1 is below 0"), "spec.size: -1 is below 0"),
    ],
)
async def test_terminal_error_leads_to_on_failure(error: Exception, message: str, world: Any) -> None:
    working = ScriptedHandler(world.clock, error)
    async with running(world, phase_table(working, retries=5, on_failure="Failed")):
        await world.add(world.widgets, "w")
        await asyncio.sleep(1)
        found = await status(world)
    assert found["phase"] == "Failed"
    assert condition(found, "Failed")["message"] == message


async def test_terminal_error_without_on_failure_waits_for_change(world: Any) -> None:
    working = ScriptedHandler(world.clock, Terminal("Hopeless", "not like this"), Next("Done"))
    async with running(world, phase_table(working)):
        await world.add(world.widgets, "w", spec={"size": 1})
        await asyncio.sleep(3600)
        assert (await status(world))["phase"] == "Working"
        await world.client.patch(world.widgets, object_named("w", "default"), {"spec": {"size": 2}})
        await asyncio.sleep(1)
        assert (await status(world))["phase"] == "Done"


async def test_change_of_object_ends_the_backoff(world: Any) -> None:
    working = ScriptedHandler(world.clock, *[RuntimeError("no luck")] * 14, Next("Done"))
    async with running(world, phase_table(working, retries=20, on_failure="Failed")):
        await world.add(world.widgets, "w", spec={"size": 1})
        await asyncio.sleep(100)
        assert len(working.times) == 14  # the next one would be at 163.83 s
        await world.client.patch(world.widgets, object_named("w", "default"), {"spec": {"size": 2}})
        await asyncio.sleep(1)
        assert (await status(world))["phase"] == "Done"
