"""Neighbours: what pods elsewhere mean for one pod's place.  Pure.

Worked out once for a pod, from how many pods of each kind each node has, then asked of one node after the other.  A
domain is the nodes that share a label's value.
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
    """A spread that must hold, and how things are."""

    spread: SpreadConstraint
    counts: Mapping[str, int]
    """Pods of the kind, by the value of the label."""
    limit: int
    """The most that a domain may have already."""


class SoftSpreadState(NamedTuple):
    """A spread that should hold, and how things are."""

    spread: SpreadConstraint
    by_node: NodeCounts
    by_domain: Mapping[str, int]


@dataclass(slots=True)
class TopologyState:
    """What pods elsewhere mean for one pod's place."""

    existing_anti_affinity: Mapping[str, set[str]] = field(default_factory=dict)
    """By label, the values where a pod is that keeps this one away."""
    anti_affinity_domains: frozenset[TopologyPair] = frozenset()
    """Where a pod is that this one keeps away from."""
    affinity: tuple[AffinityTerm, ...] = ()
    affinity_domains: frozenset[TopologyPair] = frozenset()
    """Where the pods are that this one wants to be near."""
    satisfies_own_affinity: bool = False
    """There are none such yet, and this pod is one itself."""
    hard_spreads: tuple[HardSpreadState, ...] = ()
    soft_spreads: tuple[SoftSpreadState, ...] = ()
    requires_all_topologies: bool = True
    """Whether a node without the label of a soft spread is not compared by it at all."""
    affinity_scores: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By label and value, what a domain is worth for the pods in it."""
    anti_affinity: tuple[AffinityTerm, ...] = ()

    @property
    def can_reject(self) -> bool:
        return bool(self.hard_spreads or self.affinity or self.anti_affinity or self.existing_anti_affinity)

    def rejection(self, node_info: NodeInfo) -> Rejection | None:
        """What there is against the node."""
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
        """What the nodes are worth for this, each from 0 to 100: once for the spread, once for who is there."""
        if self.soft_spreads:
            yield self.spread_scores(node_infos)
        if self.affinity_scores:
            likings = [
                sum(values.get(room.labels.get(label, ""), 0) for label, values in self.affinity_scores.items())
                for room in node_infos
            ]
            low, high = min(likings), max(likings)
            yield [MAX_NODE_SCORE * (each - low) // (high - low) if high > low else 0 for each in likings]

    def spread_scores(self, node_infos: Sequence[NodeInfo]) -> list[int]:
        compared = [room for room in node_infos if self.is_scored(room)]
        scores = dict.fromkeys((room.name for room in compared), 0.0)
        for crowding in self.soft_spreads:
            add_spread_scores(scores, crowding, compared)
        whole = {name: math.floor(score + 0.5) for name, score in scores.items()}
        low, high = min(whole.values(), default=0), max(whole.values(), default=0)
        if not high:
            return [MAX_NODE_SCORE if room.name in whole else 0 for room in node_infos]
        return [
            MAX_NODE_SCORE * (high + low - whole[room.name]) // high if room.name in whole else 0 for room in node_infos
        ]

    def is_scored(self, node_info: NodeInfo) -> bool:
        return not self.requires_all_topologies or all(
            each.spread.topology_key in node_info.labels for each in self.soft_spreads
        )


NO_TOPOLOGY_RULES = TopologyState()
"""Nobody matters."""


def add_spread_scores(scores: dict[str, float], state: SoftSpreadState, node_infos: Sequence[NodeInfo]) -> None:
    """Add to each node's score how crowded it is: the fewer domains there are, the less a pod more counts."""
    spread, by_node, by_domain = state
    label, is_by_node = spread.topology_key, spread.topology_key == HOSTNAME
    domains = len(node_infos) if is_by_node else len({room.labels.get(label, "") for room in node_infos})
    weight = math.log(domains + 2)
    for room in node_infos:
        if (value := room.labels.get(label)) is not None:
            number = by_node.get(room.name, 0) if is_by_node else by_domain.get(value, 0)
            scores[room.name] += number * weight + spread.max_skew - 1


def topology_state_of(pod_info: PodInfo, cache: SchedulerCache) -> TopologyState:
    company = pod_info.affinity_terms
    if company is NO_AFFINITY_TERMS and not cache.existing_affinity:
        return NO_TOPOLOGY_RULES
    found = TopologyState(
        existing_anti_affinity=existing_anti_affinity_for(pod_info.group, cache),
        anti_affinity_domains=frozenset(
            domain for term in company.anti_affinity for domain in matching_domains([term], [term.topology_key], cache)
        ),
        affinity=company.affinity,
        hard_spreads=tuple(hard_spread_state(pod_info, each, cache) for each in company.hard_spreads),
        soft_spreads=tuple(soft_spread_state(pod_info, each, cache) for each in company.soft_spreads),
        requires_all_topologies=not company.uses_default_spread,
        affinity_scores=affinity_scores_of(pod_info, cache),
        anti_affinity=company.anti_affinity,
    )
    if company.affinity:
        found.affinity_domains = frozenset(
            matching_domains(company.affinity, [term.topology_key for term in company.affinity], cache)
        )
        found.satisfies_own_affinity = not found.affinity_domains and all(
            term.matches(pod_info.group, cache.namespace_labels) for term in company.affinity
        )
    return found


def existing_anti_affinity_for(group: PodGroupKey, cache: SchedulerCache) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for company, places in cache.existing_affinity.items():
        for term in company.anti_affinity:
            if term.matches(group, cache.namespace_labels):
                found.setdefault(term.topology_key, set()).update(
                    value for value, _ in label_value_counts(term.topology_key, places, cache)
                )
    return found


def matching_domains(
    terms: Sequence[AffinityTerm], labels: Iterable[str], cache: SchedulerCache
) -> Iterator[TopologyPair]:
    """Where pods are that all of the terms mean."""
    labels = list(labels)
    for kind, places in cache.counts_by_group.items():
        if all(term.matches(kind, cache.namespace_labels) for term in terms):
            for label in labels:
                for value, _ in label_value_counts(label, places, cache):
                    yield label, value


def label_value_counts(label: str, places: NodeCounts, cache: SchedulerCache) -> Iterator[tuple[str, int]]:
    """The label's value on each of the nodes, and how many pods are there."""
    by_name = cache.nodes
    for name, number in places.items():
        room = by_name.get(name)
        if room is not None and (value := room.labels.get(label)) is not None:
            yield value, number


def counts_by_node(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> NodeCounts:
    """How many pods a spread means each node has; those that are on their way out do not count."""
    found: NodeCounts = {}
    if not spread.owner and not spread.selector.requirements:
        return found
    for kind, places in cache.counts_by_group.items():
        if kind.namespace == pod_info.group.namespace and not kind.is_terminating and spread.matches(kind):
            if not found:
                found = dict(places)
            else:
                for name, number in places.items():
                    found[name] = found.get(name, 0) + number
    return found


def hard_spread_state(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> HardSpreadState:
    counted = eligible_nodes(
        pod_info, spread, tuple(each.topology_key for each in pod_info.affinity_terms.hard_spreads), cache
    )
    counts = dict.fromkeys(counted.values(), 0)
    add_counts(counts, counts_by_node(pod_info, spread, cache), counted)
    least = min(counts.values()) if len(counts) >= spread.min_domains else 0
    return HardSpreadState(spread, counts, spread.max_skew + least - int(spread.matches(pod_info.group)))


def soft_spread_state(pod_info: PodInfo, spread: SpreadConstraint, cache: SchedulerCache) -> SoftSpreadState:
    by_node = counts_by_node(pod_info, spread, cache)
    if spread.topology_key == HOSTNAME:
        return SoftSpreadState(spread, by_node, {})
    labels = (
        (spread.topology_key,)
        if pod_info.affinity_terms.uses_default_spread
        else tuple(e.topology_key for e in pod_info.affinity_terms.soft_spreads)
    )
    found: dict[str, int] = {}
    add_counts(found, by_node, eligible_nodes(pod_info, spread, labels, cache))
    return SoftSpreadState(spread, by_node, found)


def add_counts(counts: dict[str, int], by_node: NodeCounts, domain_of_node: Mapping[str, str]) -> None:
    for name, number in by_node.items():
        if (value := domain_of_node.get(name)) is not None:
            counts[value] = counts.get(value, 0) + number


def eligible_nodes(
    pod_info: PodInfo, spread: SpreadConstraint, labels: tuple[str, ...], cache: SchedulerCache
) -> Mapping[str, str]:
    """The domain of each node that counts where pods are to be spread; `labels` are those it has to have."""
    needs = pod_info.requirements
    is_choosy = spread.honors_node_affinity and (needs.node_selector or needs.node_affinity is not None)
    key = (labels, spread.topology_key, needs if is_choosy else None, needs if spread.honors_taints else None)
    return cache.cached_domains(
        key,
        lambda: {
            room.name: room.labels[spread.topology_key]
            for room in cache
            if all(label in room.labels for label in labels)
            and (not is_choosy or matches_node_affinity(needs, room))
            and (not spread.honors_taints or tolerates_node_taints(needs, room))
        },
    )


def affinity_scores_of(pod_info: PodInfo, cache: SchedulerCache) -> Mapping[str, Mapping[str, int]]:
    """By label and value, how much the pod likes to be there, and how much it is liked there."""
    found: dict[str, dict[str, int]] = {}

    def like(terms: Iterable[tuple[AffinityTerm, int]], kind: PodGroupKey, places: NodeCounts) -> None:
        for term, weight in terms:
            if term.matches(kind, cache.namespace_labels):
                worth = found.setdefault(term.topology_key, {})
                for value, number in label_value_counts(term.topology_key, places, cache):
                    worth[value] = worth.get(value, 0) + weight * number

    if own := list(preferred_terms(pod_info.affinity_terms)):
        for kind, places in cache.counts_by_group.items():
            like(own, kind, places)
    for company, places in cache.existing_affinity.items():
        like([*((each, 1) for each in company.affinity), *preferred_terms(company)], pod_info.group, places)
    return found


def preferred_terms(affinity_terms: AffinityTerms) -> Iterator[tuple[AffinityTerm, int]]:
    yield from ((each, each.weight) for each in affinity_terms.preferred_affinity)
    yield from ((each, -each.weight) for each in affinity_terms.preferred_anti_affinity)
