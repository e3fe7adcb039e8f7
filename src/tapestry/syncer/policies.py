"""Policies as they are read: by their own spec, or held to their last good one.

An invalid policy changes nothing.  Its last good spec goes on, kept in its own status; with none, it offers nothing and
takes nothing back.  Nobody is ever evicted because something could not be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, node_selector_object
from tapestry.apis.policies import POLICY, ResourceLeasingPolicySpec
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, value_at
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.selectors import EVERY_NODE, SelectorError, node_selector
from tapestry.kube.times import parse_time
from tapestry.syncer.leasing import LeaseRules, Policy, PolicySide
from tapestry.syncer.windows import NEVER_OPEN, schedule_of

CHANGED_AT = "changedAt"
"""Where the cache keeps `changed_at` of a policy, once managedFields are dropped."""


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """What came of reading one policy: a complaint names the field that is wrong."""

    policy: Policy
    error: str = ""


def parse_policy(obj: Object, side: PolicySide, default_zone: str) -> Policy:
    """The policy that `obj` describes; raises ValueError, beginning with the path of what is wrong."""
    spec = decode_spec(POLICY, obj)
    for index, limit in enumerate(spec.resource_limits):
        if limit.quantity is not None:
            parse_quantity(limit.quantity, f"spec.resourceLimits[{index}].quantity")
    for index, total in enumerate(spec.total_limits):
        parse_quantity(total.quantity, f"spec.totalLimits[{index}].quantity")
    return Policy(
        name=name_of(obj),
        side=side,
        spec=spec,
        schedule=schedule_of(spec, default_zone),
        selector=node_selector(node_selector_object(spec.node_selector), "spec.nodeSelector"),
        changed_at=changed_at(obj),
    )


def parsed_policy(obj: Object, side: PolicySide, default_zone: str) -> ParsedPolicy:
    """The policy to go by: its spec, else its last good one, else one that is not readable."""
    try:
        return ParsedPolicy(parse_policy(obj, side, default_zone))
    except ValueError as error:
        complaint = str(error)
    try:
        return ParsedPolicy(
            parse_policy({**obj, "spec": value_at(obj, "status", "lastGood")}, side, default_zone), complaint
        )
    except ValueError:
        return ParsedPolicy(invalid_policy(obj, side), complaint)


def invalid_policy(obj: Object, side: PolicySide) -> Policy:
    """The policy in the place of one that cannot be read: for the nodes that it selects, if at least that is clear."""
    try:
        selector = node_selector(value_at(obj, "spec", "nodeSelector"))
    except SelectorError:
        selector = EVERY_NODE
    spec = ResourceLeasingPolicySpec(cluster=value_at(obj, "spec", "cluster"))
    return Policy(name_of(obj), side, spec, NEVER_OPEN, selector, changed_at(obj), is_valid=False)


def applies_to_binding(obj: Object, binding: Binding) -> bool:
    """Whether a policy is for this binding, by its name or its clusterID."""
    return value_at(obj, "spec", "cluster") in (binding.name, binding.spec.cluster_id)


def parsed_policies(
    objects: Iterable[Object], side: PolicySide, binding: Binding, default_zone: str
) -> list[ParsedPolicy]:
    """The policies for this binding, in the order of their names; one that is being deleted counts no more."""
    found = [obj for obj in objects if applies_to_binding(obj, binding) and not is_deleting(obj)]
    return [parsed_policy(obj, side, default_zone) for obj in sorted(found, key=name_of)]


def build_rules(
    binding: Binding,
    operator: Iterable[ParsedPolicy],
    owner: Iterable[ParsedPolicy],
    mount: Object | None,
    warning: timedelta,
) -> LeaseRules:
    """What decides about every node of a binding; `mount` is its mount namespace, where that could be read.

    `warning` is how long before its end a lease says so.
    """
    return LeaseRules(
        operator=[reading.policy for reading in operator],
        owner=[reading.policy for reading in owner],
        selector=node_selector(node_selector_object(binding.spec.node_selector), "spec.nodeSelector"),
        owner_required=mount is not None and labels_of(mount).get(keys.OWNER_POLICY) == keys.OWNER_POLICY_REQUIRED,
        reclaim_now=mount is not None and annotations_of(mount).get(keys.RECLAIM) == keys.RECLAIM_NOW,
        warning=warning,
    )


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
