"""Status values of bindings, virtual nodes and policies, one per table row.

Each function takes objects and returns values, which are printed as tables or, with all fields, as JSON and YAML.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.policies import ResourceLeasingPolicySpec, ResourceLimit, TimeWindow
from tapestry.kube.conditions import find_condition, is_condition_true
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node
from tapestry.kube.pods import taint_named
from tapestry.kube.quantity import ResourceList
from tapestry.kube.times import parse_time
from tapestry.syncer.leasing import LeaseState, PolicySide
from tapestry.syncer.policies import ParsedPolicy, parsed_policy
from tapestry.syncer.virtual_nodes import lease_state_of, leased_amounts

HARMLESS_REASONS = frozenset(
    {"OutOfTimeWindows", "Reclaimed", "CleanupInProgress", "WaitingSyncerCleanup", keys.MOUNT_NAMESPACE_UNMARKED}
)
"""Reasons of false conditions that are not problems."""


UNREACHABLE = "PhysicalClusterUnreachable"
RECLAIMED = "Reclaimed"


class Printable(Struct, frozen=True, rename="camel"):
    """Value to print; its field names are in camel case, as in Kubernetes."""


class BindingStatus(Printable, frozen=True):
    name: str
    cluster_id: str
    phase: str
    leasing: str
    """`Leasing`, or the reason why nothing is leased."""
    nodes: int
    pods: int
    leased: dict[str, str]
    used: dict[str, str]
    next_change: datetime | None
    last_seen: datetime | None
    last_seen_exact: bool
    """True if `last_seen` is accurate to ten seconds; otherwise it may be five minutes old."""
    created: datetime
    mount_namespace: str
    identity: str
    credentials_expire: datetime | None
    troubles: list[str]


class NodeStatus(Printable, frozen=True):
    name: str
    binding: str
    physical_node: str
    state: str
    """`Open`, `Closed` or `Withdrawn`, from its taints."""
    ready: bool
    cordoned: bool
    leased: dict[str, str]
    """Amounts now: 0 of everything while it is not open."""
    used: dict[str, str]
    pods: int
    policies: list[str]
    lease_ends: datetime | None
    """End of the lease; known only shortly before."""
    created: datetime


class PolicyStatus(Printable, frozen=True):
    name: str
    side: str
    cluster: str
    seen_by: str
    """Binding in whose cluster an owner's policy is."""
    state: str
    """`Open`, `Closed`, `Invalid`, or `Reclaimed` by the owner's kill switch."""
    open: bool
    """True if a window is open."""
    windows: list[str]
    limits: dict[str, str]
    terms: str
    next_change: datetime | None
    nodes: int
    leased: dict[str, str]
    complaint: str
    created: datetime


def binding_status(binding: Object, last_contact: datetime | None = None) -> BindingStatus:
    """Return the status; `last_contact` is from the Leases of its nodes, if known."""
    spec, status = binding["spec"], binding.get("status") or {}
    reported = time_at(status, "lastSeen")
    return BindingStatus(
        name=name_of(binding),
        cluster_id=spec["clusterID"],
        phase="Deleting" if is_deleting(binding) else status.get("phase") or "",
        leasing=leasing_reason(binding),
        nodes=status.get("nodes") or 0,
        pods=status.get("pods") or 0,
        leased=status.get("leased") or {},
        used=status.get("used") or {},
        next_change=time_at(status, "nextChange"),
        last_seen=max(filter(None, (reported, last_contact)), default=None),
        last_seen_exact=last_contact is not None or leasing_reason(binding) == UNREACHABLE,
        created=creation_time(binding),
        mount_namespace=spec.get("mountNamespace") or "",
        identity=status.get("identity") or "",
        credentials_expire=time_at(status, "credentialsExpire"),
        troubles=list(condition_problems(status.get("conditions") or ())),
    )


def leasing_reason(binding: Object) -> str:
    """Return `Leasing`, or the reason why nothing is leased."""
    found = find_condition(value_at(binding, "status", "conditions"), "Leasing") or {}
    return str(found.get("reason", ""))


def condition_problems(conditions: Iterable[Object]) -> Iterator[str]:
    """Yield a message for each distinct reason of a condition that is not true."""
    reported = set()
    for each in conditions:
        reason = each.get("reason")
        if each["status"] != "True" and reason not in HARMLESS_REASONS and reason not in reported:
            reported.add(reason)
            yield f"{each['type']}={each['status']}: {reason}: {each.get('message', '')}".rstrip(": ")


def node_status(node: Object, pods: Iterable[Object]) -> NodeStatus:
    active = [pod for pod in pods if occupies_node(pod)]
    annotations = annotations_of(node)
    return NodeStatus(
        name=name_of(node),
        binding=annotations.get(keys.CLUSTER_BINDING, ""),
        physical_node=physical_node_name(node),
        state=lease_state_of(node),
        ready=is_condition_true(node, "Ready"),
        cordoned=bool(
            value_at(node, "spec", "unschedulable") or taint_named(node, keys.PHYSICAL_NODE_UNSCHEDULABLE_TAINT)
        ),
        leased=leased_amounts(node).texts(),
        used=total_requests(active).texts(),
        pods=len(active),
        policies=applied_policies(node),
        lease_ends=time_at(annotations, keys.LEASE_ENDS),
        created=creation_time(node),
    )


def physical_node_name(node: Object) -> str:
    return annotations_of(node).get(keys.PHYSICAL_NODE_NAME, "")


def total_requests(pods: Iterable[Object]) -> ResourceList:
    return sum(map(effective_requests, pods), ResourceList())


def applied_policies(node: Object) -> list[str]:
    return [each for each in annotations_of(node).get(keys.POLICIES_APPLIED, "").split(",") if each]


def policy_status(
    policy: Object, side: PolicySide, seen_by: Binding | None, binding: Object | None, time_zone: str, now: datetime
) -> PolicyStatus:
    """Return the current status of a policy for its `binding`; an owner's policy includes the binding's share."""
    reading = parsed_policy(policy, side, time_zone)
    status = policy.get("status") or {}
    share = status if seen_by is None else binding_share(status, seen_by)
    state = policy_state(reading, binding, now)
    is_leasing = state != RECLAIMED and reading.policy.is_open(now)
    return PolicyStatus(
        name=name_of(policy),
        side=side,
        cluster=value_at(policy, "spec", "cluster", default=""),
        seen_by=seen_by.name if seen_by else "",
        state=state,
        open=reading.policy.is_open(now),
        windows=window_texts(reading.policy.spec, time_zone),
        limits={limit.resource: limit_text(limit) for limit in reading.policy.spec.resource_limits},
        terms=reclaim_terms_text(reading.policy.spec),
        next_change=reading.policy.schedule.next_change(now),
        nodes=(share.get("nodes") or 0) if is_leasing else 0,
        leased=(share.get("leased") or {}) if is_leasing else {},
        complaint=reading.error,
        created=creation_time(policy),
    )


def policy_state(reading: ParsedPolicy, binding: Object | None, now: datetime) -> str:
    if reading.error:
        return "Invalid"
    if not reading.policy.is_open(now):
        return LeaseState.CLOSED
    return RECLAIMED if binding is not None and leasing_reason(binding) == RECLAIMED else LeaseState.OPEN


def binding_share(status: Object, binding: Binding) -> Object:
    """Return what one binding leases under an owner's policy, from the policy's status."""
    leases: list[Object] = status.get("leases") or []
    own = (binding.virtual_cluster, binding.name)
    return next((each for each in leases if (each["virtualCluster"], each["clusterBinding"]) == own), {})


def window_texts(spec: ResourceLeasingPolicySpec, time_zone: str) -> list[str]:
    return [window_text(window, spec.time_zone or time_zone) for window in spec.time_windows]


def window_text(window: TimeWindow, time_zone: str) -> str:
    """Return `22:00-06:00 Mon,Tue UTC`."""
    days = ",".join(day[:3].capitalize() for day in window.days)
    return " ".join(filter(None, (f"{window.start}-{window.end}", days, window.time_zone or time_zone)))


def limit_text(limit: ResourceLimit) -> str:
    parts = [f"{limit.percent}% of idle"] if limit.percent is not None else []
    parts += [f"at most {limit.quantity}"] if limit.quantity is not None else []
    return ", ".join(parts) or "all that is idle"


def reclaim_terms_text(spec: ResourceLeasingPolicySpec) -> str:
    if not spec.force_reclaim:
        return "pods finish"
    evicting = ", evictions before that" if spec.evict_during_grace else ""
    return f"reclaimed {spec.graceful_reclaim_period_seconds} s after the end{evicting}"


def creation_time(obj: Object) -> datetime:
    return parse_time(obj["metadata"]["creationTimestamp"])


def time_at(fields: Mapping[str, str], key: str) -> datetime | None:
    text = fields.get(key)
    return parse_time(text) if text else None
