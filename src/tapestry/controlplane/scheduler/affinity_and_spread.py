"""Inter-pod affinity and topology spread: effects of other pods on the placement of a pod. Pure.

The state is computed once for a pod from the number of pods of each group on each node, and then evaluated for one node
after the other. A domain is the set of nodes that share the value of a label.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tapestry.controlplane.scheduler.cache import NodeCounts, NodeInfo, SchedulerCache
from tapestry.controlplane.scheduler.node_fit import (
    MAX_NODE_SCORE,
    Rejection,
    matches_node_affinity,
    tolerates_node_taints,
)
from tapestry.controlplane.scheduler.pod_info import (
    NO_AFFINITY_TERMS,
    AffinityTerm,
    AffinityTerms,
    PodGroupKey,
    PodInfo,
    SpreadConstraint,
)

HOSTNAME = "kubernetes.io/hostname"

AFFINITY_MISMATCH = Rejection(("node(s) didn't match pod affinity rules",), True)
ANTI_AFFINITY_MISMATCH = Rejection(("node(s) didn't match pod anti-affinity rules",), False)
EXISTING_ANTI_AFFINITY_MISMATCH = Rejection(("node(s) didn't satisfy existing pods anti-affinity rules",), False)
SPREAD_MISMATCH = Rejection(("node(s) didn't match pod topology spread constraints",), False)
MISSING_TOPOLOGY_LABEL = Rejection(
    ("node(s) didn't match pod topology spread constraints (missing required label)",), True
)

TopologyPair = tuple[str, str]
"""A label and its value."""


class HardSpreadState(NamedTuple):
    """A required spread constraint with the current counts."""

    spread: SpreadConstraint
    counts: Mapping[str, int]
    """Number of matching pods, by the value of the label."""
    limit: int
    """Maximum number of matching pods that a domain may already have."""


class SoftSpreadState(NamedTuple):
    """A preferred spread constraint with the current counts."""

    spread: SpreadConstraint
    by_node: NodeCounts
    by_domain: Mapping[str, int]


@dataclass(slots=True)
class TopologyState:
    """Effects of other pods on the placement of one pod."""

    existing_anti_affinity: Mapping[str, set[str]] = field(default_factory=dict)
    """Domains with a pod whose anti-affinity excludes this pod: values by label."""
    anti_affinity_domains: frozenset[TopologyPair] = frozenset()
    """Domains with a pod that this pod's anti-affinity excludes."""
    affinity: tuple[AffinityTerm, ...] = ()
    affinity_domains: frozenset[TopologyPair] = frozenset()
    """Domains with a pod that this pod's affinity requires."""
    satisfies_own_affinity: bool = False
    """True if no pod matches the required affinity yet, and this pod itself does."""
    hard_spreads: tuple[HardSpreadState, ...] = ()
    soft_spreads: tuple[SoftSpreadState, ...] = ()
    requires_all_topologies: bool = True
    """True if only nodes with the labels of all soft constraints are scored."""
    affinity_scores: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Score of a domain for the pods in it, by label and value."""
    anti_affinity: tuple[AffinityTerm, ...] = ()

    @property
    def can_reject(self) -> bool:
        return bool(self.hard_spreads or self.affinity or self.anti_affinity or self.existing_anti_affinity)

    def rejection(self, node_info: NodeInfo) -> Rejection | None:
        """Return the rule that the node violates, if any."""
        labels = node_info.labels
        for each, counts, limit in self.hard_spreads:
            value = labels.get(each.topology_key)
            if value is None:
                return MISSING_TOPOLOGY_LABEL
            if counts.get(value, 0) > limit:
                return SPREAD_MISMATCH
        if self.affinity and not self.satisfies_affinity(labels):
            return AFFINITY_MISMATCH
        for term in self.anti_affinity:
            if (term.topology_key, labels.get(term.topology_key)) in self.anti_affinity_domains:
                return ANTI_AFFINITY_MISMATCH
        for label, values in self.existing_anti_affinity.items():
            if labels.get(label) in values:
                return EXISTING_ANTI_AFFINITY_MISMATCH
        return None

    def satisfies_affinity(self, labels: Mapping[str, str]) -> bool:
        if any(term.topology_key not in labels for term in self.affinity):
            return False
        return self.satisfies_own_affinity or all(
            (term.topology_key, labels[term.topology_key]) in self.affinity_domains for term in self.affinity
        )

    def scores(self, node_infos: Sequence[NodeInfo]) -> Iterator[list[int]]:
        """Yield lists of scores from 0 to 100 for the nodes: by spread, then by affinity."""
        if self.soft_spreads:
            yield self.spread_scores(node_infos)
        if self.affinity_scores:
            totals = [
                sum(values.get(info.labels.get(label, ""), 0) for label, values in self.affinity_scores.items())
                for info in node_infos
            ]
            low, high = min(totals), max(totals)
            yield [MAX_NODE_SCORE * (each - low) // (high - low) if high > low else 0 for each in totals]

    def spread_scores(self, node_infos: Sequence[NodeInfo]) -> list[int]:
        scored = [info for info in node_infos if self.is_scored(info)]
        scores = dict.fromkeys((info.name for info in scored), 0.0)
        for state in self.soft_spreads:
            add_spread_scores(scores, state, scored)
        whole = {name: math.floor(score + 0.5) for name, score in scores.items()}
        low, high = min(whole.values(), default=0), max(whole.values(), default=0)
        if not high:
            return [MAX_NODE_SCORE if info.name in whole else 0 for info in node_infos]
        return [
            MAX_NODE_SCORE * (high + low - whole[info.name]) // high if info.name in whole else 0 for info in node_infos
        ]

    def is_scored(self, node_info: NodeInfo) -> bool:
        return not self.requires_all_topologies or all(
            each.spread.topology_key in node_info.labels for each in self.soft_spreads
        )


NO_TOPOLOGY_RULES = TopologyState()
"""State of a pod that no other pod affects."""


def add_spread_scores(scores: dict[str, float], state: SoftSpreadState, node_infos: Sequence[NodeInfo]) -> None:
    """Add the crowding of each node to its score. With fewer domains, each pod weighs less."""
    spread, by_node, by_domain = state
    label, is_per_node = spread.topology_key, spread.topology_key == HOSTNAME
    domains = len(node_infos) if is_per_node else len({info.labels.get(label, "") for info in node_infos})
    weight = math.log(domains + 2)
    for info in node_infos:
        if (value := info.labels.get(label)) is not None:
            number = by_node.get(info.name, 0) if is_per_node else by_domain.get(value, 0)
            scores[info.name] += number * weight + spread.max_skew - 1


def topology_state_of(pod_info: PodInfo, cache: SchedulerCache) -> TopologyState:
    terms = pod_info.affinity_terms
    if terms is NO_AFFINITY_TERMS and not cache.existing_affinity:
        return NO_TOPOLOGY_RULES
    state = TopologyState(
        existing_anti_affinity=existing_anti_affinity_for(pod_info.group, cache),
        anti_affinity_domains=frozenset(
            domain for term in terms.anti_affinity for domain in matching_domains([term], [term.topology_key], cache)
        ),
        affinity=terms.affinity,
        hard_spreads=tuple(hard_spread_state(pod_info, each, cache) for each in terms.hard_spreads),
        soft_spreads=tuple(soft_spread_state(pod_info, each, cache) for each in terms.soft_spreads),
        requires_all_topologies=not terms.uses_default_spread,
        affinity_scores=affinity_scores_of(pod_info, cache),
        anti_affinity=terms.anti_affinity,
    )
    if terms.affinity:
        state.affinity_domains = frozenset(
            matching_domains(terms.affinity, [term.topology_key for term in terms.affinity], cache)
        )
        state.satisfies_own_affinity = not state.affinity_domains and all(
            term.matches(pod_info.group, cache.namespace_labels) for term in terms.affinity
        )
    return state


def existing_anti_affinity_for(group: PodGroupKey, cache: SchedulerCache) -> Mapping[str, set[str]]:
    domains: dict[str, set[str]] = {}
    for terms, counts in cache.existing_affinity.items():
        for term in terms.anti_affinity:
            if term.matches(group, cache.namespace_labels):
                domains.setdefault(term.topology_key, set()).update(
                    value for value, _ in label_value_counts(term.topology_key, counts, cache)
                )
    return domains


def matching_domains(
    terms: Sequence[AffinityTerm], labels: Iterable[str], cache: SchedulerCache
) -> Iterator[TopologyPair]:
    labels = list(labels)
    for group, counts in cache.counts_by_group.items():
        if all(term.matches(group, cache.namespace_labels) for term in terms):
            for label in labels:
                for value, _ in label_value_counts(label, counts, cache):
                    yield label, value


def label_value_counts(label: str, counts: NodeCounts, cache: SchedulerCache) -> Iterator[tuple[str, int]]:
    """Yield the value of the label on each node, with the number of pods there."""
    nodes = cache.nodes
    for name, number in counts.items():
        info = nodes.get(name)
        if info is not None and (value := info.labels.get(label)) is not None:
            yield value, number


def counts_by_node(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> NodeCounts:
    """Return the number of pods that a constraint matches, by node. Terminating pods do not count."""
    counts: NodeCounts = {}
    if not spread.owner and not spread.selector.requirements:
        return counts
    for group, group_counts in cache.counts_by_group.items():
        if group.namespace == pod_info.group.namespace and not group.is_terminating and spread.matches(group):
            if not counts:
                counts = dict(group_counts)
            else:
                for name, number in group_counts.items():
                    counts[name] = counts.get(name, 0) + number
    return counts


def hard_spread_state(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> HardSpreadState:
    domains = eligible_nodes(
        pod_info, spread, tuple(each.topology_key for each in pod_info.affinity_terms.hard_spreads), cache
    )
    counts = dict.fromkeys(domains.values(), 0)
    add_counts(counts, counts_by_node(pod_info, spread, cache), domains)
    minimum = min(counts.values()) if len(counts) >= spread.min_domains else 0
    return HardSpreadState(spread, counts, spread.max_skew + minimum - int(spread.matches(pod_info.group)))


def soft_spread_state(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> SoftSpreadState:
    by_node = counts_by_node(pod_info, spread, cache)
    if spread.topology_key == HOSTNAME:
        return SoftSpreadState(spread, by_node, {})
    labels = (
        (spread.topology_key,)
        if pod_info.affinity_terms.uses_default_spread
        else tuple(e.topology_key for e in pod_info.affinity_terms.soft_spreads)
    )
    by_domain: dict[str, int] = {}
    add_counts(by_domain, by_node, eligible_nodes(pod_info, spread, labels, cache))
    return SoftSpreadState(spread, by_node, by_domain)


def add_counts(counts: dict[str, int], by_node: NodeCounts, domain_of_node: Mapping[str, str]) -> None:
    for name, number in by_node.items():
        if (value := domain_of_node.get(name)) is not None:
            counts[value] = counts.get(value, 0) + number


def eligible_nodes(
    pod_info: PodInfo, spread: SpreadConstraint, labels: tuple[str, ...], cache: SchedulerCache
) -> Mapping[str, str]:
    """Return the domain of each node that counts for a constraint. Nodes must have all `labels`."""
    needs = pod_info.requirements
    is_filtered = spread.honors_node_affinity and (needs.node_selector or needs.node_affinity is not None)
    key = (labels, spread.topology_key, needs if is_filtered else None, needs if spread.honors_taints else None)
    return cache.cached_domains(
        key,
        lambda: {
            info.name: info.labels[spread.topology_key]
            for info in cache
            if all(label in info.labels for label in labels)
            and (not is_filtered or matches_node_affinity(needs, info))
            and (not spread.honors_taints or tolerates_node_taints(needs, info))
        },
    )


def affinity_scores_of(pod_info: PodInfo, cache: SchedulerCache) -> Mapping[str, Mapping[str, int]]:
    """Return scores by label and value, from the preferences of this pod and of existing pods."""
    scores: dict[str, dict[str, int]] = {}

    def add_terms(terms: Iterable[tuple[AffinityTerm, int]], group: PodGroupKey, counts: NodeCounts) -> None:
        for term, weight in terms:
            if term.matches(group, cache.namespace_labels):
                by_value = scores.setdefault(term.topology_key, {})
                for value, number in label_value_counts(term.topology_key, counts, cache):
                    by_value[value] = by_value.get(value, 0) + weight * number

    if own := list(preferred_terms(pod_info.affinity_terms)):
        for group, counts in cache.counts_by_group.items():
            add_terms(own, group, counts)
    for existing, counts in cache.existing_affinity.items():
        add_terms([*((each, 1) for each in existing.affinity), *preferred_terms(existing)], pod_info.group, counts)
    return scores


def preferred_terms(affinity_terms: AffinityTerms) -> Iterator[tuple[AffinityTerm, int]]:
    yield from ((each, each.weight) for each in affinity_terms.preferred_affinity)
    yield from ((each, -each.weight) for each in affinity_terms.preferred_anti_affinity)
