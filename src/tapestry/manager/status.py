"""The manager's part of a binding's status, and what of it is news.

The phase sums the conditions up.  A binding is looked at in stages, and each has a condition: whatever comes before the
stage that failed was found well, and nothing is said about what comes after.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis.clusterbindings import SYNCER_REASONS
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp
from tapestry.manager.binding_errors import BindingError
from tapestry.manager.connectivity import ProbeResult

CONNECTED, PERMITTED, SYNCER_READY = STAGES = ("Connected", "Permitted", "SyncerReady")
EXPIRES = "CredentialsExpire"
WEEK, DAY = timedelta(days=7), timedelta(days=1)

AVAILABILITY = AVAILABLE, UNAVAILABLE = ("SyncerAvailable", "SyncerUnavailable")
UNREPORTED_REASONS = frozenset({CONNECTED, PERMITTED})
"""Reasons that are nothing to tell: `Ready` says it all."""
EXPECTED_REASONS = frozenset({"Initializing", "WaitingSyncerCleanup", "CleanupInProgress"})
"""Reasons for which something is not true yet, or no more, and nothing is wrong."""


class StatusEvent(NamedTuple):
    """Something to tell people in an event."""

    is_warning: bool
    reason: str
    message: str


def binding_status(binding: Object, phase: str, conditions: Iterable[Object], now: datetime) -> Object:
    """The status with a phase and conditions; what others say in there stays."""
    generation = binding["metadata"].get("generation", 0)
    found: list[Object] = value_at(binding, "status", "conditions", default=[])
    for each in conditions:
        if not belongs_to_syncer(find_condition(found, each["type"])):
            found = with_condition(found, {**each, "observedGeneration": generation}, now)
    return {"phase": phase, "observedGeneration": generation, "conditions": found}


def belongs_to_syncer(current: Object | None) -> bool:
    """Whether it is for the syncer to say otherwise."""
    return current is not None and current["type"] == PERMITTED and current["reason"] in SYNCER_REASONS


def binding_conditions(
    error: BindingError | None, probe: ProbeResult | None, deployment: Object | None, now: datetime
) -> Iterator[Object]:
    """What a pass found out: a fault or none, what the cluster answered, the Deployment if it was looked after."""
    well = STAGES if error is None else STAGES[: STAGES.index(error.condition)] if error.condition else ()
    if CONNECTED in well and probe is not None:
        yield connected_condition(probe, now)
    if PERMITTED in well:
        yield permitted_condition(probe)
    if deployment is not None:
        yield syncer_ready_condition(deployment)
    if error is not None and error.condition:
        yield new_condition(error.condition, False, error.reason, error.message)
    if error is not None:
        yield new_condition("Ready", False, error.reason, error.message)
    else:
        yield new_condition("Ready", True, "Ready", "the cluster is bound, and its syncer has been started")


def permitted_condition(probe: ProbeResult | None) -> Object:
    """That the kubeconfig grants every right; or those that only volumes need are missing, and the rest works."""
    if probe is None or not probe.missing:
        return new_condition(PERMITTED, True, PERMITTED, "the kubeconfig grants every right that a syncer needs")
    rights = ", ".join(map(str, probe.missing))
    message = f"volumes do not cross, for the kubeconfig does not grant: {rights}; `tapestry join` grants them"
    return new_condition(PERMITTED, False, "PermissionsMissing", message)


def connected_condition(probe: ProbeResult, now: datetime) -> Object:
    """That the cluster answers; in the week before it no longer will, also that."""
    if probe.expires is None or probe.expires - now > WEEK:
        return new_condition(CONNECTED, True, CONNECTED, f"Kubernetes {probe.version} answers")
    left = "a week" if probe.expires - now > DAY else "a day"
    message = f"the token in the kubeconfig expires at {timestamp(probe.expires)}, within {left}, and is not renewed"
    return new_condition(CONNECTED, True, EXPIRES, message)


def syncer_ready_condition(deployment: Object) -> Object:
    """Whether a replica of the syncer is available, as the Deployment is now and not as it was."""
    available = value_at(deployment, "status", "availableReplicas", default=0)
    wanted = value_at(deployment, "spec", "replicas", default=1)
    seen = value_at(deployment, "status", "observedGeneration", default=0)
    message = f"{available} of {wanted} replicas are available"
    if seen < deployment["metadata"].get("generation", 0):
        return new_condition(SYNCER_READY, False, UNAVAILABLE, "the Deployment has yet to be rolled out")
    if available < 1:
        return new_condition(SYNCER_READY, False, UNAVAILABLE, message)
    return new_condition(SYNCER_READY, True, AVAILABLE, message)


def status_events(before: Object, after: Object) -> Iterator[StatusEvent]:
    """What to tell of the step from one version of a binding to the next; each reason once."""
    told = set()
    for new in value_at(after, "status", "conditions", default=[]):
        old = find_condition(value_at(before, "status", "conditions"), new["type"]) or {}
        reason = new["reason"]
        if new["type"] in ("Ready", *STAGES) and reason not in told and should_record(old, new):
            told.add(reason)
            is_warning = new["status"] == "False" and reason not in EXPECTED_REASONS
            yield StatusEvent(is_warning or reason == EXPIRES, reason, new["message"])


def should_record(old: Object, new: Object) -> bool:
    """Whether anything changed; of a syncer, whose replicas come up one by one, only whether there is one at all."""
    if new["reason"] in AVAILABILITY:
        return bool(new["status"] != old.get("status", "False"))
    changed = any(old.get(field) != new[field] for field in ("status", "reason", "message"))
    return changed and new["reason"] not in UNREPORTED_REASONS
