"""The orchestrator: carries out the operations that virtual clusters ask for, one at a time in each of them.

Each pass looks at one virtual cluster and writes its status at most once: the phase, the journal and the outbox
together. A step begins after the write that says so, and the write after it begins the next one. A process that is
killed anywhere therefore leaves a journal from which another one continues, by running the step again.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tapestry.apis.keys import VCLUSTER_FINALIZER
from tapestry.apis.operations import OPERATIONS, OperationError
from tapestry.apis.vclusters import VCLUSTERS, Journal, JournalStep, OperationRequest, OutboxEntry, Phase, Verb
from tapestry.client.client import Client
from tapestry.controller import Controller, Manager, Result
from tapestry.controller.informer import ObjectCache
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.errors import AlreadyExists, Conflict, Forbidden, NotFound
from tapestry.kube.objects import Object, is_deleting, key_of, uid_of, value_at, version_of
from tapestry.kube.schemas import to_unstructured
from tapestry.kube.times import parse_time
from tapestry.process.logs import logger
from tapestry.vclusters import operations
from tapestry.vclusters.engines import Engine, Observation, StepFailed, StepNotDone
from tapestry.vclusters.lifecycle import Event, transition
from tapestry.vclusters.metrics import OPERATION_SECONDS, STEP_FAILURES
from tapestry.vclusters.plans import COMPENSATED, Plan, Step, plan, plan_of, timeout

log = logger(__name__)

POLL_SECONDS = 1.0
"""Seconds between two looks at a step that needs more time."""
OBSERVE_SECONDS = 15.0
"""Seconds between two looks at a virtual cluster without an operation."""
MAX_BACKOFF = 30.0
MIN_ATTEMPT_SECONDS = 30.0
"""Minimum time for an attempt."""
LOST_AFTER = timedelta(seconds=30)
"""Time after which a control plane that is not healthy counts as lost."""
UNDO_TIME = timedelta(minutes=5)
"""Time to undo all steps of an operation that has failed."""
DELETE_RETRY_SECONDS = 30.0
WORKERS = 64
"""Virtual clusters whose steps run at the same time. A snapshot or a restore may take minutes."""
HEALTHY = "Healthy"
STATUS_FIELDS = frozenset({"hostCluster", "plane", "apiServerEndpoint", "kubernetesVersion", "lastSnapshot"})
"""Results of steps that are fields of the status. All others are in the journal."""


@dataclass
class Orchestrator:
    """Reconcile virtual clusters; keyed by namespace and name."""

    vclusters: ObjectCache[Object]
    client: Client
    engines: Mapping[str, Engine]
    now: Callable[[], datetime]
    _written: dict[str, int] = field(default_factory=dict)
    """Versions that this process wrote. An older one in the cache is not acted on."""
    _tried: dict[str, tuple[str, Step]] = field(default_factory=dict)
    """Operation and step that this process tried last. Each step is tried at least once, however long nothing ran."""
    _delete_at: dict[str, datetime] = field(default_factory=dict)
    """Time of the next attempt of a deletion that has failed, by UID."""

    async def reconcile(self, key: str) -> Result | None:
        vcluster = self.vclusters.store.get(key)
        if vcluster is None:
            self._written.pop(key, None)
            self._tried.pop(key, None)
            return None
        if int(version_of(vcluster)) < self._written.get(key, 0):
            return None  # the cache gets the newer version
        phase, journal = phase_of(vcluster), journal_of(vcluster)
        if VCLUSTER_FINALIZER not in value_at(vcluster, "metadata", "finalizers", default=[]):
            return None if is_deleting(vcluster) else await self._add_finalizer(vcluster)
        if phase is None:
            return await self._write(vcluster, transition(None, Event.CREATE_REQUESTED), None)
        if journal is None:
            return await self._next(vcluster, phase)
        if is_deletion_requested(vcluster) and journal.verb is not Verb.DELETE:
            return await self._delete(vcluster, phase, journal)
        if journal.error is not None:
            return await self._undo(vcluster, phase, journal)
        if is_cancelled(vcluster, journal):
            return await self._fail(vcluster, phase, journal, OperationError("CANCELLED", "CANCELLED", "cancelled"))
        step = operations.current_step(journal)
        if step is None:
            return await self._end(vcluster, journal, plan_of(journal).success, None)
        return await self._run(vcluster, phase, journal, step)

    # -- start

    async def _next(self, vcluster: Object, phase: Phase) -> Result | None:
        """Start what is requested, or look whether the virtual cluster is healthy."""
        if is_deletion_requested(vcluster):
            return await self._delete(vcluster, phase, None)
        expires = value_at(vcluster, "spec", "expireTime")
        if expires is not None and parse_time(expires) <= self.now():
            await self._request_deletion(vcluster)
            return None
        request = waiting_request(vcluster)
        if request is not None:
            return await self._start(vcluster, phase, request)
        result = await self._observe(vcluster, phase)
        return result if expires is None else earlier(result, parse_time(expires), self.now())

    async def _start(self, vcluster: Object, phase: Phase, request: OperationRequest) -> Result | None:
        found, now = plan(request.verb, phase, request.arguments), self.now()
        try:
            journal = operations.new_journal(request, phase, found.steps if found is not None else (), now)
        except operations.JournalTooLarge as error:
            small = msgspec.structs.replace(request, arguments={})
            journal, found = operations.new_journal(small, phase, (), now), None
            problem = OperationError("INVALID_ARGUMENT", "FIELD_INVALID", f"the arguments have {error.size} bytes")
        else:
            problem = OperationError("FAILED_PRECONDITION", "PHASE_NOT_ALLOWED", f"not possible in the phase {phase}")
        if found is None:
            return await self._end(vcluster, journal, None, problem)
        return await self._write(vcluster, after(phase, found.start), self._begun(journal, found))

    async def _delete(self, vcluster: Object, phase: Phase, running: Journal | None) -> Result | None:
        """Start to delete a virtual cluster. What runs there ends now."""
        if not is_deleting(vcluster):
            await self._request_deletion(vcluster)
            return None
        wait = self._delete_at.get(uid_of(vcluster), self.now()) - self.now()
        if wait > timedelta(0):
            return Result(requeue_after=wait.total_seconds())
        request = deletion_request(vcluster)
        found = plan(Verb.DELETE, phase, request.arguments)
        assert found is not None  # a deletion starts in each phase but its own, in which there is a journal
        if running is not None:
            error = OperationError("CANCELLED", "DELETED", "the virtual cluster is being deleted")
            await self._record(vcluster, running, Phase.DELETING, error)
        journal = operations.new_journal(request, phase, found.steps, self.now())
        ended = {"lastOperation": running.id} if running is not None else {}
        return await self._write(vcluster, after(phase, found.start), self._begun(journal, found), ended)

    def _begun(self, journal: Journal, found: Plan) -> Journal:
        first = found.steps[0]
        return operations.step_begun(journal, first, self.now() + timeout(first, journal.arguments), self.now())

    # -- steps

    async def _run(self, vcluster: Object, phase: Phase, journal: Journal, step: JournalStep) -> Result | None:
        found, name, now = plan_of(journal), Step(step.name), self.now()
        if step.state == "Pending" or step.deadline is None:  # written by hand
            deadline = now + timeout(name, journal.arguments)
            return await self._write(vcluster, phase, operations.step_begun(journal, name, deadline, now))
        left = (step.deadline - now).total_seconds()
        attempt, key = (journal.id, name), key_of(vcluster)
        if left <= 0 and self._tried.get(key) == attempt:
            message = f"{name} did not end in time: {step.error or value_at(vcluster, 'status', 'message', default='')}"
            return await self._fail(vcluster, phase, journal, OperationError("DEADLINE_EXCEEDED", "TIMEOUT", message))
        self._tried[key] = attempt
        left = max(left, MIN_ATTEMPT_SECONDS)
        try:
            async with asyncio.timeout(left):
                data = await self._engine(vcluster).run(name, vcluster, journal)
        except StepNotDone as error:
            await self._write(vcluster, phase, journal, {"message": operations.truncated(str(error))})
            return Result(requeue_after=min(POLL_SECONDS, left))
        except StepFailed as error:
            problem = OperationError(error.code, error.reason, operations.truncated(str(error)))
            return await self._fail(vcluster, phase, journal, problem)
        except Conflict:
            raise  # the cache is behind
        except Exception as error:  # noqa: BLE001  an engine may raise anything, and the deadline ends its attempts
            STEP_FAILURES.inc(journal.verb.value, name)
            log.warning("step of a virtual cluster failed, trying again", step=name, error=str(error))
            again = operations.step_begun(operations.step_error(journal, name, str(error)), name, step.deadline, now)
            await self._write(vcluster, phase, again, {"message": operations.truncated(str(error))})
            return Result(requeue_after=min(2.0 ** min(step.attempt, 8) / 4, MAX_BACKOFF, left))
        fields = {key: value for key, value in data.items() if key in STATUS_FIELDS}
        rest = {key: value for key, value in data.items() if key not in STATUS_FIELDS}
        done = operations.step_done(journal, name, self.now(), rest)
        following = operations.current_step(done)
        if following is None:
            return await self._end(vcluster, done, found.success, None, fields)
        now, next_name = self.now(), Step(following.name)
        done = operations.step_begun(done, next_name, now + timeout(next_name, journal.arguments), now)
        return await self._write(vcluster, after(phase, found.after.get(name)), done, fields)

    async def _fail(self, vcluster: Object, phase: Phase, journal: Journal, error: OperationError) -> Result | None:
        """Stop at the current step. What was done is undone next."""
        step = operations.current_step(journal)
        name = step.name if step is not None else ""
        STEP_FAILURES.inc(journal.verb.value, name)
        failed = operations.step_failed(journal, name, error.message, self.now())
        data = {**failed.data, "code": error.code, "reason": error.reason}
        return await self._write(vcluster, phase, msgspec.structs.replace(failed, data=data))

    async def _undo(self, vcluster: Object, phase: Phase, journal: Journal) -> Result | None:
        """Undo the last step that is not undone yet; when all are, end the operation."""
        found, now = plan_of(journal), self.now()
        error = OperationError(journal.data["code"], journal.data["reason"], journal.error or "")
        name = next(iter(operations.to_compensate(journal)), None)
        if name is None:
            event = found.undone
            if journal.verb is Verb.SNAPSHOT and journal.phase_from is Phase.RUNNING:
                observation = await self._engine(vcluster).observe(vcluster)
                event = found.undone if observation.is_healthy else found.failure
            return await self._end(vcluster, journal, event, error)
        if Step(name) in COMPENSATED:
            ended = [step.end_time for step in journal.steps if step.state == "Failed" and step.end_time]
            try:
                await self._engine(vcluster).undo(Step(name), vcluster, journal)
            except Exception as problem:  # noqa: BLE001  an engine may raise anything
                if now - max(ended, default=now) < UNDO_TIME:
                    log.warning("step of a virtual cluster not undone, trying again", step=name, error=str(problem))
                    return Result(requeue_after=POLL_SECONDS)
                return await self._end(vcluster, journal, found.failure, error)
        return await self._write(vcluster, phase, operations.step_compensated(journal, name, now))

    # -- end

    async def _end(
        self,
        vcluster: Object,
        journal: Journal,
        event: Event | None,
        error: OperationError | None,
        fields: Mapping[str, Any] | None = None,
    ) -> Result | None:
        """Record an operation, then clear its journal. Both may happen again."""
        phase = phase_of(vcluster)
        assert phase is not None  # it has a journal
        next_phase = transition(phase, event) if event is not None else phase
        await self._record(vcluster, journal, next_phase, error)
        if next_phase is None:
            return await self._remove_finalizer(vcluster)
        if journal.verb is Verb.DELETE:
            self._delete_at[uid_of(vcluster)] = self.now() + timedelta(seconds=DELETE_RETRY_SECONDS)
        status = {"lastOperation": journal.id, "message": None, "reason": None, **(fields or {})}
        if error is not None:
            status |= {"message": error.message, "reason": error.reason}
            vcluster = await self._reset_suspended(vcluster, journal, next_phase)
        return await self._write(vcluster, next_phase, None, status)

    async def _reset_suspended(self, vcluster: Object, journal: Journal, phase: Phase) -> Object:
        """Undo the change of `suspended` by an operation that did not succeed, so that it can be requested again."""
        is_newest = value_at(vcluster, "spec", "operation", "id") == journal.id
        suspended = {Phase.RUNNING: False, Phase.SUSPENDED: True}.get(phase, journal.verb is Verb.RESUME)
        is_changed = bool(vcluster["spec"].get("suspended")) != suspended
        if journal.verb not in (Verb.SUSPEND, Verb.RESUME) or not is_newest or not is_changed:
            return vcluster
        return await self.client.patch(VCLUSTERS, vcluster, {"spec": {"suspended": suspended}})

    async def _record(
        self, vcluster: Object, journal: Journal, phase: Phase | None, error: OperationError | None
    ) -> None:
        record = operations.operation_object(vcluster, journal, phase, error, self.now())
        try:
            created = await self.client.create(OPERATIONS, {**record, "status": {}})
        except AlreadyExists:
            created = await self.client.get(OPERATIONS, journal.id, record["metadata"]["namespace"])
        except (Forbidden, NotFound):  # the namespace is being deleted, and with it all records
            log.warning("record of an operation not written", operation=journal.id, vcluster=key_of(vcluster))
            return
        if value_at(created, "status", "result") != record["status"]["result"]:  # an earlier attempt may differ
            status = exact_patch(created.get("status"), record["status"])
            await self.client.patch(OPERATIONS, created, {"status": status}, subresource="status")
            seconds = (self.now() - journal.start_time).total_seconds()
            OPERATION_SECONDS.labels(journal.verb.value, record["status"]["result"]).observe(seconds)

    # -- observation

    async def _observe(self, vcluster: Object, phase: Phase) -> Result | None:
        if phase not in (Phase.RUNNING, Phase.ERROR):
            return None
        observation = await self._engine(vcluster).observe(vcluster)
        status = observed_status(vcluster, observation, self.now())
        event = observed_event(phase, status, self.now())
        await self._write(vcluster, after(phase, event), None, status)
        return Result(requeue_after=OBSERVE_SECONDS)

    # -- writes

    def _engine(self, vcluster: Object) -> Engine:
        return self.engines[value_at(vcluster, "spec", "engine", default="native")]

    async def _write(
        self, vcluster: Object, phase: Phase | None, journal: Journal | None, fields: Mapping[str, Any] | None = None
    ) -> Result | None:
        """Write the status: phase, journal and outbox in one patch of exactly this version.

        Return None: the change causes the next pass.
        """
        before = vcluster.get("status") or {}
        status: Object = {
            "phase": phase,
            "journal": to_unstructured(journal) if journal is not None else None,
            "observedGeneration": value_at(vcluster, "metadata", "generation"),
            **(fields or {}),
        }
        if phase != before.get("phase"):
            sequence = before.get("lastSequence", 0) + 1
            data = {"from": str(before.get("phase", "")), "to": str(phase)}
            entry = OutboxEntry("vcluster.phase.changed", sequence, self.now(), data=data)
            outbox = msgspec.convert(before.get("outbox") or [], tuple[OutboxEntry, ...])
            status |= {"outbox": to_unstructured(operations.with_entry(outbox, entry)), "lastSequence": sequence}
            status = {"message": None, "reason": None} | status
        changed = {key: value for key, value in status.items() if before.get(key) != value}
        if changed:
            patch = {name: exact_patch(before.get(name), value) for name, value in changed.items()}
            written = await self.client.patch(VCLUSTERS, vcluster, {"status": patch}, subresource="status")
            self._written[key_of(vcluster)] = int(version_of(written))
        return None

    async def _add_finalizer(self, vcluster: Object) -> Result | None:
        finalizers = value_at(vcluster, "metadata", "finalizers", default=[])
        return await self._write_finalizers(vcluster, [*finalizers, VCLUSTER_FINALIZER])

    async def _remove_finalizer(self, vcluster: Object) -> Result | None:
        others = [each for each in vcluster["metadata"]["finalizers"] if each != VCLUSTER_FINALIZER]
        self._delete_at.pop(uid_of(vcluster), None)
        return await self._write_finalizers(vcluster, others)

    async def _write_finalizers(self, vcluster: Object, finalizers: list[str]) -> Result | None:
        written = await self.client.patch(VCLUSTERS, vcluster, {"metadata": {"finalizers": finalizers}})
        self._written[key_of(vcluster)] = int(version_of(written))
        return None

    async def _request_deletion(self, vcluster: Object) -> None:
        await self.client.delete(VCLUSTERS, vcluster)


def exact_patch(before: Any, value: Any) -> Any:
    """Return a merge patch after which a field has exactly this value."""
    if not isinstance(before, dict) or not isinstance(value, dict):
        return value
    removed = dict.fromkeys(before.keys() - value.keys())
    return {**removed, **{key: exact_patch(before.get(key), each) for key, each in value.items()}}


def after(phase: Phase, event: Event | None) -> Phase:
    """Return the phase after an event that does not end the virtual cluster; the same phase without an event."""
    if event is None:
        return phase
    result = transition(phase, event)
    assert result is not None
    return result


def phase_of(vcluster: Object) -> Phase | None:
    found = value_at(vcluster, "status", "phase")
    return Phase(found) if found else None


def journal_of(vcluster: Object) -> Journal | None:
    found = value_at(vcluster, "status", "journal")
    return msgspec.convert(found, Journal) if found else None


def waiting_request(vcluster: Object) -> OperationRequest | None:
    """Return the requested operation that has not run yet."""
    found = value_at(vcluster, "spec", "operation")
    if not found or found["id"] == value_at(vcluster, "status", "lastOperation"):
        return None
    return msgspec.convert(found, OperationRequest)


def is_deletion_requested(vcluster: Object) -> bool:
    request = waiting_request(vcluster)
    return is_deleting(vcluster) or (request is not None and request.verb is Verb.DELETE)


def deletion_request(vcluster: Object) -> OperationRequest:
    """Return the request to delete: that of the service, or one for a deletion by kubectl or an expiry."""
    request = value_at(vcluster, "spec", "operation")
    if request and request["verb"] == Verb.DELETE:
        return msgspec.convert(request, OperationRequest)
    id = operations.operation_id("", "DeleteVCluster", uid_of(vcluster))
    return OperationRequest(id, Verb.DELETE, "")


def is_cancelled(vcluster: Object, journal: Journal) -> bool:
    """Return whether the running operation is to end. A deletion cannot: a part of the cluster is gone already."""
    if journal.verb is Verb.DELETE:
        return False
    request = value_at(vcluster, "spec", "operation")
    return bool(request) and request["id"] == journal.id and bool(request.get("cancelled"))


def observed_status(vcluster: Object, observation: Observation, now: datetime) -> Object:
    conditions = value_at(vcluster, "status", "conditions", default=[])
    reason = "Healthy" if observation.is_healthy else "Unhealthy"
    own = new_condition(HEALTHY, observation.is_healthy, reason, observation.message)
    for each in (own, *observation.conditions):
        conditions = with_condition(conditions, each, now)
    return {**observation.status, "conditions": conditions}


def observed_event(phase: Phase, status: Object, now: datetime) -> Event | None:
    """Return the event of a control plane that was lost, or has recovered."""
    healthy = find_condition(status["conditions"], HEALTHY)
    assert healthy is not None  # it was just set
    if phase is Phase.ERROR and healthy["status"] == "True":
        return Event.RECOVERED
    is_lost = healthy["status"] == "False" and now - parse_time(healthy["lastTransitionTime"]) >= LOST_AFTER
    return Event.CONTROL_PLANE_LOST if phase is Phase.RUNNING and is_lost else None


def earlier(result: Result | None, time: datetime, now: datetime) -> Result:
    seconds = max((time - now).total_seconds(), 0)
    if result is not None and result.requeue_after is not None:
        seconds = min(seconds, result.requeue_after)
    return Result(requeue_after=seconds)


def install(manager: Manager, engines: Mapping[str, Engine]) -> Controller:
    """Add the orchestrator to a manager of the management API, and return its controller.

    The caller may let it watch what engines make, so that a step that waits for it continues at once.
    """
    vclusters = manager.informer(VCLUSTERS)
    orchestrator = Orchestrator(vclusters, manager.client, engines, manager.now)
    controller = manager.controller("vclusters", orchestrator.reconcile, workers=WORKERS)
    controller.watch(vclusters)
    return controller
