"""Virtual nodes: the Node object that represents a leased physical node in the virtual cluster.

A virtual node has two kinds of writers: us, and users who label, annotate or taint nodes. An annotation records what we
set last. It distinguishes our changes from theirs, and shows which of our values are no longer wanted.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.policies import MAX_SECONDS, Amount, ResourceLeasingPolicySpec, ResourceLimit
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.selectors import EVERY_NODE
from tapestry.kube.times import parse_time, timestamp
from tapestry.syncer.leasing import (
    NO_DEADLINE,
    Lease,
    LeaseRules,
    LeaseState,
    Policy,
    PolicySide,
    ReclaimTerms,
    matching_policies,
)
from tapestry.syncer.windows import NEVER_OPEN

RESERVED_LABEL_PREFIXES = (keys.PREFIX, "node-role.kubernetes.io/", "node-restriction.kubernetes.io/")
"""Prefixes of labels that only have a meaning in the physical cluster."""
LIFECYCLE_TAINT_PREFIX = "node.kubernetes.io/"
"""Prefix of taints that each cluster's own controllers set."""
HOSTNAME = "kubernetes.io/hostname"
LONG_AGO = datetime.min.replace(tzinfo=UTC)
MAX_CONDITIONS = 32
MAX_MESSAGE_BYTES = 4096
"""Limit of a condition's message, which is untrusted."""

Taint = dict[str, Any]


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


class ExpectedMetadata(msgspec.Struct, frozen=True):
    """Metadata that we set last, stored in an annotation."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: list[tuple[str, str]] = []
    """Key and effect of each taint."""


class Endpoint(NamedTuple):
    """Address on which the kubelet of a virtual node listens."""

    host: str
    port: int


def virtual_node(
    node: Object,
    lease: Lease,
    binding: Binding,
    name: str,
    existing: Object | None,
    now: datetime,
    kubelet: Endpoint | None = None,
) -> Object:
    """Return the desired virtual Node for `node`, for `converge`: None removes a field, unnamed fields stay."""
    before = expected_metadata(existing)
    taints = node_taints(node, lease, binding, existing, now)
    after = ExpectedMetadata(
        node_labels(node, binding, name),
        node_annotations(node, lease, binding, existing),
        [(each["key"], each["effect"]) for each in taints],
    )
    metadata = {
        "name": name,
        "labels": merged_metadata(before.labels, labels_of(existing) if existing else {}, after.labels),
        "annotations": {
            **merged_metadata(before.annotations, annotations_of(existing) if existing else {}, after.annotations),
            keys.EXPECTED_METADATA: msgspec.json.encode(after, order="sorted").decode(),
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        # A server stores no empty list; requesting one would cause a write at every pass.
        "spec": {"taints": merged_taints(before.taints, existing, taints) or None},
        "status": {**node_status(node, lease, existing), **node_addresses(node, name, kubelet)},
    }


def node_labels(node: Object, binding: Binding, name: str) -> dict[str, str]:
    copied = {key: value for key, value in labels_of(node).items() if not key.startswith(RESERVED_LABEL_PREFIXES)}
    return {
        **copied,
        HOSTNAME: name,
        "node-role.kubernetes.io/tapestry": "",
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
        keys.MANAGED_BY: keys.TAPESTRY,
        keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL,
        keys.CLUSTER_BINDING: safe_label_value(binding.name),
        keys.CLUSTER_BINDING_UID: binding.uid,
        keys.PHYSICAL_CLUSTER_ID: binding.spec.cluster_id,
        keys.PHYSICAL_NODE_NAME: safe_label_value(name_of(node)),
    }


def node_annotations(node: Object, lease: Lease, binding: Binding, existing: Object | None) -> dict[str, str]:
    annotations = {
        keys.CLUSTER_BINDING: binding.name,
        keys.PHYSICAL_NODE_NAME: name_of(node),
        keys.PHYSICAL_NODE_UID: uid_of(node),
        keys.POLICIES_APPLIED: ",".join(str(policy) for policy in lease.policies),
        keys.LAST_TERMS: terms_annotation(lease, existing),
    }
    if lease.state is LeaseState.CLOSED:
        annotations[keys.CLOSED_REASON] = lease.reason
    if lease.ends is not None and lease.ends_soon:
        annotations[keys.LEASE_ENDS] = timestamp(lease.ends)
    return annotations


def node_taints(node: Object, lease: Lease, binding: Binding, existing: Object | None, now: datetime) -> list[Taint]:
    """Return the owner's taints that keep new pods off the node, and our own."""
    ours = []
    if not binding.spec.disable_node_default_taint:
        ours.append(keys.VNODE_TAINT)
    if value_at(node, "spec", "unschedulable"):
        ours.append(keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT)
    if lease.state is LeaseState.CLOSED:
        ours.append(keys.OUT_OF_TIME_WINDOWS_TAINT)
    return [*owners_taints(node), *(our_taint(key, existing, now) for key in ours)]


def owners_taints(node: Object) -> list[Taint]:
    """Return the physical node's taints for its virtual node; each key has an effect at most once."""
    taints: dict[tuple[str, str], Taint] = {}
    for taint in value_at(node, "spec", "taints", default=[]):
        if not taint["key"].startswith((LIFECYCLE_TAINT_PREFIX, keys.PREFIX)):
            effect = keys.NO_SCHEDULE if taint["effect"] == "NoExecute" else taint["effect"]
            copy = {key: value for key, value in taint.items() if key != "timeAdded"}
            taints.setdefault((taint["key"], effect), {**copy, "effect": effect})
    return list(taints.values())


def our_taint(key: str, existing: Object | None, now: datetime) -> Taint:
    """Return a taint of ours; its `timeAdded` is kept from the first time on."""
    taint = {"key": key, "effect": keys.NO_SCHEDULE}
    if key not in (keys.OUT_OF_TIME_WINDOWS_TAINT, keys.WITHDRAWING_TAINT):
        return taint
    previous = taint_named(existing, key) or {}
    return {**taint, "timeAdded": previous.get("timeAdded") or timestamp(now)}


def taint_named(node: Object | None, key: str) -> Taint | None:
    taints: list[Taint] = value_at(node, "spec", "taints", default=[])
    return next((taint for taint in taints if taint["key"] == key), None)


def lease_state_of(node: Object) -> LeaseState:
    """Return the lease state that a virtual node's taints express."""
    if is_deleting(node) or taint_named(node, keys.WITHDRAWING_TAINT):
        return LeaseState.WITHDRAWN
    return LeaseState.CLOSED if taint_named(node, keys.OUT_OF_TIME_WINDOWS_TAINT) else LeaseState.OPEN


def leased_amounts(node: Object) -> ResourceList:
    """Return the amounts that a virtual node leases now: zero unless it is open, although its allocatable stays."""
    allocatable = ResourceList.parse(value_at(node, "status", "allocatable"))
    return allocatable if lease_state_of(node) is LeaseState.OPEN else ResourceList(dict.fromkeys(allocatable, ZERO))


def node_status(node: Object, lease: Lease, existing: Object | None) -> Object:
    """Return the durable part of the physical node's status. Heartbeats would cause a write every few seconds."""
    removed = dict.fromkeys(value_at(existing, "status", "allocatable", default={}))
    amounts = {**removed, **lease.amounts.texts()}
    conditions = value_at(node, "status", "conditions", default=[])[:MAX_CONDITIONS]
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [without_heartbeat(each) for each in conditions],
    }
    info = value_at(node, "status", "nodeInfo")
    return {**status, "nodeInfo": info} if info else status


def node_addresses(node: Object, name: str, kubelet: Endpoint | None) -> Object:
    """Return the addresses of the node and of its kubelet.

    API servers call a kubelet at its node's host name, if there is one, or else at the first address. No address may
    occur twice.
    """
    internal = [each for each in value_at(node, "status", "addresses", default=[]) if each.get("type") == "InternalIP"]
    if kubelet is None:
        return {"addresses": [*internal, {"type": "Hostname", "address": name}]}
    others = [each for each in internal if each["address"] != kubelet.host]
    return {
        "addresses": [{"type": "InternalIP", "address": kubelet.host}, *others],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
    }


def without_heartbeat(condition: Object) -> Object:
    copy = {key: value for key, value in condition.items() if key in ("type", "status", "reason", "lastTransitionTime")}
    if message := condition.get("message"):
        copy["message"] = message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return {**copy, "lastHeartbeatTime": condition.get("lastTransitionTime")}


def withdrawal_patch(existing: Object, now: datetime) -> Object:
    """Return the patch that adds the withdrawing taint."""
    taints: list[Taint] = value_at(existing, "spec", "taints", default=[])
    return {
        "metadata": {"name": name_of(existing)},
        "spec": {"taints": [*taints, our_taint(keys.WITHDRAWING_TAINT, existing, now)]},
    }


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
    deciding = [policy for policy in lease.deciding_policies if policy.is_valid and not policy.removed_at]
    return msgspec.json.encode(
        [terms_of(policy) for policy in (*deciding, *lease.removed_policies)], order="sorted"
    ).decode()


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


def with_removed_policies(rules: LeaseRules, node: Object, existing: Object | None, now: datetime) -> LeaseRules:
    """Return `rules` with the policies that the node was leased under last and that no longer apply to it.

    A policy that is missed for the first time closes now, with the amounts that the node has been leasing.
    """
    present = {str(policy) for side in (rules.operator, rules.owner) for policy in matching_policies(side, node)}
    leased = value_at(existing, "status", "allocatable", default={})
    removed = [removed_policy(each, now, leased) for each in stored_terms(existing) if each.policy not in present]
    return replace(rules, removed_policies=removed) if removed else rules


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


def expected_metadata(existing: Object | None) -> ExpectedMetadata:
    """Return the recorded metadata; an unreadable annotation counts as empty."""
    text = annotations_of(existing).get(keys.EXPECTED_METADATA) if existing is not None else None
    try:
        return msgspec.json.decode(text or "{}", type=ExpectedMetadata)
    except msgspec.DecodeError:
        return ExpectedMetadata()


def merged_metadata(before: dict[str, str], theirs: Mapping[str, str], ours: dict[str, str]) -> dict[str, str | None]:
    """Return our values, except those that users changed and we did not; None removes a value we no longer set.

    Users cannot change keys under our own prefix.
    """
    desired: dict[str, str | None] = dict(ours)
    for key, value in ours.items():
        changed_by_them = key in before and theirs.get(key) != before[key] and before[key] == value
        if changed_by_them and not key.startswith(keys.PREFIX):
            desired[key] = theirs.get(key)
    for key in before.keys() - ours.keys():
        if theirs.get(key) == before[key] or key.startswith(keys.PREFIX):
            desired[key] = None
    return desired


def merged_taints(before: list[tuple[str, str]], existing: Object | None, ours: list[Taint]) -> list[Taint]:
    """Return our taints, followed by those that others put on the virtual node."""
    set_by_us = {*before, *((each["key"], each["effect"]) for each in ours)}
    theirs = [
        taint
        for taint in value_at(existing, "spec", "taints", default=[])
        if not taint["key"].startswith(keys.PREFIX) and (taint["key"], taint["effect"]) not in set_by_us
    ]
    return [*ours, *theirs]
