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
from tapestry.kube.pods import is_over, is_sidecar
from tapestry.kube.times import parse_duration, parse_time
from tapestry.local.statuses import (
    TERMINATED_BY_SIGNAL,
    Containers,
    Place,
    container_status,
    differs,
    exit_code,
    failed,
    pod_status,
    restart_policy,
    runs,
    terminated,
    waiting,
)

PREFIX = keys.SIMULATED_PREFIX
STARTS, READY, ENDS, EXIT, STOPS = (
    PREFIX + each for each in ("starts-after", "ready-after", "ends-after", "exit-code", "stops-after")
)
NEVER = "never"
SLEEP = re.compile(r"sleep \d{1,9}")
AT_ONCE = timedelta()
ENDS_BY_ITSELF = timedelta(seconds=5)
FIRST_RESTART, LONGEST_RESTART = timedelta(seconds=10), timedelta(minutes=5)
LARGEST_CODE = 255


class Told(NamedTuple):
    """What to say now, and when there is more to say; None where nothing is, or ever will be."""

    status: Object | None
    again: datetime | None = None


class Course(NamedTuple):
    """How a pod is to fare."""

    starts: timedelta
    ready: timedelta
    ends: timedelta | None
    code: int
    stops: timedelta


class Run(NamedTuple):
    """One run of a pod's containers; one that has yet to begin is waited for after a failure."""

    number: int
    started: datetime
    ended: datetime | None
    """Set for a run that is the last."""


def course_of(pod: Object) -> Course:
    """How the pod is to fare; what cannot be read is as if it were not said."""
    said = annotations_of(pod)

    def lasting(key: str, default: timedelta | None) -> timedelta | None:
        text = said.get(key)
        if text == NEVER:
            return None
        try:
            return max(parse_duration(text), AT_ONCE) if text else default
        except ValueError:
            return default

    by_itself = sleep_of(pod) or (ENDS_BY_ITSELF if restart_policy(pod) != "Always" else None)
    code = said.get(EXIT, "0")
    return Course(
        lasting(STARTS, AT_ONCE) or AT_ONCE,
        lasting(READY, AT_ONCE) or AT_ONCE,
        lasting(ENDS, by_itself),
        min(int(code), LARGEST_CODE) if code.isdecimal() else 1,
        lasting(STOPS, AT_ONCE) or AT_ONCE,
    )


def sleep_of(pod: Object) -> timedelta | None:
    """How long its containers sleep, where one has nothing else to do."""
    commands = [[*each.get("command", ()), *each.get("args", ())] for each in pod["spec"]["containers"]]
    seconds = [int(command[1]) for command in commands if SLEEP.fullmatch(" ".join(command))]
    return timedelta(seconds=max(seconds)) if seconds else None


def told(pod: Object, now: datetime, place: Place) -> Told:
    """What there is to say of a pod that has been bound to a simulated node, if it is not said already."""
    if is_over(pod):
        return Told(None)
    course, bound = course_of(pod), value_at(pod, "status", "startTime")
    since = parse_time(bound) if bound else now.replace(microsecond=0)
    if (end := deadline(pod, since)) is not None and end <= now:
        why = "Pod was active on the node longer than the specified deadline"
        status = failed(pod, "DeadlineExceeded", why, stopped(pod, now), place, now)
        return Told(status)
    begins = since + course.starts
    if now < begins:
        return Told(news(pod, pod_status(pod, yet_to_start(pod), Place(place.node), now)), earliest(begins, end))
    run = run_at(begins, now, course, restart_policy(pod))
    status = pod_status(pod, containers(pod, run, begins, now, course), place, now)
    return Told(news(pod, status), None if run.ended else earliest(*changes(run, course, now), end))


def news(pod: Object, status: Object) -> Object | None:
    """`status`, unless the pod has it."""
    return status if differs(pod.get("status") or {}, status) else None


def earliest(*moments: datetime | None) -> datetime | None:
    return min((each for each in moments if each is not None), default=None)


def changes(run: Run, course: Course, now: datetime) -> list[datetime]:
    """When a run becomes something else."""
    edges = [run.started, run.started + course.ready]
    edges += [run.started + course.ends] if course.ends is not None else []
    return [each for each in edges if each > now]


def deadline(pod: Object, since: datetime) -> datetime | None:
    seconds = pod["spec"].get("activeDeadlineSeconds")
    return since + timedelta(seconds=seconds) if seconds else None


def run_at(begins: datetime, now: datetime, course: Course, policy: str) -> Run:
    """Which run is under way, was the last, or comes next."""
    started, number = begins, 0
    while course.ends is not None and started + course.ends <= now:
        end = started + course.ends
        if policy == "Never" or (policy == "OnFailure" and course.code == 0):
            return Run(number, started, end)
        started, number = end + pause(number), number + 1
    return Run(number, started, None)


def pause(number: int) -> timedelta:
    """Between a run and the next."""
    return min(FIRST_RESTART * (1 << min(number, 10)), LONGEST_RESTART)


# -- containers


def containers(pod: Object, run: Run, begins: datetime, now: datetime, course: Course) -> Containers:
    """What is said of the containers once they have begun."""
    last, ready, restarts = None, False, run.number
    if run.number and course.ends is not None:
        end = run.started - pause(run.number - 1)
        last = terminated(course.code, end - course.ends, end)
    if run.ended:
        state = terminated(course.code, run.started, run.ended)
    elif run.started > now:
        state = waiting("CrashLoopBackOff", f"back-off {pause(run.number - 1).seconds}s restarting failed container")
        restarts -= 1
    else:
        state, ready = runs(run.started), now >= run.started + course.ready
    main = [
        container_status(each, state, identity(pod, each, restarts), restarts, last, ready=ready)
        for each in pod["spec"]["containers"]
    ]
    sidecar = terminated(0, begins, run.ended) if run.ended else runs(begins)
    init = [
        container_status(each, sidecar, identity(pod, each), ready=not run.ended)
        if is_sidecar(each)
        else container_status(each, terminated(0, begins, begins), identity(pod, each), ready=True)
        for each in pod["spec"].get("initContainers") or ()
    ]
    return Containers(main, init, ephemeral(pod, now, run.ended))


def ephemeral(pod: Object, now: datetime, ended: datetime | None) -> list[Object]:
    """Containers for debugging run from when they are first seen."""
    before = {each["name"]: each for each in value_at(pod, "status", "ephemeralContainerStatuses", default=())}
    found = []
    for spec in pod["spec"].get("ephemeralContainers") or ():
        state = value_at(before.get(spec["name"]), "state") or runs(now)
        if ended and "running" in state:
            state = terminated(0, parse_time(state["running"]["startedAt"]), ended)
        found.append(container_status(spec, state, identity(pod, spec)))
    return found


def yet_to_start(pod: Object) -> Containers:
    init = pod["spec"].get("initContainers") or ()
    state = waiting("PodInitializing" if init else "ContainerCreating")
    return Containers(
        [container_status(each, state, "") for each in pod["spec"]["containers"]],
        [container_status(each, state, "") for each in init],
    )


def stopped(pod: Object, now: datetime) -> Containers:
    """What is said of the containers once they were told to end: those that had yet to begin never ran."""
    status = pod.get("status") or {}

    def over(field: str, specs: list[Object] | None) -> list[Object]:
        before = {each["name"]: each for each in status.get(field) or ()}
        return [ended(pod, each, before.get(each["name"]), now) for each in specs or ()]

    spec = pod["spec"]
    return Containers(
        over("containerStatuses", spec["containers"]),
        over("initContainerStatuses", spec.get("initContainers")),
        over("ephemeralContainerStatuses", spec.get("ephemeralContainers")),
    )


def ended(pod: Object, spec: Object, before: Object | None, now: datetime) -> Object:
    if before is None:
        before = container_status(spec, waiting("ContainerCreating"), "")
    if exit_code(before) is not None:
        return before
    started = value_at(before, "state", "running", "startedAt")
    state = terminated(TERMINATED_BY_SIGNAL, parse_time(started) if started else now, now)
    restarts = before["restartCount"]
    return container_status(spec, state, identity(pod, spec, restarts), restarts, before.get("lastState"))


def identity(pod: Object, container: Object, run: int = 0) -> str:
    return f"simulated://{uid_of(pod)}/{container['name']}/{run}"


# -- the end


def gone_at(pod: Object) -> datetime:
    """When a deleted pod is gone."""
    deleted = parse_time(pod["metadata"]["deletionTimestamp"])
    grace = timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    return deleted - grace + min(course_of(pod).stops, grace)


def last_words(pod: Object, now: datetime, place: Place) -> Object | None:
    """What there is to say of a deleted pod before it goes."""
    if is_over(pod):
        return None
    return pod_status(pod, stopped(pod, now), place, now)
