"""The state machine: exactly the published edges and the listed additions."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.vclusters import Phase, Verb
from tapestry.vclusters.lifecycle import (
    PUBLISHED,
    TRANSITIONS,
    Edge,
    Event,
    IllegalTransition,
    allowed_phases,
    edges,
    is_legal,
    may_wait,
    mermaid,
    reported_phase,
    start_event,
    transition,
)

DOCUMENT = """
[*] > PENDING
PENDING > CREATING
CREATING > RUNNING ERROR
RUNNING > SCALING UPDATING SUSPENDED SNAPSHOTTING RESTORING DELETING
SCALING > RUNNING ERROR
UPDATING > RUNNING ERROR
SUSPENDED > RESUMING DELETING
RESUMING > RUNNING ERROR
SNAPSHOTTING > RUNNING ERROR
RESTORING > RUNNING ERROR
ERROR > DELETING RUNNING
DELETING > [*]
"""
"""The state diagram of the requirement document."""

ADDITIONS = """
RUNNING > SUSPENDING
SUSPENDING > SUSPENDED RUNNING ERROR
PENDING > ERROR DELETING
CREATING > DELETING
SCALING > DELETING
UPDATING > DELETING
SUSPENDING > DELETING
RESUMING > DELETING
SNAPSHOTTING > DELETING
RESTORING > DELETING
DELETING > ERROR
RUNNING > ERROR
ERROR > UPDATING RESTORING RESUMING CREATING
SUSPENDED > RESTORING SNAPSHOTTING
RESTORING > SUSPENDED
SNAPSHOTTING > SUSPENDED
PENDING > RESTORING
"""


def parsed(text: str) -> Iterator[Edge]:
    for line in text.split("\n"):
        before, _, after = line.partition(" > ")
        for each in after.split():
            yield phase_named(before), phase_named(each)


def phase_named(name: str) -> Phase | None:
    return None if name == "[*]" else Phase[name]


def test_edges_are_those_of_document_and_additions() -> None:
    document, additions = set(parsed(DOCUMENT)), set(parsed(ADDITIONS))
    assert document == PUBLISHED
    assert len([edge for edge in document if None not in edge]) == 23
    assert len({phase for edge in document for phase in edge} - {None}) == 11
    assert not document & additions
    assert set(edges()) == document | additions


def test_every_edge_has_one_event() -> None:
    assert len(list(edges())) == len(set(edges()))
    assert {event for events in TRANSITIONS.values() for event in events} == set(Event)


def test_drawing_has_every_edge() -> None:
    drawn = re.findall(r"^    (\S+) --> (\S+) : (\w+)$", mermaid(), re.MULTILINE)
    assert {(phase_named(before), phase_named(after)) for before, after, _ in drawn} == set(edges())
    assert {event for _, _, event in drawn} == set(Event)


@given(st.sampled_from([None, *Phase]), st.sampled_from(Event))
def test_transition_follows_table_or_is_illegal(phase: Phase | None, event: Event) -> None:
    if event in TRANSITIONS[phase]:
        assert is_legal(phase, transition(phase, event))
    else:
        with pytest.raises(IllegalTransition, match=event):
            transition(phase, event)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_random_events_never_leave_table(events: list[Event]) -> None:
    phase = transition(None, Event.CREATE_REQUESTED)
    for event in events:
        if phase is None:
            break
        if event in TRANSITIONS[phase]:
            after = transition(phase, event)
            assert (phase, after) in set(edges())
            phase = after


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_can_be_left_and_deleted(phase: Phase) -> None:
    assert any(after is not phase for after in TRANSITIONS[phase].values())
    assert phase is Phase.DELETING or start_event(Verb.DELETE, phase) is not None


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_leads_to_the_end(phase: Phase) -> None:
    reached: set[Phase | None] = {phase}
    while True:
        added = {after for before in reached if before is not None for after in TRANSITIONS[before].values()} - reached
        if not added:
            break
        reached |= added
    assert None in reached


@pytest.mark.parametrize(
    ("verb", "phases"),
    [
        (Verb.CREATE, {Phase.PENDING, Phase.ERROR}),
        (Verb.SCALE, {Phase.RUNNING}),
        (Verb.UPDATE, {Phase.RUNNING, Phase.ERROR}),
        (Verb.SUSPEND, {Phase.RUNNING}),
        (Verb.RESUME, {Phase.SUSPENDED, Phase.ERROR}),
        (Verb.SNAPSHOT, {Phase.RUNNING, Phase.SUSPENDED}),
        (Verb.RESTORE, {Phase.RUNNING, Phase.SUSPENDED, Phase.ERROR, Phase.PENDING}),
        (Verb.DELETE, {*Phase} - {Phase.DELETING}),
    ],
)
def test_verbs_start_in_their_phases(verb: Verb, phases: set[Phase]) -> None:
    assert set(allowed_phases(verb)) == phases


def test_failed_cluster_is_deleted_only_by_force() -> None:
    assert start_event(Verb.DELETE, Phase.ERROR) is Event.FORCED_DELETE_REQUESTED
    assert start_event(Verb.DELETE, Phase.RUNNING) is Event.DELETE_REQUESTED


def test_compatible_verbs_wait() -> None:
    assert may_wait(Verb.RESUME, Verb.SUSPEND)
    assert may_wait(Verb.UPDATE, Verb.SCALE)
    assert not may_wait(Verb.SUSPEND, Verb.CREATE)
    assert not any(may_wait(verb, Verb.DELETE) or may_wait(Verb.DELETE, verb) for verb in Verb)


def test_old_clients_see_no_suspending() -> None:
    assert reported_phase(Phase.SUSPENDING, is_compatible=True) is Phase.RUNNING
    assert reported_phase(Phase.SUSPENDING, is_compatible=False) is Phase.SUSPENDING
    assert reported_phase(Phase.ERROR, is_compatible=True) is Phase.ERROR
