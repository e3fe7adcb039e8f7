"""Effect of a proposed policy: leased amounts per node and pods to be reclaimed. Pure.

The syncer's own functions compute the leases, once with the existing policies and once with the proposed one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.policies import POLICIES, POLICY
from tapestry.inspect.explain import NO_WARNING
from tapestry.inspect.snapshots import PhysicalSnapshot, VirtualSnapshot
from tapestry.inspect.status import Printable, limit_text, physical_node_name, reclaim_terms_text, window_texts
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, value_at
from tapestry.kube.pod_requests import effective_requests, occupies_node, pod_allocation
from tapestry.kube.quantity import ZERO, ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.leasing import Lease, LeaseRules, LeaseState, PolicySide, lease_for
from tapestry.syncer.policies import (
    CHANGED_AT,
    applies_to_binding,
    build_rules,
    parse_policy,
    parsed_policies,
    removed_policies,
)
from tapestry.syncer.reclaim import excess_pods, withdrawal_terms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METADATA_FIELDS = ("name", "labels", "annotations")
"""Metadata fields of a file that count; the server sets the others."""


class NodePlan(Printable, frozen=True):
    node: str
    """Name of the physical node."""
    state_now: str
    state_then: str
    leased_now: dict[str, str]
    leased_then: dict[str, str]
    reclaimed: list[str]
    """Pods of the virtual cluster that would be reclaimed, as `namespace/name`."""
    deadline: datetime | None
    """Time by which these would be reclaimed."""


class PolicyPlan(Printable, frozen=True):
    policy: str
    binding: str
    is_new: bool
    """True if that side has no policy of that name yet."""
    open: bool
    next_change: datetime | None
    windows: list[str]
    limits: dict[str, str]
    terms: str
    nodes: list[NodePlan]
    leased_now: dict[str, str]
    leased_then: dict[str, str]


@dataclass(frozen=True)
class Proposal:
    """A proposed policy, and the existing one if there is one."""

    policy: Object
    existing: Object | None
    side: PolicySide

    def affects(self, binding: Binding) -> bool:
        """Return whether the proposal may change a binding: the policy applies to it, or did."""
        return applies_to_binding(self.policy, binding) or (
            self.existing is not None and applies_to_binding(self.existing, binding)
        )

    def policies_with_proposal(self, policies: Iterable[Object], now: datetime) -> list[Object]:
        """Return the policies of its side after the change; an equal policy counts as unchanged."""
        if self.existing is not None and self.existing["spec"] == self.policy["spec"]:
            return list(policies)
        return [*(each for each in policies if name_of(each) != name_of(self.policy)), self.updated_policy(now)]

    def updated_policy(self, now: datetime) -> Object:
        metadata = {**self.policy["metadata"], "creationTimestamp": timestamp(now), CHANGED_AT: timestamp(now)}
        return {**self.policy, "metadata": metadata}


@dataclass(frozen=True)
class NodePair:
    """A physical node, its virtual node, and the pods on both."""

    node: Object
    virtual_node: Object | None
    foreign_pods: Sequence[Object]
    virtual_pods: Sequence[Object]

    def lease(self, rules: LeaseRules, now: datetime) -> Lease:
        used = [effective_requests(pod) for pod in self.virtual_pods]
        removed = removed_policies(rules, self.node, self.virtual_node, now)
        return lease_for(self.node, map(pod_allocation, self.foreign_pods), used, rules, now, removed)

    def plan(self, before: Lease, after: Lease, now: datetime) -> NodePlan:
        reclaimed, deadline = self.reclaimed_pods(after, now)
        return NodePlan(
            node=name_of(self.node),
            state_now=before.state,
            state_then=after.state,
            leased_now=effective_amounts(before).texts(),
            leased_then=effective_amounts(after).texts(),
            reclaimed=sorted(map(key_of, reclaimed)),
            deadline=deadline if reclaimed else None,
        )

    def reclaimed_pods(self, lease: Lease, now: datetime) -> tuple[Sequence[Object], datetime | None]:
        """Return the pods that a lease reclaims, and by when."""
        running = [pod for pod in self.virtual_pods if not is_deleting(pod)]
        terms = lease.terms
        if lease.state is LeaseState.WITHDRAWN and self.virtual_node is not None:
            terms = withdrawal_terms(lease, self.virtual_node, now)
        if lease.state is not LeaseState.OPEN and terms.deadline is not None:
            return running, terms.deadline
        if lease.excess is None:
            return (), None
        amounts, terms = lease.excess
        return (excess_pods(running, amounts), terms.deadline) if terms.deadline is not None else ((), None)


def policy_plan(
    proposal: Proposal,
    binding: Binding,
    cluster: PhysicalSnapshot,
    snapshot: VirtualSnapshot,
    time_zone: str,
    now: datetime,
) -> PolicyPlan:
    found = parse_policy(proposal.updated_policy(now), proposal.side, time_zone)
    now_rules = effective_rules(binding, snapshot.policies, cluster.policies, cluster, time_zone)
    then = {PolicySide.OPERATOR: snapshot.policies, PolicySide.OWNER: cluster.policies}
    then[proposal.side] = proposal.policies_with_proposal(then[proposal.side], now)
    then_rules = effective_rules(binding, then[PolicySide.OPERATOR], then[PolicySide.OWNER], cluster, time_zone)
    nodes, before, after = [], ResourceList(), ResourceList()
    for pair in node_pairs(binding, cluster, snapshot):
        lease_now, lease_then = pair.lease(now_rules, now), pair.lease(then_rules, now)
        if (
            lease_now.state is LeaseState.WITHDRAWN
            and lease_then.state is LeaseState.WITHDRAWN
            and pair.virtual_node is None
        ):
            continue
        before, after = before + effective_amounts(lease_now), after + effective_amounts(lease_then)
        nodes.append(pair.plan(lease_now, lease_then, now))
    return PolicyPlan(
        policy=str(found),
        binding=binding.name,
        is_new=proposal.existing is None,
        open=found.is_open(now),
        next_change=found.schedule.next_change(now),
        windows=window_texts(found.spec, time_zone),
        limits={limit.resource: limit_text(limit) for limit in found.spec.resource_limits},
        terms=reclaim_terms_text(found.spec),
        nodes=nodes,
        leased_now=before.texts(),
        leased_then=after.texts(),
    )


def effective_rules(
    binding: Binding, operator: Iterable[Object], owner: Iterable[Object], cluster: PhysicalSnapshot, time_zone: str
) -> LeaseRules:
    return build_rules(
        binding,
        parsed_policies(operator, PolicySide.OPERATOR, binding, time_zone),
        parsed_policies(owner, PolicySide.OWNER, binding, time_zone),
        cluster.mount_namespace,
        NO_WARNING,
    )


def node_pairs(binding: Binding, cluster: PhysicalSnapshot, snapshot: VirtualSnapshot) -> list[NodePair]:
    """Return every node of the cluster with its virtual node, sorted by name."""
    virtual = {physical_node_name(node): node for node in snapshot.nodes_of(binding.uid)}
    foreign: dict[str, list[Object]] = {}
    for pod in cluster.pods:
        if occupies_node(pod) and not binding.owns(pod):
            foreign.setdefault(value_at(pod, "spec", "nodeName", default=""), []).append(pod)
    found = []
    for node in sorted((node for node in cluster.nodes if not is_deleting(node)), key=name_of):
        vnode = virtual.get(name_of(node))
        pods = [pod for pod in snapshot.pods[name_of(vnode)] if occupies_node(pod)] if vnode is not None else []
        found.append(NodePair(node, vnode, foreign.get(name_of(node), ()), pods))
    return found


def effective_amounts(lease: Lease) -> ResourceList:
    """Return the leased amounts; zero while the lease is not open."""
    return lease.amounts if lease.state is LeaseState.OPEN else ResourceList(dict.fromkeys(lease.amounts, ZERO))


# -- the file


def proposed_policy(found: Sequence[Object], source: str) -> Object:
    """Return the single policy of a file; ValueError names the invalid field."""
    if len(found) != 1:
        raise ValueError(f"{source}: expected one ResourceLeasingPolicy, found {len(found)} objects")
    [policy] = found
    actual, expected = (policy["apiVersion"], policy["kind"]), (POLICIES.api_version, POLICIES.kind)
    if actual != expected:
        raise ValueError(f"{source}: expected {' '.join(expected)}, found {' '.join(actual)}")
    spec = policy.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{source}: spec: is missing")
    schema = crd(POLICY)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if unknown := next(iter(unknown_fields(spec, schema, "spec")), None):
        raise ValueError(f"{source}: {unknown}: unknown field")
    metadata = {"name": name_of(policy), "creationTimestamp": timestamp(EPOCH)}
    try:
        parse_policy({**policy, "metadata": metadata}, PolicySide.OPERATOR, "UTC")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return {**policy, "metadata": {key: value for key, value in policy["metadata"].items() if key in METADATA_FIELDS}}


def unknown_fields(value: object, schema: Object, path: str) -> Iterable[str]:
    if isinstance(value, dict) and "properties" in schema:
        for key, each in value.items():
            known = schema["properties"].get(key)
            yield from [f"{path}.{key}"] if known is None else unknown_fields(each, known, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from unknown_fields(each, schema["items"], f"{path}[{index}]")
