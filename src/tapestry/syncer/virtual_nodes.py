"""Virtual nodes: the Node object that represents a leased physical node in the virtual cluster.

A virtual node has two kinds of writers: us, and users who label, annotate or taint nodes. An annotation records what we
set last. It distinguishes our changes from theirs, and shows which of our values are no longer wanted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import node_metrics_path
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of, value_at
from tapestry.kube.pods import taint_named
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.leasing import Lease, LeaseState
from tapestry.syncer.policies import terms_annotation
from tapestry.syncer.translate.nodes import HOSTNAME, visible_labels

LIFECYCLE_TAINT_PREFIX = "node.kubernetes.io/"
"""Prefix of taints that each cluster's own controllers set."""
MAX_CONDITIONS = 32
MAX_MESSAGE_BYTES = 4096
"""Limit of a condition's message, which is untrusted."""

Taint = dict[str, Any]


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
        {**node_annotations(node, lease, binding, existing), **metrics_annotations(name, kubelet)},
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
    hostname = labels_of(node).get(HOSTNAME, name) if binding.spec.schedules_on_host else name
    return {
        **visible_labels(node),
        HOSTNAME: hostname,
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


def metrics_annotations(name: str, kubelet: Endpoint | None) -> dict[str, str]:
    return {keys.METRICS_PATH: node_metrics_path(name)} if kubelet is not None else {}


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
