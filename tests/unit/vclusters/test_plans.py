"""Plans: their events are those of the state machine, wherever an operation may start."""

from typing import Any

import pytest

from tapestry.apis.vclusters import Phase, Verb
from tapestry.vclusters.lifecycle import TRANSITIONS, transition
from tapestry.vclusters.plans import TIMEOUTS, Plan, Step, plan, timeout

ARGUMENTS = [
    {"createSnapshot": snapshot, "drainWorkloads": drain, "deleteSnapshots": drain, "reconcileWorkloads": snapshot}
    for snapshot in (False, True)
    for drain in (False, True)
]
PLANS = [
    (verb, phase, arguments, found)
    for verb in Verb
    for phase in Phase
    for arguments in ARGUMENTS
    if (found := plan(verb, phase, arguments)) is not None
]


@pytest.mark.parametrize(("verb", "phase", "arguments", "found"), PLANS)
def test_every_course_of_a_plan_is_legal(verb: Verb, phase: Phase, arguments: dict[str, Any], found: Plan) -> None:
    current: Phase | None = transition(phase, found.start) if found.start is not None else phase
    for step in found.steps:
        for end in (found.failure, found.undone):
            if end is not None:
                transition(current, end)
        if step in found.after:
            current = transition(current, found.after[step])
    assert transition(current, found.success) is not Phase.ERROR
    assert found.steps


@pytest.mark.parametrize("verb", Verb)
def test_every_verb_has_a_plan(verb: Verb) -> None:
    assert any(each[0] is verb for each in PLANS)


def test_every_step_has_a_time_limit() -> None:
    assert TIMEOUTS.keys() == set(Step) - {Step.DRAIN}
    assert timeout(Step.DRAIN, {}).total_seconds() == 60
    assert timeout(Step.DRAIN, {"drainTimeoutSeconds": 5}).total_seconds() == 5
    assert timeout(Step.DRAIN, {"drainTimeoutSeconds": 2**31}).total_seconds() == 24 * 3600


def test_busy_phases_have_no_plans() -> None:
    busy = {Phase.SCALING, Phase.UPDATING, Phase.RESUMING, Phase.SUSPENDING, Phase.SNAPSHOTTING, Phase.RESTORING}
    assert all(verb is Verb.DELETE for verb, phase, _, _ in PLANS if phase in busy | {Phase.CREATING})
    assert not any(phase is Phase.DELETING for _, phase, _, _ in PLANS)
    assert set(TRANSITIONS) == {None, *Phase}
