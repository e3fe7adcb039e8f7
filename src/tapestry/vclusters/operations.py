"""Operations: their names, their journal in the status of a virtual cluster, the outbox, and their records.

All functions are pure. The orchestrator writes their results: the journal with each step, and an Operation object when
the operation has ended.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from tapestry.apis.operations import MAX_OPERATION_DAYS, MAX_OPERATIONS, OPERATIONS, OperationError
from tapestry.apis.vclusters import MAX_ERROR, MAX_OUTBOX, Journal, JournalStep, OperationRequest, OutboxEntry, Phase
from tapestry.kube.objects import Object, name_of, namespace_of, uid_of, value_at
from tapestry.kube.schemas import to_unstructured
from tapestry.kube.times import parse_time

MAX_JOURNAL = 32 << 10
"""Maximum size of a journal in bytes of JSON."""
MAX_ARGUMENTS = 8 << 10
"""Maximum size of the arguments of an operation in bytes of JSON."""
ID_CHARACTERS = 26
"""Length of the hash in an id: 130 bits."""
RETENTION = timedelta(days=MAX_OPERATION_DAYS)
NOT_DIGESTED = frozenset({"requestId", "waitForReady", "timeoutSeconds"})
"""Fields that may differ when a request is repeated."""
TRUNCATED = "... (truncated)"


def operation_id(principal: str, method: str, request_id: str) -> str:
    """Return the id of an operation. A repeated request has the same one; no other request has it."""
    digest = hashlib.sha256(msgspec.json.encode([principal, method, request_id])).digest()
    return f"op-{base64.b32encode(digest).decode().lower()[:ID_CHARACTERS]}"


def snapshot_id(operation: str) -> str:
    """Return the id of the snapshot that an operation takes."""
    return f"snap-{operation.removeprefix('op-')}"


def request_digest(method: str, request: Mapping[str, Any]) -> str:
    """Return a hash of a request without its request id, to tell a repeated request from another one."""
    fields = {key: value for key, value in request.items() if key not in NOT_DIGESTED}
    return hashlib.sha256(msgspec.json.encode([method, fields], order="sorted")).hexdigest()


def truncated(text: str, limit: int = MAX_ERROR) -> str:
    return text if len(text) <= limit else text[: limit - len(TRUNCATED)] + TRUNCATED


# -- journal


@dataclass(frozen=True)
class JournalTooLarge(Exception):
    """Error if an operation does not fit into the journal. Nothing of it has begun."""

    size: int


def new_journal(request: OperationRequest, phase: Phase, steps: Sequence[str], now: datetime) -> Journal:
    """Return the journal of an operation before its first step. Raises JournalTooLarge.

    All its steps are in it from the beginning, so that readers see what follows.
    """
    if (size := len(msgspec.json.encode(request.arguments))) > MAX_ARGUMENTS:
        raise JournalTooLarge(size)
    return Journal(
        id=request.id,
        verb=request.verb,
        phase_from=phase,
        start_time=now,
        principal=request.principal,
        request_id=request.request_id,
        request_digest=request.request_digest,
        arguments=request.arguments,
        steps=tuple(JournalStep(name, "Pending") for name in steps),
    )


def current_step(journal: Journal) -> JournalStep | None:
    """Return the step that runs or is next; None if all have ended."""
    return next((step for step in journal.steps if step.state in ("Pending", "Running")), None)


def step_begun(journal: Journal, name: str, deadline: datetime, now: datetime) -> Journal:
    """Return the journal with another attempt of a step. Its deadline and start are those of the first attempt."""

    def begun(step: JournalStep) -> JournalStep:
        if step.state == "Running":
            return replace(step, attempt=step.attempt + 1)
        return replace(step, state="Running", attempt=1, start_time=now, deadline=deadline)

    return with_step(journal, name, begun)


def step_done(journal: Journal, name: str, now: datetime, data: Mapping[str, str] | None = None) -> Journal:
    """Return the journal after a step, with results that later steps need."""
    done = with_step(journal, name, lambda step: replace(step, state="Done", end_time=now, error=None))
    return bounded(replace(done, data={**done.data, **(data or {})}))


def step_error(journal: Journal, name: str, error: str) -> Journal:
    """Return the journal after an attempt that failed and will be repeated."""
    return bounded(with_step(journal, name, lambda step: replace(step, error=truncated(error))))


def step_failed(journal: Journal, name: str, error: str, now: datetime) -> Journal:
    """Return the journal after a step that is not repeated. The steps before it are compensated next."""
    text = truncated(error)
    failed = with_step(journal, name, lambda step: replace(step, state="Failed", end_time=now, error=text))
    return bounded(replace(failed, error=text))


def to_compensate(journal: Journal) -> list[str]:
    """Return the steps of a failed operation that may have had effects, the last one first."""
    states = ("Done", "Failed", "Running")
    return [step.name for step in reversed(journal.steps) if step.state in states]


def step_compensated(journal: Journal, name: str, now: datetime) -> Journal:
    return with_step(journal, name, lambda step: replace(step, state="Compensated", end_time=now))


def with_step(journal: Journal, name: str, change: Any) -> Journal:
    return replace(journal, steps=tuple(change(step) if step.name == name else step for step in journal.steps))


def bounded(journal: Journal) -> Journal:
    """Return a journal that is not too large. The errors of the oldest steps are shortened first."""
    result = journal
    for number, step in enumerate(journal.steps):
        if len(msgspec.json.encode(result)) <= MAX_JOURNAL:
            break
        if step.error:
            short = replace(step, error=truncated(step.error, 64))
            result = replace(result, steps=(*result.steps[:number], short, *result.steps[number + 1 :]))
    return result


def progress_percent(journal: Journal) -> int:
    ended = sum(step.state not in ("Pending", "Running") for step in journal.steps)
    return 100 * ended // max(len(journal.steps), 1)


# -- outbox


def with_entry(outbox: Sequence[OutboxEntry], entry: OutboxEntry) -> tuple[OutboxEntry, ...]:
    """Return the outbox with another entry. When it is full, the oldest entry whose kind occurs again is merged."""
    entries = [*outbox, entry]
    while len(entries) > MAX_OUTBOX:
        kinds = [each.kind for each in entries]
        oldest = next((at for at, kind in enumerate(kinds) if kind in kinds[at + 1 :]), 0)
        merged = entries.pop(oldest)
        following = next((at for at in range(oldest, len(entries)) if entries[at].kind == merged.kind), None)
        if following is not None:
            newer = entries[following]
            entries[following] = replace(newer, merged=newer.merged + merged.merged + 1)
    return tuple(entries)


# -- records


def operation_object(
    vcluster: Object, journal: Journal, phase: Phase | None, error: OperationError | None, now: datetime
) -> Object:
    """Return the record of an operation that has ended, with the phase that followed; None if nothing is left."""
    result = "Succeeded" if error is None else "Cancelled" if error.code == "CANCELLED" else "Failed"
    status = {
        "result": result,
        "phaseFrom": journal.phase_from,
        "phaseTo": phase,
        "startTime": journal.start_time,
        "endTime": now,
        "steps": journal.steps,
        "error": error,
        "snapshot": journal.data.get("snapshot"),
    }
    return {
        "apiVersion": OPERATIONS.api_version,
        "kind": OPERATIONS.kind,
        "metadata": {"name": journal.id, "namespace": namespace_of(vcluster)},
        "spec": {
            "verb": journal.verb.value,
            "vcluster": name_of(vcluster),
            "vclusterUid": uid_of(vcluster),
            "project": value_at(vcluster, "spec", "project", default=""),
            "principal": journal.principal,
            "requestId": journal.request_id,
            "requestDigest": journal.request_digest,
        },
        "status": {key: to_unstructured(value) for key, value in status.items() if value is not None},
    }


def outdated(operations: Iterable[Object], now: datetime) -> Iterator[Object]:
    """Yield the records to delete: those that are too old, and the oldest of a virtual cluster with too many."""
    by_vcluster: dict[str, list[Object]] = {}
    for each in operations:
        by_vcluster.setdefault(each["spec"]["vclusterUid"], []).append(each)
    for records in by_vcluster.values():
        records.sort(key=end_of, reverse=True)
        for number, each in enumerate(records):
            if number >= MAX_OPERATIONS or end_of(each) < now - RETENTION:
                yield each


def end_of(operation: Object) -> datetime:
    return parse_time(value_at(operation, "status", "endTime") or operation["metadata"]["creationTimestamp"])
