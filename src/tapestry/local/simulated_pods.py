"""What a simulated kubelet says of a pod, moment by moment.  Pure.

Annotations of the pod say how it is to fare; without any it runs until it is deleted, or, where it is not to be
restarted for ever, ends well after a few seconds:

    simulated.tapestry.io/starts-after: 2s     until its containers run
    simulated.tapestry.io/ready-after: 5s      from then until they are ready
    simulated.tapestry.io/ends-after: 30s      from when they run until they end; `never`
    simulated.tapestry.io/exit-code: "1"       what they end with
    simulated.tapestry.io/stops-after: 1s      from its deletion until it is gone, at most its grace period

A container whose command is `sleep 60` says it, too: the longest of them.  Init containers end well the moment before
the others begin; sidecars run as long as those do.
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
    """What to say now, and when there is more to say; None where nothing is, or ever will be."""

    status: Object | None
    next_update: datetime | None = None


class SimulatedLifecycle(NamedTuple):
    """How a pod is to fare."""

    starts_after: timedelta
    ready_after: timedelta
    ends_after: timedelta | None
    code: int
    stops_after: timedelta


class Run(NamedTuple):
    """One run of a pod's containers; one that has yet to begin is waited for after a failure."""

    number: int
    started: datetime
    ended: datetime | None
    """Set for a run that is the last."""


def lifecycle_of(pod: Object) -> SimulatedLifecycle:
    """How the pod is to fare; what cannot be read is as if it were not said."""
    said = annotations_of(pod)

    def lasting(key: str, default: timedelta | None) -> timedelta | None:
        text = said.get(key)
        if text == NEVER:
            return None
        try:
            return max(parse_duration(text), NO_DELAY) if text else default
        except ValueError:
            return default

    by_itself = sleep_duration(pod) or (DEFAULT_RUN_TIME if restart_policy(pod) != "Always" else None)
    code = said.get(EXIT_CODE, "0")
    return SimulatedLifecycle(
        lasting(STARTS_AFTER, NO_DELAY) or NO_DELAY,
        lasting(READY_AFTER, NO_DELAY) or NO_DELAY,
        lasting(ENDS_AFTER, by_itself),
        min(int(code), MAX_EXIT_CODE) if code.isdecimal() else 1,
        lasting(STOPS_AFTER, NO_DELAY) or NO_DELAY,
    )


def sleep_duration(pod: Object) -> timedelta | None:
    """How long its containers sleep, where one has nothing else to do."""
    commands = [[*each.get("command", ()), *each.get("args", ())] for each in pod["spec"]["containers"]]
    seconds = [int(command[1]) for command in commands if SLEEP_PATTERN.fullmatch(" ".join(command))]
    return timedelta(seconds=max(seconds)) if seconds else None


def status_update(pod: Object, now: datetime, addresses: PodAddresses) -> StatusUpdate:
    """What there is to say of a pod that has been bound to a simulated node, if it is not said already."""
    if is_pod_terminal(pod):
        return StatusUpdate(None)
    course, bound = lifecycle_of(pod), value_at(pod, "status", "startTime")
    since = parse_time(bound) if bound else now.replace(microsecond=0)
    if (end := active_deadline(pod, since)) is not None and end <= now:
        why = "Pod was active on the node longer than the specified deadline"
        status = failed_pod_status(pod, "DeadlineExceeded", why, stopped_statuses(pod, now), addresses, now)
        return StatusUpdate(status)
    begins = since + course.starts_after
    if now < begins:
        return StatusUpdate(
            changed_status(pod, pod_status(pod, pending_statuses(pod), PodAddresses(addresses.host_ip), now)),
            earliest(begins, end),
        )
    run = run_at(begins, now, course, restart_policy(pod))
    status = pod_status(pod, container_statuses(pod, run, begins, now, course), addresses, now)
    return StatusUpdate(
        changed_status(pod, status), None if run.ended else earliest(*upcoming_changes(run, course, now), end)
    )


def changed_status(pod: Object, status: Object) -> Object | None:
    """`status`, unless the pod has it."""
    return status if status_differs(pod.get("status") or {}, status) else None


def earliest(*moments: datetime | None) -> datetime | None:
    return min((each for each in moments if each is not None), default=None)


def upcoming_changes(run: Run, lifecycle: SimulatedLifecycle, now: datetime) -> list[datetime]:
    """When a run becomes something else."""
    edges = [run.started, run.started + lifecycle.ready_after]
    edges += [run.started + lifecycle.ends_after] if lifecycle.ends_after is not None else []
    return [each for each in edges if each > now]


def active_deadline(pod: Object, since: datetime) -> datetime | None:
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return since + timedelta(seconds=seconds) if seconds else None


def run_at(starts_at: datetime, now: datetime, lifecycle: SimulatedLifecycle, policy: str) -> Run:
    """Which run is under way, was the last, or comes next."""
    started, number = starts_at, 0
    while lifecycle.ends_after is not None and started + lifecycle.ends_after <= now:
        end = started + lifecycle.ends_after
        if policy == "Never" or (policy == "OnFailure" and lifecycle.code == 0):
            return Run(number, started, end)
        started, number = end + restart_backoff(number), number + 1
    return Run(number, started, None)


def restart_backoff(number: int) -> timedelta:
    """Between a run and the next."""
    return min(MIN_BACKOFF * (1 << min(number, 10)), MAX_BACKOFF)


# -- containers


def container_statuses(
    pod: Object, run: Run, starts_at: datetime, now: datetime, lifecycle: SimulatedLifecycle
) -> ContainerStatuses:
    """What is said of the containers once they have begun."""
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
    """Containers for debugging run from when they are first seen."""
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
    """What is said of the containers once they were told to end: those that had yet to begin never ran."""
    status = pod.get("status") or {}

    def over(field: str, specs: list[Object] | None) -> list[Object]:
        before = {each["name"]: each for each in status.get(field) or ()}
        return [terminated_status(pod, each, before.get(each["name"]), now) for each in specs or ()]

    spec = pod["spec"]
    return ContainerStatuses(
        over("containerStatuses", spec["containers"]),
        over("initContainerStatuses", spec.get("initContainers")),
        over("ephemeralContainerStatuses", spec.get("ephemeralContainers")),
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


# -- the end


def deletion_time(pod: Object) -> datetime:
    """When a deleted pod is gone."""
    deleted = parse_time(pod["metadata"]["deletionTimestamp"])
    grace = timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    return deleted - grace + min(lifecycle_of(pod).stops_after, grace)


def final_status(pod: Object, now: datetime, addresses: PodAddresses) -> Object | None:
    """What there is to say of a deleted pod before it goes."""
    if is_pod_terminal(pod):
        return None
    return pod_status(pod, stopped_statuses(pod, now), addresses, now)
