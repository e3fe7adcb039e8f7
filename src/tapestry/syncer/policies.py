"""Policies in effect: parsed from their spec, their last valid spec, or the terms that a node was leased under.

An invalid policy changes nothing. Its last valid spec, kept in its status, stays in effect; without one, the policy
leases nothing and reclaims nothing. No pod is ever evicted because a policy could not be parsed. A virtual node stores
the terms of its policies, so that what a removed policy leased is reclaimed on its terms.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.field_types import node_selector_object
from tapestry.apis.policies import MAX_SECONDS, POLICY, Amount, ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, value_at
from tapestry.kube.pods import taint_named
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.selectors import EVERY_NODE, SelectorError, node_selector
from tapestry.kube.times import parse_time
from tapestry.syncer.leasing import NO_DEADLINE, Lease, LeaseRules, Policy, PolicySide, ReclaimTerms, matching_policies
from tapestry.syncer.windows import NEVER_OPEN, schedule_of

CHANGED_AT = "changedAt"
"""Metadata field in which the cache keeps `changed_at` of a policy after managedFields are dropped."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)


class LastTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Terms of a policy under which a node was leased last."""

    policy: Annotated[str, Meta(pattern=f"^({'|'.join(PolicySide)})/.")]
    force: bool = False
    grace: Annotated[int, Meta(ge=0, le=MAX_SECONDS)] = 0
    evict: bool = False
    gone: Annotated[datetime, Meta(tz=True)] | None = None
    """Time when the policy was first missed while the node had other policies."""
    lent: dict[str, Amount] = {}
    """Amounts that the node leased then."""


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
    """Return whether a policy names this binding, its clusterID, or the HostCluster of a tenant."""
    cluster = value_at(obj, "spec", "cluster")
    return bool(cluster) and cluster in (binding.name, binding.spec.cluster_id, binding.spec.host_cluster)


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


def last_reclaim_terms(existing: Object, now: datetime) -> ReclaimTerms:
    """Return the terms of the last lease, counted from the withdrawal: the policies may be deleted by now."""
    forced = [each for each in stored_terms(existing) if each.force]
    if not forced:
        return NO_DEADLINE
    taint = taint_named(existing, keys.WITHDRAWING_TAINT)
    since = parse_time(taint["timeAdded"]) if taint and taint.get("timeAdded") else now
    deadline = since + timedelta(seconds=max(each.grace for each in forced))
    return ReclaimTerms(deadline, any(each.evict for each in forced), by="the policy it was leased under")


def stored_terms(existing: Object | None) -> list[LastTerms]:
    """Return the stored terms; none if they cannot be read, so that no pod is evicted because of that."""
    text = annotations_of(existing).get(keys.LAST_TERMS) if existing is not None else None
    try:
        return msgspec.json.decode(text or "[]", type=list[LastTerms])
    except msgspec.DecodeError:
        return []


def terms_annotation(lease: Lease, existing: Object | None) -> str:
    """Return the terms of the policies that decide about a lease, to be used after they are deleted.

    While none of the policies is valid, the stored terms stay.
    """
    if existing is not None and not any(policy.is_valid for policy in lease.policies):
        return annotations_of(existing).get(keys.LAST_TERMS, "[]")
    terms = [*deciding_terms(lease), *map(terms_of, lease.removed_policies)]
    return msgspec.json.encode(terms, order="sorted").decode()


def forced_terms(stored: Iterable[LastTerms]) -> str:
    """Return the terms that force pods to end, as an annotation; empty if there are none."""
    forced = {each.policy: each for each in stored if each.force and each.gone is None}
    return msgspec.json.encode([forced[policy] for policy in sorted(forced)]).decode() if forced else ""


def deciding_terms(lease: Lease) -> Iterator[LastTerms]:
    """Yield the terms of the policies that determine the amounts of a lease."""
    return (terms_of(policy) for policy in lease.deciding_policies if policy.is_valid and not policy.removed_at)


def terms_of(policy: Policy) -> LastTerms:
    spec = policy.spec
    return LastTerms(
        str(policy),
        spec.force_reclaim,
        spec.graceful_reclaim_period_seconds,
        spec.evict_during_grace,
        policy.removed_at,
        {limit.resource: limit.quantity or 0 for limit in spec.resource_limits} if policy.removed_at else {},
    )


def removed_policies(rules: LeaseRules, node: Object, existing: Object | None, now: datetime) -> list[Policy]:
    """Return the policies that the node was leased under last and that no longer apply to it.

    A policy that is missed for the first time closes now, with the amounts that the node has been leasing.
    """
    present = {str(policy) for side in (rules.operator, rules.owner) for policy in matching_policies(side, node)}
    leased = value_at(existing, "status", "allocatable", default={})
    return [removed_policy(each, now, leased) for each in stored_terms(existing) if each.policy not in present]


def removed_policy(stored: LastTerms, now: datetime, leased: Mapping[str, Amount]) -> Policy:
    side, _, name = stored.policy.partition("/")
    amounts = stored.lent if stored.gone else leased
    spec = ResourceLeasingPolicySpec(
        cluster="",
        resource_limits=tuple(ResourceLimit(resource, quantity=amount) for resource, amount in amounts.items()),
        force_reclaim=stored.force,
        graceful_reclaim_period_seconds=stored.grace,
        evict_during_grace=stored.evict,
    )
    return Policy(name, PolicySide(side), spec, NEVER_OPEN, EVERY_NODE, LONG_AGO, removed_at=stored.gone or now)
