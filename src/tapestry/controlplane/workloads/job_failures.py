"""Pure functions for pod failure policies and the backoff of Jobs."""

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
    """First rule of the failure policy that a pod matches: its index, action and a message."""

    rule_index: int
    action: str
    message: str


def failure_action(job: Object, pod: Object) -> str:
    """Return the action of the failure policy for a failed pod. The default is Count."""
    match = policy_match(job, pod)
    return match.action if match is not None else "Count"


def policy_match(job: Object, pod: Object) -> PolicyMatch | None:
    name = f"{pod['metadata'].get('namespace')}/{pod['metadata']['name']}"
    for number, rule in enumerate(value_at(job, "spec", "podFailurePolicy", "rules", default=())):
        if (container := matching_container(rule.get("onExitCodes"), pod)) is not None:
            code = container["state"]["terminated"]["exitCode"]
            message = f"Container {container['name']} for pod {name} failed with exit code {code}"
            return PolicyMatch(number, rule["action"], message)
        if (type := matching_condition(rule.get("onPodConditions"), pod)) is not None:
            return PolicyMatch(number, rule["action"], f"Pod {name} has condition {type}")
    return None


def matching_container(requirement: Object | None, pod: Object) -> Object | None:
    """Return the first container whose exit code matches the requirement."""
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


# -- backoff


def backoff_until(pods: Iterable[Object]) -> datetime | None:
    """Return the time before which no pod may be created, or None without failures since the last success."""
    terminated = [pod for pod in pods if is_pod_terminal(pod)]
    failed = [pod_finished_at(pod) for pod in terminated if value_at(pod, "status", "phase") == "Failed"]
    succeeded = [pod_finished_at(pod) for pod in terminated if value_at(pod, "status", "phase") == "Succeeded"]
    recent = [end for end in failed if not succeeded or end > max(succeeded)]
    return max(recent) + backoff_after(len(recent)) if recent else None


def backoff_after(failures: int) -> timedelta:
    return min(INITIAL_BACKOFF * (1 << min(failures - 1, 10)), MAX_BACKOFF) if failures else timedelta()


def pod_finished_at(pod: Object) -> datetime:
    """Return when the last container terminated, or else when the pod was last ready or was created."""
    statuses = value_at(pod, "status", "containerStatuses", default=())
    times = [value_at(each, "state", "terminated", "finishedAt") for each in statuses]
    ready = find_condition(value_at(pod, "status", "conditions"), "Ready") or {}
    finished = max(filter(None, times), default=None) or ready.get("lastTransitionTime")
    return parse_time(finished or pod["metadata"]["creationTimestamp"])
