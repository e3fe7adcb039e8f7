"""Failures: what a Job's rules say of a pod that failed, and how long to wait after it.  Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.pods import is_pod_terminal
from tapestry.kube.times import parse_time

INITIAL_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=10)


# -- rules


class PolicyMatch(NamedTuple):
    """The rule of a Job's that a failed pod matches first: where it stands, what it says, and what matched."""

    rule_index: int
    action: str
    message: str


def failure_action(job: Object, pod: Object) -> str:
    """What the Job's rules say of a failed pod."""
    match = policy_match(job, pod)
    return match.action if match is not None else "Count"


def policy_match(job: Object, pod: Object) -> PolicyMatch | None:
    name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
    for number, rule in enumerate(value_at(job, "spec", "podFailurePolicy", "rules", default=())):
        if (found := matching_container(rule.get("onExitCodes"), pod)) is not None:
            code = found["state"]["terminated"]["exitCode"]
            why = f"Container {found['name']} for pod {name} failed with exit code {code}"
            return PolicyMatch(number, rule["action"], why)
        if (type := matching_condition(rule.get("onPodConditions"), pod)) is not None:
            return PolicyMatch(number, rule["action"], f"Pod {name} has condition {type}")
    return None


def matching_container(requirement: Object | None, pod: Object) -> Object | None:
    """The first container that ended with a code that is meant."""
    if requirement is None:
        return None
    for kind in ("containerStatuses", "initContainerStatuses"):
        for each in value_at(pod, "status", kind, default=()):
            code = value_at(each, "state", "terminated", "exitCode")
            if code in (None, 0) or requirement.get("containerName") not in (None, each["name"]):
                continue
            if (code in requirement["values"]) == (requirement["operator"] == "In"):
                found: Object = each
                return found
    return None


def matching_condition(patterns: Sequence[Object] | None, pod: Object) -> str | None:
    conditions = value_at(pod, "status", "conditions", default=())
    for each in patterns or ():
        if (find_condition(conditions, each["type"]) or {}).get("status") == each.get("status", "True"):
            return str(each["type"])
    return None


# -- pauses


def backoff_until(pods: Iterable[Object]) -> datetime | None:
    """When the next pod may be made after some failed; None where none has since one succeeded."""
    over = [pod for pod in pods if is_pod_terminal(pod)]
    failed = [pod_finished_at(pod) for pod in over if value_at(pod, "status", "phase") == "Failed"]
    succeeded = [pod_finished_at(pod) for pod in over if value_at(pod, "status", "phase") == "Succeeded"]
    since = [end for end in failed if not succeeded or end > max(succeeded)]
    return max(since) + backoff_after(len(since)) if since else None


def backoff_after(failures: int) -> timedelta:
    return min(INITIAL_BACKOFF * (1 << min(failures - 1, 10)), MAX_BACKOFF) if failures else timedelta()


def pod_finished_at(pod: Object) -> datetime:
    """When the pod's last container ended; where nobody says, when it was last ready, or came."""
    statuses = value_at(pod, "status", "containerStatuses", default=())
    moments = [value_at(each, "state", "terminated", "finishedAt") for each in statuses]
    ready = find_condition(value_at(pod, "status", "conditions"), "Ready") or {}
    told = max(filter(None, moments), default=None) or ready.get("lastTransitionTime")
    return parse_time(told or pod["metadata"]["creationTimestamp"])
