"""The manager's part of a binding's status, and what of it is news.

The phase sums the conditions up.  A binding is looked at in stages, and each has a condition: whatever comes before the
stage that failed was found well, and nothing is said about what comes after.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis.clusterbindings import SYNCER_REASONS
from tapestry.kube.conditions import condition, find, with_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp
from tapestry.manager.connectivity import Finding
from tapestry.manager.faults import Fault

CONNECTED, PERMITTED, SYNCER_READY = STAGES = ("Connected", "Permitted", "SyncerReady")
EXPIRES = "CredentialsExpire"
WEEK, DAY = timedelta(days=7), timedelta(days=1)

AVAILABILITY = AVAILABLE, UNAVAILABLE = ("SyncerAvailable", "SyncerUnavailable")
QUIET = frozenset({CONNECTED, PERMITTED})
"""Reasons that are nothing to tell: `Ready` says it all."""
EXPECTED = frozenset({"Initializing", "WaitingSyncerCleanup", "CleanupInProgress"})
"""Reasons for which something is not true yet, or no more, and nothing is wrong."""


class News(NamedTuple):
    """Something to tell people in an event."""

    is_warning: bool
    reason: str
    message: str


def status_with(binding: Object, phase: str, conditions: Iterable[Object], now: datetime) -> Object:
    """The status with a phase and conditions; what others say in there stays."""
    generation = binding["metadata"].get("generation", 0)
    found: list[Object] = value_at(binding, "status", "conditions", default=[])
    for each in conditions:
        if not is_the_syncers(find(found, each["type"])):
            found = with_condition(found, {**each, "observedGeneration": generation}, now)
    return {"phase": phase, "observedGeneration": generation, "conditions": found}


def is_the_syncers(said: Object | None) -> bool:
    """Whether it is for the syncer to say otherwise."""
    return said is not None and said["type"] == PERMITTED and said["reason"] in SYNCER_REASONS


def conditions_of(
    fault: Fault | None, finding: Finding | None, deployment: Object | None, now: datetime
) -> Iterator[Object]:
    """What a pass found out: a fault or none, what the cluster answered, the Deployment if it was looked after."""
    well = STAGES if fault is None else STAGES[: STAGES.index(fault.condition)] if fault.condition else ()
    if CONNECTED in well and finding is not None:
        yield connected(finding, now)
    if PERMITTED in well:
        yield permitted(finding)
    if deployment is not None:
        yield syncer_ready(deployment)
    if fault is not None and fault.condition:
        yield condition(fault.condition, False, fault.reason, fault.message)
    if fault is not None:
        yield condition("Ready", False, fault.reason, fault.message)
    else:
        yield condition("Ready", True, "Ready", "the cluster is bound, and its syncer has been started")


def permitted(finding: Finding | None) -> Object:
    """That the kubeconfig grants every right; or those that only volumes need are missing, and the rest works."""
    if finding is None or not finding.missing:
        return condition(PERMITTED, True, PERMITTED, "the kubeconfig grants every right that a syncer needs")
    rights = ", ".join(map(str, finding.missing))
    message = f"volumes do not cross, for the kubeconfig does not grant: {rights}; `tapestry join` grants them"
    return condition(PERMITTED, False, "PermissionsMissing", message)


def connected(finding: Finding, now: datetime) -> Object:
    """That the cluster answers; in the week before it no longer will, also that."""
    if finding.expires is None or finding.expires - now > WEEK:
        return condition(CONNECTED, True, CONNECTED, f"Kubernetes {finding.version} answers")
    left = "a week" if finding.expires - now > DAY else "a day"
    message = f"the token in the kubeconfig expires at {timestamp(finding.expires)}, within {left}, and is not renewed"
    return condition(CONNECTED, True, EXPIRES, message)


def syncer_ready(deployment: Object) -> Object:
    """Whether a replica of the syncer is available, as the Deployment is now and not as it was."""
    available = value_at(deployment, "status", "availableReplicas", default=0)
    wanted = value_at(deployment, "spec", "replicas", default=1)
    seen = value_at(deployment, "status", "observedGeneration", default=0)
    message = f"{available} of {wanted} replicas are available"
    if seen < deployment["metadata"].get("generation", 0):
        return condition(SYNCER_READY, False, UNAVAILABLE, "the Deployment has yet to be rolled out")
    if available < 1:
        return condition(SYNCER_READY, False, UNAVAILABLE, message)
    return condition(SYNCER_READY, True, AVAILABLE, message)


def news(before: Object, after: Object) -> Iterator[News]:
    """What to tell of the step from one version of a binding to the next; each reason once."""
    told = set()
    for new in value_at(after, "status", "conditions", default=[]):
        old = find(value_at(before, "status", "conditions"), new["type"]) or {}
        reason = new["reason"]
        if new["type"] in ("Ready", *STAGES) and reason not in told and is_news(old, new):
            told.add(reason)
            is_warning = new["status"] == "False" and reason not in EXPECTED
            yield News(is_warning or reason == EXPIRES, reason, new["message"])


def is_news(old: Object, new: Object) -> bool:
    """Whether anything changed; of a syncer, whose replicas come up one by one, only whether there is one at all."""
    if new["reason"] in AVAILABILITY:
        return bool(new["status"] != old.get("status", "False"))
    changed = any(old.get(field) != new[field] for field in ("status", "reason", "message"))
    return changed and new["reason"] not in QUIET
