"""Status of a simulated pod over time. Pure.

Annotations of the pod define its lifecycle.  Without any, it runs until it is deleted or, if its restart policy is not
Always, succeeds after a few seconds:

  simulated.tapestry.io/starts-after: 2s     time until its containers run
  simulated.tapestry.io/ready-after: 5s      time from then until they are ready
  simulated.tapestry.io/ends-after: 30s      run time of its containers, or `never`
  simulated.tapestry.io/exit-code: "1"       exit code of its containers
  simulated.tapestry.io/stops-after: 1s      time from its deletion until it is gone, at most its grace period

The command `sleep 60` of a container also defines the run time; the longest counts.  Init containers succeed at once
before the others start; sidecars run as long as the others.
"""

import re
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, uid_of, value_at
from tapestry.kube.pods import is_pod_terminal, is_sidecar
from tapestry.kube.times import parse_duration, parse_time
from tapestry.local.statuses import (
    SIGTERM_EXIT_CODE,
    ContainerStatuses,
    PodAddresses,
    container_status,
    exit_code,
    failed_pod_status,
    pod_status,
    restart_policy,
    running_state,
    status_differs,
    terminated_state,
    waiting_state,
)

PREFIX = keys.SIMULATED_PREFIX
STARTS_AFTER, READY_AFTER, ENDS_AFTER, EXIT_CODE, STOPS_AFTER = (
    PREFIX + each for each in ("starts-after", "ready-after", "ends-after", "exit-code", "stops-after")
)
NEVER = "never"
SLEEP_PATTERN = re.compile(r"sleep \d{1,9}")
NO_DELAY = timedelta()
DEFAULT_RUN_TIME = timedelta(seconds=5)
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=5)
MAX_EXIT_CODE = 255


class StatusUpdate(NamedTuple):
    """Status to report now, and time of the next change; None if there is none."""

    status: Object | None
    next_update: datetime | None = None


class SimulatedLifecycle(NamedTuple):
    """Timing and exit code of a simulated pod."""

    starts_after: timedelta
    ready_after: timedelta
    ends_after: timedelta | None
    code: int
    stops_after: timedelta


class Run(NamedTuple):
    """One run of a pod's containers; it may start in the future, after a backoff."""

    number: int
    started: datetime
    ended: datetime | None
    """End of the last run; None otherwise."""


def lifecycle_of(pod: Object) -> SimulatedLifecycle:
    """Parse the annotations; ignore invalid values."""
    annotations = annotations_of(pod)

    def duration_of(key: str, default: timedelta | None) -> timedelta | None:
        text = annotations.get(key)
        if text == NEVER:
            return None
        try:
            return max(parse_duration(text), NO_DELAY) if text else default
        except ValueError:
            return default

    default_run_time = sleep_duration(pod) or (DEFAULT_RUN_TIME if restart_policy(pod) != "Always" else None)
    code = annotations.get(EXIT_CODE, "0")
    return SimulatedLifecycle(
        duration_of(STARTS_AFTER, NO_DELAY) or NO_DELAY,
        duration_of(READY_AFTER, NO_DELAY) or NO_DELAY,
        duration_of(ENDS_AFTER, default_run_time),
        min(int(code), MAX_EXIT_CODE) if code.isdecimal() else 1,
        duration_of(STOPS_AFTER, NO_DELAY) or NO_DELAY,
    )


def sleep_duration(pod: Object) -> timedelta | None:
    """Return the longest sleep of its containers; None if none only sleeps."""
    commands = [[*each.get("command", ()), *each.get("args", ())] for each in pod["spec"]["containers"]]
    seconds = [int(command[1]) for command in commands if SLEEP_PATTERN.fullmatch(" ".join(command))]
    return timedelta(seconds=max(seconds)) if seconds else None


def status_update(pod: Object, now: datetime, addresses: PodAddresses) -> StatusUpdate:
    """Return the next status of a pod on a simulated node, if it differs from the current one."""
    if is_pod_terminal(pod):
        return StatusUpdate(None)
    lifecycle, start_time = lifecycle_of(pod), value_at(pod, "status", "startTime")
    since = parse_time(start_time) if start_time else now.replace(microsecond=0)
    if (deadline := active_deadline(pod, since)) is not None and deadline <= now:
        message = "Pod was active on the node longer than the specified deadline"
        status = failed_pod_status(pod, "DeadlineExceeded", message, stopped_statuses(pod, now), addresses, now)
        return StatusUpdate(status)
    starts_at = since + lifecycle.starts_after
    if now < starts_at:
        return StatusUpdate(
            changed_status(pod, pod_status(pod, pending_statuses(pod), PodAddresses(addresses.host_ip), now)),
            earliest(starts_at, deadline),
        )
    run = run_at(starts_at, now, lifecycle, restart_policy(pod))
    status = pod_status(pod, container_statuses(pod, run, starts_at, now, lifecycle), addresses, now)
    return StatusUpdate(
        changed_status(pod, status), None if run.ended else earliest(*upcoming_changes(run, lifecycle, now), deadline)
    )


def changed_status(pod: Object, status: Object) -> Object | None:
    """Return `status`, or None if the pod already has it."""
    return status if status_differs(pod.get("status") or {}, status) else None


def earliest(*moments: datetime | None) -> datetime | None:
    return min((each for each in moments if each is not None), default=None)


def upcoming_changes(run: Run, lifecycle: SimulatedLifecycle, now: datetime) -> list[datetime]:
    times = [run.started, run.started + lifecycle.ready_after]
    times += [run.started + lifecycle.ends_after] if lifecycle.ends_after is not None else []
    return [each for each in times if each > now]


def active_deadline(pod: Object, since: datetime) -> datetime | None:
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return since + timedelta(seconds=seconds) if seconds else None


def run_at(starts_at: datetime, now: datetime, lifecycle: SimulatedLifecycle, policy: str) -> Run:
    """Return the current, last or next run."""
    started, number = starts_at, 0
    while lifecycle.ends_after is not None and started + lifecycle.ends_after <= now:
        end = started + lifecycle.ends_after
        if policy == "Never" or (policy == "OnFailure" and lifecycle.code == 0):
            return Run(number, started, end)
        started, number = end + restart_backoff(number), number + 1
    return Run(number, started, None)


def restart_backoff(number: int) -> timedelta:
    """Return the pause after a run."""
    return min(MIN_BACKOFF * (1 << min(number, 10)), MAX_BACKOFF)


# -- containers


def container_statuses(
    pod: Object, run: Run, starts_at: datetime, now: datetime, lifecycle: SimulatedLifecycle
) -> ContainerStatuses:
    """Return the statuses of containers that have started."""
    last, ready, restarts = None, False, run.number
    if run.number and lifecycle.ends_after is not None:
        end = run.started - restart_backoff(run.number - 1)
        last = terminated_state(lifecycle.code, end - lifecycle.ends_after, end)
    if run.ended:
        state = terminated_state(lifecycle.code, run.started, run.ended)
    elif run.started > now:
        state = waiting_state(
            "CrashLoopBackOff", f"back-off {restart_backoff(run.number - 1).seconds}s restarting failed container"
        )
        restarts -= 1
    else:
        state, ready = running_state(run.started), now >= run.started + lifecycle.ready_after
    main = [
        container_status(each, state, container_id(pod, each, restarts), restarts, last, ready=ready)
        for each in pod["spec"]["containers"]
    ]
    sidecar = terminated_state(0, starts_at, run.ended) if run.ended else running_state(starts_at)
    init = [
        container_status(each, sidecar, container_id(pod, each), ready=not run.ended)
        if is_sidecar(each)
        else container_status(each, terminated_state(0, starts_at, starts_at), container_id(pod, each), ready=True)
        for each in pod["spec"].get("initContainers") or ()
    ]
    return ContainerStatuses(main, init, ephemeral_statuses(pod, now, run.ended))


def ephemeral_statuses(pod: Object, now: datetime, ended: datetime | None) -> list[Object]:
    """Return the statuses of ephemeral containers, which run from when they are first seen."""
    before = {each["name"]: each for each in value_at(pod, "status", "ephemeralContainerStatuses", default=())}
    found = []
    for spec in pod["spec"].get("ephemeralContainers") or ():
        state = value_at(before.get(spec["name"]), "state") or running_state(now)
        if ended and "running" in state:
            state = terminated_state(0, parse_time(state["running"]["startedAt"]), ended)
        found.append(container_status(spec, state, container_id(pod, spec)))
    return found


def pending_statuses(pod: Object) -> ContainerStatuses:
    init = pod["spec"].get("initContainers") or ()
    state = waiting_state("PodInitializing" if init else "ContainerCreating")
    return ContainerStatuses(
        [container_status(each, state, "") for each in pod["spec"]["containers"]],
        [container_status(each, state, "") for each in init],
    )


def stopped_statuses(pod: Object, now: datetime) -> ContainerStatuses:
    """Return the statuses after termination; containers that had not started never ran."""
    status = pod.get("status") or {}

    def terminated(field: str, specs: list[Object] | None) -> list[Object]:
        before = {each["name"]: each for each in status.get(field) or ()}
        return [terminated_status(pod, each, before.get(each["name"]), now) for each in specs or ()]

    spec = pod["spec"]
    return ContainerStatuses(
        terminated("containerStatuses", spec["containers"]),
        terminated("initContainerStatuses", spec.get("initContainers")),
        terminated("ephemeralContainerStatuses", spec.get("ephemeralContainers")),
    )


def terminated_status(pod: Object, spec: Object, before: Object | None, now: datetime) -> Object:
    if before is None:
        before = container_status(spec, waiting_state("ContainerCreating"), "")
    if exit_code(before) is not None:
        return before
    started = value_at(before, "state", "running", "startedAt")
    state = terminated_state(SIGTERM_EXIT_CODE, parse_time(started) if started else now, now)
    restarts = before["restartCount"]
    return container_status(spec, state, container_id(pod, spec, restarts), restarts, before.get("lastState"))


def container_id(pod: Object, container: Object, run: int = 0) -> str:
    return f"simulated://{uid_of(pod)}/{container['name']}/{run}"


# -- termination


def deletion_time(pod: Object) -> datetime:
    deleted = parse_time(pod["metadata"]["deletionTimestamp"])
    grace = timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    return deleted - grace + min(lifecycle_of(pod).stops_after, grace)


def final_status(pod: Object, now: datetime, addresses: PodAddresses) -> Object | None:
    """Return the status of a deleted pod before it is removed; None if it has ended."""
    if is_pod_terminal(pod):
        return None
    return pod_status(pod, stopped_statuses(pod, now), addresses, now)
