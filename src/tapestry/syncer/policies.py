"""Parsing of policies: the current spec or, if that is invalid, the last valid one.

An invalid policy changes nothing. Its last valid spec, kept in its status, stays in effect; without one, the policy
leases nothing and reclaims nothing. No pod is ever evicted because a policy could not be parsed.
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
"""Metadata field in which the cache keeps `changed_at` of a policy after managedFields are dropped."""


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """Result of parsing one policy; `error` names the invalid field."""

    policy: Policy
    error: str = ""


def parse_policy(obj: Object, side: PolicySide, default_zone: str) -> Policy:
    """Return the policy that `obj` describes. Raises ValueError; the message begins with the field path."""
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
    """Return the policy in effect: its spec, else its last valid spec, else an invalid policy."""
    try:
        return ParsedPolicy(parse_policy(obj, side, default_zone))
    except ValueError as error:
        message = str(error)
    try:
        return ParsedPolicy(
            parse_policy({**obj, "spec": value_at(obj, "status", "lastGood")}, side, default_zone), message
        )
    except ValueError:
        return ParsedPolicy(invalid_policy(obj, side), message)


def invalid_policy(obj: Object, side: PolicySide) -> Policy:
    """Return the stand-in for an unreadable policy, for the nodes that it selects if that can be read."""
    try:
        selector = node_selector(value_at(obj, "spec", "nodeSelector"))
    except SelectorError:
        selector = EVERY_NODE
    spec = ResourceLeasingPolicySpec(cluster=value_at(obj, "spec", "cluster"))
    return Policy(name_of(obj), side, spec, NEVER_OPEN, selector, changed_at(obj), is_valid=False)


def applies_to_binding(obj: Object, binding: Binding) -> bool:
    """Return whether a policy names this binding or its clusterID."""
    return value_at(obj, "spec", "cluster") in (binding.name, binding.spec.cluster_id)


def parsed_policies(
    objects: Iterable[Object], side: PolicySide, binding: Binding, default_zone: str
) -> list[ParsedPolicy]:
    """Return the policies for this binding, sorted by name, without those that are being deleted."""
    found = [obj for obj in objects if applies_to_binding(obj, binding) and not is_deleting(obj)]
    return [parsed_policy(obj, side, default_zone) for obj in sorted(found, key=name_of)]


def build_rules(
    binding: Binding,
    operator: Iterable[ParsedPolicy],
    owner: Iterable[ParsedPolicy],
    mount: Object | None,
    warning: timedelta,
) -> LeaseRules:
    """Return the rules for all nodes of a binding; `mount` is its mount namespace if it could be read.

    `warning` is the time before its end at which a lease warns.
    """
    return LeaseRules(
        operator=[parsed.policy for parsed in operator],
        owner=[parsed.policy for parsed in owner],
        selector=node_selector(node_selector_object(binding.spec.node_selector), "spec.nodeSelector"),
        owner_required=mount is not None and labels_of(mount).get(keys.OWNER_POLICY) == keys.OWNER_POLICY_REQUIRED,
        reclaim_now=mount is not None and annotations_of(mount).get(keys.RECLAIM) == keys.RECLAIM_NOW,
        warning=warning,
    )


def changed_at(obj: Object) -> datetime:
    """Return when the spec last changed: the time of the last write that was not to a subresource.

    This is too late if a write only changed a label; then a deadline is later too, which is harmless.
    """
    recorded = obj["metadata"].get(CHANGED_AT)
    if recorded is not None:
        return parse_time(recorded)
    times = [
        entry["time"]
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("time") and not entry.get("subresource")
    ]
    return max(map(parse_time, [*times, obj["metadata"]["creationTimestamp"]]))
