"""The manager's part of a binding's status, and the events for its changes.

The phase summarizes the conditions.  Each stage of the checks has a condition.  Stages before the failed one succeeded.
Conditions of later stages are not changed.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from tapestry.apis.clusterbindings import SYNCER_REASONS
from tapestry.apis.permissions import OPTIONAL_FEATURES
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.objects import Object, value_at
from tapestry.kube.times import timestamp
from tapestry.manager.connectivity import ProbeResult
from tapestry.manager.validation import BindingError

CONNECTED, PERMITTED, SYNCER_READY = STAGES = ("Connected", "Permitted", "SyncerReady")
EXPIRES = "CredentialsExpire"
WEEK, DAY = timedelta(days=7), timedelta(days=1)

AVAILABILITY = AVAILABLE, UNAVAILABLE = ("SyncerAvailable", "SyncerUnavailable")
UNREPORTED_REASONS = frozenset({CONNECTED, PERMITTED})
"""Reasons without an event, because `Ready` covers them."""
EXPECTED_REASONS = frozenset({"Initializing", "WaitingSyncerCleanup", "CleanupInProgress"})
"""Reasons of a False condition that are not errors."""


class StatusEvent(NamedTuple):
    is_warning: bool
    reason: str
    message: str


def binding_status(binding: Object, phase: str, conditions: Iterable[Object], now: datetime) -> Object:
    """Return the status with a phase and conditions.  Conditions of other writers stay."""
    generation = binding["metadata"].get("generation", 0)
    merged: list[Object] = value_at(binding, "status", "conditions", default=[])
    for condition in conditions:
        if not belongs_to_syncer(find_condition(merged, condition["type"])):
            merged = with_condition(merged, {**condition, "observedGeneration": generation}, now)
    return {"phase": phase, "observedGeneration": generation, "conditions": merged}


def belongs_to_syncer(current: Object | None) -> bool:
    """Return whether the syncer maintains the condition, so that only the syncer may change it."""
    return current is not None and current["type"] == PERMITTED and current["reason"] in SYNCER_REASONS


def binding_conditions(
    error: BindingError | None, probe: ProbeResult | None, deployment: Object | None, now: datetime
) -> Iterator[Object]:
    """Yield the conditions for the results of a reconcile: error, probe of the cluster, Deployment."""
    passed = STAGES if error is None else STAGES[: STAGES.index(error.condition)] if error.condition else ()
    if CONNECTED in passed and probe is not None:
        yield connected_condition(probe, now)
    if PERMITTED in passed:
        yield permitted_condition(probe)
    if deployment is not None:
        yield syncer_ready_condition(deployment)
    if error is not None and error.condition:
        yield new_condition(error.condition, False, error.reason, error.message)
    if error is not None:
        yield new_condition("Ready", False, error.reason, error.message)
    else:
        yield new_condition("Ready", True, "Ready", "the cluster is bound and its syncer is deployed")


def permitted_condition(probe: ProbeResult | None) -> Object:
    """Return the condition Permitted.  Missing permissions that only one feature needs do not affect the rest."""
    if probe is None or not probe.missing:
        return new_condition(PERMITTED, True, PERMITTED, "the kubeconfig grants every permission that a syncer needs")
    permissions = ", ".join(map(str, probe.missing))
    effects = " and ".join(dict.fromkeys(OPTIONAL_FEATURES[each.resource] for each in probe.missing))
    message = f"{effects}: the kubeconfig does not grant {permissions}; `tapestry join` grants them"
    return new_condition(PERMITTED, False, "PermissionsMissing", message)


def connected_condition(probe: ProbeResult, now: datetime) -> Object:
    """Return the condition Connected, with a warning in the week before the token expires."""
    if probe.expires is None or probe.expires - now > WEEK:
        return new_condition(CONNECTED, True, CONNECTED, f"Kubernetes {probe.version} is reachable")
    time = "a week" if probe.expires - now > DAY else "a day"
    message = f"the token in the kubeconfig expires at {timestamp(probe.expires)}, within {time}, and is not renewed"
    return new_condition(CONNECTED, True, EXPIRES, message)


def syncer_ready_condition(deployment: Object) -> Object:
    """Return the condition SyncerReady from the current generation of the Deployment."""
    available = value_at(deployment, "status", "availableReplicas", default=0)
    desired = value_at(deployment, "spec", "replicas", default=1)
    observed = value_at(deployment, "status", "observedGeneration", default=0)
    message = f"{available} of {desired} replicas are available"
    if observed < deployment["metadata"].get("generation", 0):
        return new_condition(SYNCER_READY, False, UNAVAILABLE, "the Deployment is not rolled out yet")
    if available < 1:
        return new_condition(SYNCER_READY, False, UNAVAILABLE, message)
    return new_condition(SYNCER_READY, True, AVAILABLE, message)


def status_events(before: Object, after: Object) -> Iterator[StatusEvent]:
    """Yield the events for the changes between two versions of a binding, each reason once."""
    recorded = set()
    for new in value_at(after, "status", "conditions", default=[]):
        old = find_condition(value_at(before, "status", "conditions"), new["type"]) or {}
        reason = new["reason"]
        if new["type"] in ("Ready", *STAGES) and reason not in recorded and should_record(old, new):
            recorded.add(reason)
            is_warning = new["status"] == "False" and reason not in EXPECTED_REASONS
            yield StatusEvent(is_warning or reason == EXPIRES, reason, new["message"])


def should_record(old: Object, new: Object) -> bool:
    """Return whether a condition changed.  For syncer availability, only its status counts, not each replica."""
    if new["reason"] in AVAILABILITY:
        return bool(new["status"] != old.get("status", "False"))
    changed = any(old.get(field) != new[field] for field in ("status", "reason", "message"))
    return changed and new["reason"] not in UNREPORTED_REASONS
