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
from tapestry.inspect.facts import Above, Cluster
from tapestry.inspect.status import Value, limit_text, physical_node, terms_of, windows_of
from tapestry.kube.crds import crd
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, value_at
from tapestry.kube.quantity import ZERO, Amounts
from tapestry.kube.requests import effective_requests, hold_of, holds_its_node
from tapestry.kube.times import timestamp
from tapestry.syncer.leasing import Lease, Rules, Side, State, earliest, lease_of
from tapestry.syncer.policies import CHANGED_AT, is_about, policy_of, readings, rules_of
from tapestry.syncer.reclaim import beyond
from tapestry.syncer.virtual_nodes import last_terms, remembering

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEPT = ("name", "labels", "annotations")
"""What of the metadata in a file counts: the rest is the server's to say."""


class NodePlan(Value, frozen=True):
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


class PolicyPlan(Value, frozen=True):
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
    side: Side

    def concerns(self, binding: Binding) -> bool:
        """Whether anything may change for a binding: the policy is for it, or was."""
        return is_about(self.policy, binding) or (self.existing is not None and is_about(self.existing, binding))

    def applied(self, policies: Iterable[Object], now: datetime) -> list[Object]:
        """The policies of its side as they would be; one that would stay as it is has not changed now."""
        if self.existing is not None and self.existing["spec"] == self.policy["spec"]:
            return list(policies)
        return [*(each for each in policies if name_of(each) != name_of(self.policy)), self.changed(now)]

    def changed(self, now: datetime) -> Object:
        """The policy, as one that was written now."""
        metadata = {**self.policy["metadata"], "creationTimestamp": timestamp(now), CHANGED_AT: timestamp(now)}
        return {**self.policy, "metadata": metadata}


@dataclass(frozen=True)
class Place:
    """A physical node, its virtual one, and the pods on both."""

    node: Object
    virtual: Object | None
    foreign: Sequence[Object]
    ours: Sequence[Object]

    def lease(self, rules: Rules, now: datetime) -> Lease:
        used = [effective_requests(pod) for pod in self.ours]
        rules = remembering(rules, self.node, self.virtual, now)
        return lease_of(self.node, map(hold_of, self.foreign), used, rules, now)

    def plan(self, before: Lease, after: Lease, now: datetime) -> NodePlan:
        leavers, deadline = self.leavers(after, now)
        return NodePlan(
            node=name_of(self.node),
            state_now=before.state,
            state_then=after.state,
            leased_now=in_effect(before).texts(),
            leased_then=in_effect(after).texts(),
            reclaimed=sorted(map(key_of, leavers)),
            deadline=deadline if leavers else None,
        )

    def leavers(self, lease: Lease, now: datetime) -> tuple[Sequence[Object], datetime | None]:
        """The pods that have to leave under a lease, and by when."""
        staying = [pod for pod in self.ours if not is_deleting(pod)]
        terms = lease.terms
        if lease.state is State.WITHDRAWN and self.virtual is not None:
            terms = earliest([terms, last_terms(self.virtual, now)])
        if lease.state is not State.OPEN and terms.deadline is not None:
            return staying, terms.deadline
        if lease.trimming is None:
            return (), None
        amounts, trimming = lease.trimming
        return (beyond(staying, amounts), trimming.deadline) if trimming.deadline is not None else ((), None)


def planned(
    proposal: Proposal, binding: Binding, cluster: Cluster, facts: Above, zone: str, now: datetime
) -> PolicyPlan:
    """What would come of a proposal on the nodes of one cluster."""
    found = policy_of(proposal.changed(now), proposal.side, zone)
    now_rules = rules(binding, facts.policies, cluster.policies, cluster, zone)
    then = {Side.OPERATOR: facts.policies, Side.OWNER: cluster.policies}
    then[proposal.side] = proposal.applied(then[proposal.side], now)
    then_rules = rules(binding, then[Side.OPERATOR], then[Side.OWNER], cluster, zone)
    nodes, before, after = [], Amounts(), Amounts()
    for place in places(binding, cluster, facts):
        lease_now, lease_then = place.lease(now_rules, now), place.lease(then_rules, now)
        if lease_now.state is State.WITHDRAWN and lease_then.state is State.WITHDRAWN and place.virtual is None:
            continue
        before, after = before + in_effect(lease_now), after + in_effect(lease_then)
        nodes.append(place.plan(lease_now, lease_then, now))
    return PolicyPlan(
        policy=str(found),
        binding=binding.name,
        is_new=proposal.existing is None,
        open=found.is_open(now),
        next_change=found.schedule.next_change(now),
        windows=windows_of(found.spec, zone),
        limits={limit.resource: limit_text(limit) for limit in found.spec.resource_limits},
        terms=terms_of(found.spec),
        nodes=nodes,
        leased_now=before.texts(),
        leased_then=after.texts(),
    )


def rules(binding: Binding, operator: Iterable[Object], owner: Iterable[Object], cluster: Cluster, zone: str) -> Rules:
    return rules_of(
        binding,
        readings(operator, Side.OPERATOR, binding, zone),
        readings(owner, Side.OWNER, binding, zone),
        cluster.mount,
        NO_WARNING,
    )


def places(binding: Binding, cluster: Cluster, facts: Above) -> list[Place]:
    """Every node of the cluster, by name."""
    virtual = {physical_node(node): node for node in facts.nodes_of(binding.uid)}
    foreign: dict[str, list[Object]] = {}
    for pod in cluster.pods:
        if holds_its_node(pod) and not binding.owns(pod):
            foreign.setdefault(value_at(pod, "spec", "nodeName", default=""), []).append(pod)
    found = []
    for node in sorted((node for node in cluster.nodes if not is_deleting(node)), key=name_of):
        above = virtual.get(name_of(node))
        ours = [pod for pod in facts.pods[name_of(above)] if holds_its_node(pod)] if above is not None else []
        found.append(Place(node, above, foreign.get(name_of(node), ()), ours))
    return found


def in_effect(lease: Lease) -> Amounts:
    """What a lease lends: nothing while it is not open."""
    return lease.amounts if lease.state is State.OPEN else Amounts(dict.fromkeys(lease.amounts, ZERO))


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
        policy_of({**policy, "metadata": metadata}, Side.OPERATOR, "UTC")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return {**policy, "metadata": {key: value for key, value in policy["metadata"].items() if key in KEPT}}


def unknown_fields(value: object, schema: Object, path: str) -> Iterable[str]:
    """The paths of fields that a schema does not have."""
    if isinstance(value, dict) and "properties" in schema:
        for key, each in value.items():
            known = schema["properties"].get(key)
            yield from [f"{path}.{key}"] if known is None else unknown_fields(each, known, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from unknown_fields(each, schema["items"], f"{path}[{index}]")
