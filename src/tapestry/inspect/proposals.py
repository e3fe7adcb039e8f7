"""What would come of a policy: how much each node would lend, and which pods would have to leave.  Pure.

Leases are decided by the functions that the syncer decides with, once by the policies that there are and once with the
proposed one among them.
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
from tapestry.syncer.leasing import Lease, LeaseRules, LeaseState, PolicySide, earliest, lease_for
from tapestry.syncer.policies import CHANGED_AT, applies_to_binding, build_rules, parse_policy, parsed_policies
from tapestry.syncer.reclaim import excess_pods
from tapestry.syncer.virtual_nodes import last_reclaim_terms, with_removed_policies

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METADATA_FIELDS = ("name", "labels", "annotations")
"""What of the metadata in a file counts: the rest is the server's to say."""


class NodePlan(Printable, frozen=True):
    node: str
    """The physical one."""
    state_now: str
    state_then: str
    leased_now: dict[str, str]
    leased_then: dict[str, str]
    reclaimed: list[str]
    """Pods above that would have to leave, as `namespace/name`."""
    deadline: datetime | None
    """By when these would have to leave."""


class PolicyPlan(Printable, frozen=True):
    policy: str
    binding: str
    is_new: bool
    """Whether there is no policy of that name yet on that side."""
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
    """A policy as somebody would have it, and as it is now, if it is there."""

    policy: Object
    existing: Object | None
    side: PolicySide

    def affects(self, binding: Binding) -> bool:
        """Whether anything may change for a binding: the policy is for it, or was."""
        return applies_to_binding(self.policy, binding) or (
            self.existing is not None and applies_to_binding(self.existing, binding)
        )

    def policies_with_proposal(self, policies: Iterable[Object], now: datetime) -> list[Object]:
        """The policies of its side as they would be; one that would stay as it is has not changed now."""
        if self.existing is not None and self.existing["spec"] == self.policy["spec"]:
            return list(policies)
        return [*(each for each in policies if name_of(each) != name_of(self.policy)), self.updated_policy(now)]

    def updated_policy(self, now: datetime) -> Object:
        """The policy, as one that was written now."""
        metadata = {**self.policy["metadata"], "creationTimestamp": timestamp(now), CHANGED_AT: timestamp(now)}
        return {**self.policy, "metadata": metadata}


@dataclass(frozen=True)
class NodePair:
    """A physical node, its virtual one, and the pods on both."""

    node: Object
    virtual_node: Object | None
    foreign_pods: Sequence[Object]
    virtual_pods: Sequence[Object]

    def lease(self, rules: LeaseRules, now: datetime) -> Lease:
        used = [effective_requests(pod) for pod in self.virtual_pods]
        rules = with_removed_policies(rules, self.node, self.virtual_node, now)
        return lease_for(self.node, map(pod_allocation, self.foreign_pods), used, rules, now)

    def plan(self, before: Lease, after: Lease, now: datetime) -> NodePlan:
        leavers, deadline = self.reclaimed_pods(after, now)
        return NodePlan(
            node=name_of(self.node),
            state_now=before.state,
            state_then=after.state,
            leased_now=effective_amounts(before).texts(),
            leased_then=effective_amounts(after).texts(),
            reclaimed=sorted(map(key_of, leavers)),
            deadline=deadline if leavers else None,
        )

    def reclaimed_pods(self, lease: Lease, now: datetime) -> tuple[Sequence[Object], datetime | None]:
        """The pods that have to leave under a lease, and by when."""
        staying = [pod for pod in self.virtual_pods if not is_deleting(pod)]
        terms = lease.terms
        if lease.state is LeaseState.WITHDRAWN and self.virtual_node is not None:
            terms = earliest([terms, last_reclaim_terms(self.virtual_node, now)])
        if lease.state is not LeaseState.OPEN and terms.deadline is not None:
            return staying, terms.deadline
        if lease.excess is None:
            return (), None
        amounts, trimming = lease.excess
        return (excess_pods(staying, amounts), trimming.deadline) if trimming.deadline is not None else ((), None)


def policy_plan(
    proposal: Proposal,
    binding: Binding,
    cluster: PhysicalSnapshot,
    snapshot: VirtualSnapshot,
    time_zone: str,
    now: datetime,
) -> PolicyPlan:
    """What would come of a proposal on the nodes of one cluster."""
    found = parse_policy(proposal.updated_policy(now), proposal.side, time_zone)
    now_rules = effective_rules(binding, snapshot.policies, cluster.policies, cluster, time_zone)
    then = {PolicySide.OPERATOR: snapshot.policies, PolicySide.OWNER: cluster.policies}
    then[proposal.side] = proposal.policies_with_proposal(then[proposal.side], now)
    then_rules = effective_rules(binding, then[PolicySide.OPERATOR], then[PolicySide.OWNER], cluster, time_zone)
    nodes, before, after = [], ResourceList(), ResourceList()
    for place in node_pairs(binding, cluster, snapshot):
        lease_now, lease_then = place.lease(now_rules, now), place.lease(then_rules, now)
        if (
            lease_now.state is LeaseState.WITHDRAWN
            and lease_then.state is LeaseState.WITHDRAWN
            and place.virtual_node is None
        ):
            continue
        before, after = before + effective_amounts(lease_now), after + effective_amounts(lease_then)
        nodes.append(place.plan(lease_now, lease_then, now))
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
    """Every node of the cluster, by name."""
    virtual = {physical_node_name(node): node for node in snapshot.nodes_of(binding.uid)}
    foreign: dict[str, list[Object]] = {}
    for pod in cluster.pods:
        if occupies_node(pod) and not binding.owns(pod):
            foreign.setdefault(value_at(pod, "spec", "nodeName", default=""), []).append(pod)
    found = []
    for node in sorted((node for node in cluster.nodes if not is_deleting(node)), key=name_of):
        above = virtual.get(name_of(node))
        ours = [pod for pod in snapshot.pods[name_of(above)] if occupies_node(pod)] if above is not None else []
        found.append(NodePair(node, above, foreign.get(name_of(node), ()), ours))
    return found


def effective_amounts(lease: Lease) -> ResourceList:
    """What a lease lends: nothing while it is not open."""
    return lease.amounts if lease.state is LeaseState.OPEN else ResourceList(dict.fromkeys(lease.amounts, ZERO))


# -- the file


def proposed_policy(found: Sequence[Object], source: str) -> Object:
    """The one policy in a file; ValueError says what is wrong with it, beginning with the field."""
    if len(found) != 1:
        raise ValueError(f"{source}: one ResourceLeasingPolicy was expected, found {len(found)} objects")
    [policy] = found
    given, wanted = (policy["apiVersion"], policy["kind"]), (POLICIES.api_version, POLICIES.kind)
    if given != wanted:
        raise ValueError(f"{source}: {' '.join(wanted)} was expected, found {' '.join(given)}")
    spec = policy.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{source}: spec: is missing")
    schema = crd(POLICY)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if unknown := next(iter(unknown_fields(spec, schema, "spec")), None):
        raise ValueError(f"{source}: {unknown}: there is no such field")
    metadata = {"name": name_of(policy), "creationTimestamp": timestamp(EPOCH)}
    try:
        parse_policy({**policy, "metadata": metadata}, PolicySide.OPERATOR, "UTC")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return {**policy, "metadata": {key: value for key, value in policy["metadata"].items() if key in METADATA_FIELDS}}


def unknown_fields(value: object, schema: Object, path: str) -> Iterable[str]:
    """The paths of fields that a schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        for key, each in value.items():
            known = schema["properties"].get(key)
            yield from [f"{path}.{key}"] if known is None else unknown_fields(each, known, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from unknown_fields(each, schema["items"], f"{path}[{index}]")
