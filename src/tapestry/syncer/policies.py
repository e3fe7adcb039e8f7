"""Policies as they are read: usable, or held to their last good spec.

An invalid policy changes nothing.  Its last good spec goes on, kept in its own status; with none, it offers nothing new
and takes nothing back.  Nobody is ever evicted because something could not be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.clusterbindings import Binding, plain_selector
from tapestry.apis.policies import POLICY
from tapestry.kube.crds import InvalidSpec, decode
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.quantity import QuantityError, parse
from tapestry.kube.selectors import SelectorError, node_selector
from tapestry.kube.times import parse_time
from tapestry.syncer.leasing import Policy, Side
from tapestry.syncer.windows import WindowError, schedule_of

CHANGED_AT = "changedAt"
"""Where the cache keeps `changed_at` of a policy, once managedFields are dropped."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading one policy: a complaint names the field that is wrong."""

    policy: Policy | None
    complaint: str = ""


def policy_of(obj: Object, side: Side, default_zone: str) -> Policy:
    """The policy that `obj` describes; raises ValueError, beginning with the path of what is wrong."""
    spec = decode(POLICY, obj)
    for index, limit in enumerate(spec.resource_limits):
        if limit.quantity is not None:
            parse(limit.quantity, f"spec.resourceLimits[{index}].quantity")
    return Policy(
        name=name_of(obj),
        side=side,
        spec=spec,
        schedule=schedule_of(spec, default_zone),
        selector=node_selector(plain_selector(spec.node_selector), "spec.nodeSelector"),
        changed_at=changed_at(obj),
    )


def reading_of(obj: Object, side: Side, default_zone: str) -> Reading:
    """The policy to go by: its spec, else its last good one, else none."""
    try:
        return Reading(policy_of(obj, side, default_zone))
    except (InvalidSpec, WindowError, SelectorError, QuantityError) as error:
        complaint = str(error)
    last_good = value_at(obj, "status", "lastGood")
    if last_good is None:
        return Reading(None, complaint)
    try:
        return Reading(policy_of({**obj, "spec": last_good}, side, default_zone), complaint)
    except (InvalidSpec, WindowError, SelectorError, QuantityError):
        return Reading(None, complaint)


def is_about(obj: Object, binding: Binding) -> bool:
    """Whether a policy is for this binding, by its name or its clusterID."""
    return value_at(obj, "spec", "cluster") in (binding.name, binding.spec.cluster_id)


def readings(objects: Iterable[Object], side: Side, binding: Binding, default_zone: str) -> list[Reading]:
    return [reading_of(obj, side, default_zone) for obj in objects if is_about(obj, binding)]


def changed_at(obj: Object) -> datetime:
    """When the spec last changed, as far as the server tells: the last write that was not to a subresource.

    Later than the truth where somebody only touched a label: then a deadline is later too, and nobody is hurt.
    """
    kept = obj["metadata"].get(CHANGED_AT)
    if kept is not None:
        return parse_time(kept)
    times = [
        entry["time"]
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("time") and not entry.get("subresource")
    ]
    return max(map(parse_time, [*times, obj["metadata"]["creationTimestamp"]]))


def with_changed_at(obj: Object) -> Object:
    """A transform for informers: `slim`, but what managedFields say of the last change is kept."""
    latest = changed_at(obj)
    obj["metadata"][CHANGED_AT] = latest.isoformat().replace("+00:00", "Z")
    return obj
