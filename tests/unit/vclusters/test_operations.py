"""Operations: names, journals within their limits, outboxes and records."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.apis.operations import OPERATION, OperationError, OperationStatus
from tapestry.apis.vclusters import MAX_ERROR, MAX_OUTBOX, Journal, OperationRequest, OutboxEntry, Phase, Verb
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, name_of
from tapestry.kube.times import timestamp
from tapestry.vclusters.operations import (
    MAX_JOURNAL,
    JournalTooLarge,
    bounded,
    current_step,
    new_journal,
    operation_id,
    operation_object,
    outdated,
    progress_percent,
    request_digest,
    step_begun,
    step_compensated,
    step_done,
    step_error,
    step_failed,
    to_compensate,
    with_entry,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = operation_id("jane", "CreateVCluster", "r")
REQUEST = OperationRequest(ID, Verb.CREATE, "jane", "r", "digest", {"timeoutSeconds": 5})
STEPS = ("place", "install", "wait")


def new(steps: tuple[str, ...] = STEPS) -> Journal:
    return new_journal(REQUEST, Phase.PENDING, steps, NOON)


def begun(journal: Journal, name: str) -> Journal:
    return step_begun(journal, name, NOON + timedelta(minutes=5), NOON)


def test_repeated_request_has_same_id() -> None:
    assert operation_id("jane", "CreateVCluster", "r") == ID
    others = [("joe", "CreateVCluster", "r"), ("jane", "ScaleVCluster", "r"), ("jane", "CreateVCluster", "s")]
    assert len({ID, *(operation_id(*each) for each in others)}) == 4
    assert operation_id("a", "b", "c,d") != operation_id("a", "b,c", "d")
    assert msgspec.convert({"id": ID, "verb": "Create", "principal": "j"}, OperationRequest).id == ID


def test_digest_ignores_how_long_the_caller_waits() -> None:
    request = {"name": "v", "spec": {"replicas": 1, "distro": "k8s"}}
    same = {"spec": {"distro": "k8s", "replicas": 1}, "name": "v", "requestId": "r", "waitForReady": True}
    assert request_digest("CreateVCluster", request) == request_digest("CreateVCluster", same)
    assert request_digest("CreateVCluster", {**request, "name": "w"}) != request_digest("CreateVCluster", request)


def test_steps_follow_each_other() -> None:
    journal = new()
    for number, name in enumerate(STEPS):
        step = current_step(journal)
        assert step is not None
        assert (step.name, step.state, progress_percent(journal)) == (name, "Pending", 100 * number // 3)
        journal = step_done(begun(journal, name), name, NOON, {name: "result"})
    assert current_step(journal) is None
    assert progress_percent(journal) == 100
    assert journal.data == dict.fromkeys(STEPS, "result")


def test_attempts_keep_the_deadline() -> None:
    first = begun(new(), "place")
    again = step_begun(
        step_error(first, "place", "no"), "place", NOON + timedelta(hours=1), NOON + timedelta(minutes=1)
    )
    step = current_step(again)
    assert step is not None
    assert (step.attempt, step.start_time, step.deadline) == (2, NOON, NOON + timedelta(minutes=5))
    assert step.error == "no"


def test_failed_steps_are_compensated_in_reverse() -> None:
    journal = step_done(begun(new(), "place"), "place", NOON)
    journal = step_failed(begun(journal, "install"), "install", "no room", NOON)
    assert journal.error == "no room"
    assert to_compensate(journal) == ["install", "place"]
    journal = step_compensated(journal, "install", NOON)
    assert to_compensate(journal) == ["place"]
    assert to_compensate(step_compensated(journal, "place", NOON)) == []


def test_large_arguments_are_rejected() -> None:
    request = msgspec.structs.replace(REQUEST, arguments={"description": "a" * 20_000})
    with pytest.raises(JournalTooLarge):
        new_journal(request, Phase.PENDING, STEPS, NOON)


def test_long_errors_are_truncated() -> None:
    journal = step_failed(new(), "place", "a" * 100_000, NOON)
    assert journal.error is not None
    assert len(journal.error) == MAX_ERROR
    assert journal.error.endswith("(truncated)")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(max_size=3000)), max_size=200))
def test_journal_is_never_too_large(attempts: list[tuple[str, str]]) -> None:
    steps = tuple(f"{letter}{number}" for number in range(4) for letter in "abcdef")
    request = msgspec.structs.replace(REQUEST, arguments={"a": "é" * 4000})
    journal = new_journal(request, Phase.PENDING, steps, NOON)
    journal = step_done(journal, steps[0], NOON, {f"d{number}": "é" * 128 for number in range(16)})
    for number, (letter, error) in enumerate(attempts):
        journal = step_error(journal, f"{letter}{number % 4}", error)
    assert len(msgspec.json.encode(journal)) <= MAX_JOURNAL
    assert bounded(journal) == journal


@given(
    st.lists(st.sampled_from(["phase", "operation", "quota"] + [f"k{number}" for number in range(60)]), max_size=150)
)
def test_outbox_is_bounded_and_counts_what_it_merged(kinds: list[str]) -> None:
    outbox: tuple[OutboxEntry, ...] = ()
    for sequence, kind in enumerate(kinds, 1):
        outbox = with_entry(outbox, OutboxEntry(kind, sequence, NOON))
    assert len(outbox) <= MAX_OUTBOX
    assert [each.sequence for each in outbox] == sorted(each.sequence for each in outbox)
    if len(set(kinds)) <= MAX_OUTBOX:
        assert {each.kind for each in outbox} == set(kinds)
        assert sum(each.merged + 1 for each in outbox) == len(kinds)


VCLUSTER: Object = {"metadata": {"name": "v", "namespace": "ns", "uid": "u"}, "spec": {"project": "shop"}}


def test_record_says_how_the_operation_ended() -> None:
    journal = step_failed(begun(new(), "place"), "place", "full", NOON)
    error = OperationError("FAILED_PRECONDITION", "NO_HOST_CAPACITY", "full")
    record = operation_object(VCLUSTER, journal, Phase.ERROR, error, NOON)
    assert (name_of(record), record["status"]["result"]) == (ID, "Failed")
    assert decode_spec(OPERATION, record).request_digest == "digest"
    status = msgspec.convert(record["status"], OperationStatus, strict=False)
    assert (status.phase_from, status.phase_to, status.error) == (Phase.PENDING, Phase.ERROR, error)
    cancelled = OperationError("CANCELLED", "CANCELLED", "by jane")
    assert operation_object(VCLUSTER, journal, None, cancelled, NOON)["status"]["result"] == "Cancelled"
    assert operation_object(VCLUSTER, journal, None, None, NOON)["status"]["result"] == "Succeeded"


def record(number: int, ended: datetime, uid: str = "u") -> Object:
    return {"metadata": {"name": f"op-{number}"}, "spec": {"vclusterUid": uid}, "status": {"endTime": timestamp(ended)}}


def test_old_records_are_outdated() -> None:
    records = [record(number, NOON - timedelta(days=number)) for number in range(10)]
    assert [name_of(each) for each in outdated(records, NOON)] == ["op-8", "op-9"]


def test_each_cluster_keeps_its_newest_records() -> None:
    records = [record(number, NOON - timedelta(minutes=number), uid) for number in range(60) for uid in "uw"]
    found = [*outdated(records, NOON)]
    assert len(found) == 20
    assert {name_of(each) for each in found} == {f"op-{number}" for number in range(50, 60)}
