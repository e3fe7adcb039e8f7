"""Failures: what a Job's rules say of a pod that failed, and how long to wait after it.  Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.kube.conditions import find
from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import is_over
from tapestry.kube.times import parse_time

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=10)


# -- rules


class Match(NamedTuple):
    """The rule of a Job's that a failed pod matches first: where it stands, what it says, and what matched."""

    number: int
    action: str
    why: str


def action_for(job: Object, pod: Object) -> str:
    """What the Job's rules say of a failed pod."""
    match = match_of(job, pod)
    return match.action if match is not None else "Count"


def match_of(job: Object, pod: Object) -> Match | None:
    name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
    for number, rule in enumerate(value_at(job, "spec", "podFailurePolicy", "rules", default=())):
        if (found := container_with(rule.get("onExitCodes"), pod)) is not None:
            code = found["state"]["terminated"]["exitCode"]
            why = f"Container {found['name']} for pod {name} failed with exit code {code}"
            return Match(number, rule["action"], why)
        if (type := condition_with(rule.get("onPodConditions"), pod)) is not None:
            return Match(number, rule["action"], f"Pod {name} has condition {type}")
    return None


def container_with(wanted: Object | None, pod: Object) -> Object | None:
    """The first container that ended with a code that is meant."""
    if wanted is None:
        return None
    for kind in ("containerStatuses", "initContainerStatuses"):
        for each in value_at(pod, "status", kind, default=()):
            code = value_at(each, "state", "terminated", "exitCode")
            if code in (None, 0) or wanted.get("containerName") not in (None, each["name"]):
                continue
            if (code in wanted["values"]) == (wanted["operator"] == "In"):
                found: Object = each
                return found
    return None


def condition_with(wanted: Sequence[Object] | None, pod: Object) -> str | None:
    conditions = value_at(pod, "status", "conditions", default=())
    for each in wanted or ():
        if (find(conditions, each["type"]) or {}).get("status") == each.get("status", "True"):
            return str(each["type"])
    return None


# -- pauses


def may_start_at(pods: Iterable[Object]) -> datetime | None:
    """When the next pod may be made after some failed; None where none has since one succeeded."""
    over = [pod for pod in pods if is_over(pod)]
    failed = [ended_at(pod) for pod in over if value_at(pod, "status", "phase") == "Failed"]
    succeeded = [ended_at(pod) for pod in over if value_at(pod, "status", "phase") == "Succeeded"]
    since = [end for end in failed if not succeeded or end > max(succeeded)]
    return max(since) + pause_after(len(since)) if since else None


def pause_after(failures: int) -> timedelta:
    return min(FIRST_PAUSE * (1 << min(failures - 1, 10)), LONGEST_PAUSE) if failures else timedelta()


def ended_at(pod: Object) -> datetime:
    """When the pod's last container ended; where nobody says, when it was last ready, or came."""
    statuses = value_at(pod, "status", "containerStatuses", default=())
    moments = [value_at(each, "state", "terminated", "finishedAt") for each in statuses]
    ready = find(value_at(pod, "status", "conditions"), "Ready") or {}
    told = max(filter(None, moments), default=None) or ready.get("lastTransitionTime")
    return parse_time(told or pod["metadata"]["creationTimestamp"])
