"""Neighbours: what pods elsewhere mean for one pod's place.  Pure.

Worked out once for a pod, from how many pods of each kind each node has, then asked of one node after the other.  A
domain is the nodes that share a label's value.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tapestry.controlplane.scheduler.asked import ALONE, Asked, Company, Kind, Spread, Term
from tapestry.controlplane.scheduler.rooms import Counts, Room, Rooms
from tapestry.controlplane.scheduler.verdicts import HIGHEST, Refusal, is_selected, is_tolerant

HOSTNAME = "kubernetes.io/hostname"

NEAR = Refusal(("node(s) didn't match pod affinity rules",), True)
APART = Refusal(("node(s) didn't match pod anti-affinity rules",), False)
GUARDED = Refusal(("node(s) didn't satisfy existing pods anti-affinity rules",), False)
SPREAD = Refusal(("node(s) didn't match pod topology spread constraints",), False)
UNLABELLED = Refusal(("node(s) didn't match pod topology spread constraints (missing required label)",), True)

Domain = tuple[str, str]
"""A label and its value."""


class Evenness(NamedTuple):
    """A spread that must hold, and how things are."""

    spread: Spread
    counts: Mapping[str, int]
    """Pods of the kind, by the value of the label."""
    limit: int
    """The most that a domain may have already."""


class Crowding(NamedTuple):
    """A spread that should hold, and how things are."""

    spread: Spread
    by_node: Counts
    by_domain: Mapping[str, int]


@dataclass(slots=True)
class Neighbours:
    """What pods elsewhere mean for one pod's place."""

    forbidden: Mapping[str, set[str]] = field(default_factory=dict)
    """By label, the values where a pod is that keeps this one away."""
    avoided: frozenset[Domain] = frozenset()
    """Where a pod is that this one keeps away from."""
    near: tuple[Term, ...] = ()
    wanted: frozenset[Domain] = frozenset()
    """Where the pods are that this one wants to be near."""
    is_first: bool = False
    """There are none such yet, and this pod is one itself."""
    even: tuple[Evenness, ...] = ()
    crowds: tuple[Crowding, ...] = ()
    needs_all_labels: bool = True
    """Whether a node without the label of a soft spread is not compared by it at all."""
    liking: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By label and value, what a domain is worth for the pods in it."""
    apart: tuple[Term, ...] = ()

    @property
    def can_object(self) -> bool:
        return bool(self.even or self.near or self.apart or self.forbidden)

    def objection(self, room: Room) -> Refusal | None:
        """What there is against the node."""
        labels = room.labels
        for each, counts, limit in self.even:
            value = labels.get(each.topology)
            if value is None:
                return UNLABELLED
            if counts.get(value, 0) > limit:
                return SPREAD
        if self.near and not self.is_near(labels):
            return NEAR
        for term in self.apart:
            if (term.topology, labels.get(term.topology)) in self.avoided:
                return APART
        for label, values in self.forbidden.items():
            if labels.get(label) in values:
                return GUARDED
        return None

    def is_near(self, labels: Mapping[str, str]) -> bool:
        if any(term.topology not in labels for term in self.near):
            return False
        return self.is_first or all((term.topology, labels[term.topology]) in self.wanted for term in self.near)

    def scores(self, rooms: Sequence[Room]) -> Iterator[list[int]]:
        """What the nodes are worth for this, each from 0 to 100: once for the spread, once for who is there."""
        if self.crowds:
            yield self.evenness(rooms)
        if self.liking:
            likings = [
                sum(values.get(room.labels.get(label, ""), 0) for label, values in self.liking.items())
                for room in rooms
            ]
            low, high = min(likings), max(likings)
            yield [HIGHEST * (each - low) // (high - low) if high > low else 0 for each in likings]

    def evenness(self, rooms: Sequence[Room]) -> list[int]:
        compared = [room for room in rooms if self.is_compared(room)]
        scores = dict.fromkeys((room.name for room in compared), 0.0)
        for crowding in self.crowds:
            crowd(scores, crowding, compared)
        whole = {name: math.floor(score + 0.5) for name, score in scores.items()}
        low, high = min(whole.values(), default=0), max(whole.values(), default=0)
        if not high:
            return [HIGHEST if room.name in whole else 0 for room in rooms]
        return [HIGHEST * (high + low - whole[room.name]) // high if room.name in whole else 0 for room in rooms]

    def is_compared(self, room: Room) -> bool:
        return not self.needs_all_labels or all(each.spread.topology in room.labels for each in self.crowds)


NOBODY = Neighbours()
"""Nobody matters."""


def crowd(scores: dict[str, float], crowding: Crowding, rooms: Sequence[Room]) -> None:
    """Add to each node's score how crowded it is: the fewer domains there are, the less a pod more counts."""
    spread, by_node, by_domain = crowding
    label, is_by_node = spread.topology, spread.topology == HOSTNAME
    domains = len(rooms) if is_by_node else len({room.labels.get(label, "") for room in rooms})
    weight = math.log(domains + 2)
    for room in rooms:
        if (value := room.labels.get(label)) is not None:
            number = by_node.get(room.name, 0) if is_by_node else by_domain.get(value, 0)
            scores[room.name] += number * weight + spread.most - 1


def neighbours_of(pod: Asked, rooms: Rooms) -> Neighbours:
    company = pod.company
    if company is ALONE and not rooms.opinions:
        return NOBODY
    found = Neighbours(
        forbidden=forbidden_to(pod.kind, rooms),
        avoided=frozenset(domain for term in company.apart for domain in domains([term], [term.topology], rooms)),
        near=company.near,
        even=tuple(evenness_of(pod, each, rooms) for each in company.hard),
        crowds=tuple(crowding_of(pod, each, rooms) for each in company.soft),
        needs_all_labels=not company.is_spread_by_default,
        liking=liking_of(pod, rooms),
        apart=company.apart,
    )
    if company.near:
        found.wanted = frozenset(domains(company.near, [term.topology for term in company.near], rooms))
        found.is_first = not found.wanted and all(term.matches(pod.kind, rooms.spaces) for term in company.near)
    return found


def forbidden_to(kind: Kind, rooms: Rooms) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for company, places in rooms.opinions.items():
        for term in company.apart:
            if term.matches(kind, rooms.spaces):
                found.setdefault(term.topology, set()).update(
                    value for value, _ in values(term.topology, places, rooms)
                )
    return found


def domains(terms: Sequence[Term], labels: Iterable[str], rooms: Rooms) -> Iterator[Domain]:
    """Where pods are that all of the terms mean."""
    labels = list(labels)
    for kind, places in rooms.kinds.items():
        if all(term.matches(kind, rooms.spaces) for term in terms):
            for label in labels:
                for value, _ in values(label, places, rooms):
                    yield label, value


def values(label: str, places: Counts, rooms: Rooms) -> Iterator[tuple[str, int]]:
    """The label's value on each of the nodes, and how many pods are there."""
    by_name = rooms.rooms
    for name, number in places.items():
        room = by_name.get(name)
        if room is not None and (value := room.labels.get(label)) is not None:
            yield value, number


def counts_by_node(pod: Asked, spread: Spread, rooms: Rooms) -> Counts:
    """How many pods a spread means each node has; those that are on their way out do not count."""
    found: Counts = {}
    if not spread.owner and not spread.selector.requirements:
        return found
    for kind, places in rooms.kinds.items():
        if kind.namespace == pod.kind.namespace and not kind.is_going and spread.matches(kind):
            if not found:
                found = dict(places)
            else:
                for name, number in places.items():
                    found[name] = found.get(name, 0) + number
    return found


def evenness_of(pod: Asked, spread: Spread, rooms: Rooms) -> Evenness:
    counted = counted_nodes(pod, spread, tuple(each.topology for each in pod.company.hard), rooms)
    counts = dict.fromkeys(counted.values(), 0)
    add_up(counts, counts_by_node(pod, spread, rooms), counted)
    least = min(counts.values()) if len(counts) >= spread.least_domains else 0
    return Evenness(spread, counts, spread.most + least - int(spread.matches(pod.kind)))


def crowding_of(pod: Asked, spread: Spread, rooms: Rooms) -> Crowding:
    by_node = counts_by_node(pod, spread, rooms)
    if spread.topology == HOSTNAME:
        return Crowding(spread, by_node, {})
    labels = (spread.topology,) if pod.company.is_spread_by_default else tuple(e.topology for e in pod.company.soft)
    found: dict[str, int] = {}
    add_up(found, by_node, counted_nodes(pod, spread, labels, rooms))
    return Crowding(spread, by_node, found)


def add_up(counts: dict[str, int], by_node: Counts, counted: Mapping[str, str]) -> None:
    for name, number in by_node.items():
        if (value := counted.get(name)) is not None:
            counts[value] = counts.get(value, 0) + number


def counted_nodes(pod: Asked, spread: Spread, labels: tuple[str, ...], rooms: Rooms) -> Mapping[str, str]:
    """The domain of each node that counts where pods are to be spread; `labels` are those it has to have."""
    needs = pod.needs
    is_choosy = spread.by_affinity and (needs.selector or needs.affinity is not None)
    key = (labels, spread.topology, needs if is_choosy else None, needs if spread.by_taints else None)
    return rooms.domains(
        key,
        lambda: {
            room.name: room.labels[spread.topology]
            for room in rooms
            if all(label in room.labels for label in labels)
            and (not is_choosy or is_selected(needs, room))
            and (not spread.by_taints or is_tolerant(needs, room))
        },
    )


def liking_of(pod: Asked, rooms: Rooms) -> Mapping[str, Mapping[str, int]]:
    """By label and value, how much the pod likes to be there, and how much it is liked there."""
    found: dict[str, dict[str, int]] = {}

    def like(terms: Iterable[tuple[Term, int]], kind: Kind, places: Counts) -> None:
        for term, weight in terms:
            if term.matches(kind, rooms.spaces):
                worth = found.setdefault(term.topology, {})
                for value, number in values(term.topology, places, rooms):
                    worth[value] = worth.get(value, 0) + weight * number

    if own := list(likings(pod.company)):
        for kind, places in rooms.kinds.items():
            like(own, kind, places)
    for company, places in rooms.opinions.items():
        like([*((each, 1) for each in company.near), *likings(company)], pod.kind, places)
    return found


def likings(company: Company) -> Iterator[tuple[Term, int]]:
    yield from ((each, each.weight) for each in company.rather_near)
    yield from ((each, -each.weight) for each in company.rather_apart)
