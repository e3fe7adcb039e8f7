"""What a pod asks of its place, read once for all pods of a template: every node is then asked the same.

`Needs` is what a node alone can grant, `Company` what matters about pods elsewhere.  Both are values that pods of the
same wording share, so that an answer that was worked out for one of them holds for the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tapestry.kube.objects import Object, controller_of, is_deleting, labels_of, namespace_of, value_at
from tapestry.kube.pods import ENDED, is_sidecar
from tapestry.kube.requests import effective_requests, requests_of
from tapestry.kube.selectors import (
    NOTHING,
    LabelSelector,
    NodeSelector,
    Operator,
    Requirement,
    label_selector,
    node_selector,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DEFAULT_SCHEDULER = "default-scheduler"
LEAST = {"cpu": "100m", "memory": "200Mi"}
"""What a container that asks for nothing counts for when nodes are compared."""
ANY_ADDRESS = "0.0.0.0"
CONTAINERS = ("containers", "initContainers")
NODE_FIELDS = ("overhead", "resources", "nodeSelector", "tolerations")
CONTAINER_FIELDS = ("resources", "ports", "restartPolicy")
"""Of all that a pod says, what matters to a node: the rest tells pods of one template apart, or is long."""
SPREAD_OWNERS = ("ReplicaSet", "StatefulSet", "ReplicationController")
"""Whose pods are spread over nodes and zones where they do not say how they want it."""
REMEMBERED = 4096

Port = tuple[str, str, int]
"""Address, protocol and number on the host."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Pods that no rule about other pods tells apart."""

    namespace: str
    labels: Mapping[str, str]
    owner: str
    """The UID of the set that spreads them; empty where there is none."""
    is_going: bool


@dataclass(frozen=True, slots=True)
class Term:
    """Pods of some kind within a domain: nodes that share the value of a label."""

    topology: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 0

    def matches(self, kind: Kind, spaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether it means such pods; `spaces` has the labels of namespaces."""
        if kind.namespace not in self.namespaces and not (
            self.namespace_selector is not None and self.namespace_selector.matches(spaces.get(kind.namespace, {}))
        ):
            return False
        return self.selector.matches(kind.labels)


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly pods of some kind are to be spread over domains."""

    topology: str
    most: int
    selector: LabelSelector
    least_domains: int = 1
    by_affinity: bool = True
    """Whether only nodes count that the pod's selector and affinity allow."""
    by_taints: bool = False
    """Whether only nodes count whose taints the pod tolerates."""
    owner: str = ""
    """Means the pods of this owner, whatever the selector."""

    def matches(self, kind: Kind) -> bool:
        if self.owner:
            return kind.owner == self.owner
        return self.selector.matches(kind.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """What a node alone can grant.  Amounts are in nano-units."""

    requests: Mapping[str, int]
    weighs: tuple[int, int]
    """The cpu and memory it counts for when nodes are compared."""
    ports: tuple[Port, ...]
    tolerations: tuple[Object, ...]
    selector: Mapping[str, str]
    affinity: NodeSelector | None
    preferences: tuple[tuple[int, NodeSelector], ...]
    names: frozenset[str] | None
    """The only nodes that the affinity can mean, where it names them."""


@dataclass(frozen=True, slots=True, eq=False)
class Company:
    """What matters about pods elsewhere."""

    near: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    rather_near: tuple[Term, ...] = ()
    rather_apart: tuple[Term, ...] = ()
    hard: tuple[Spread, ...] = ()
    soft: tuple[Spread, ...] = ()
    is_spread_by_default: bool = False

    @property
    def is_picky(self) -> bool:
        """Whether it says anything about particular pods."""
        return bool(self.near or self.apart or self.rather_near or self.rather_apart)


ALONE = Company()


@dataclass(frozen=True, slots=True)
class Asked:
    """One pod's wishes."""

    pod: Object
    key: str
    kind: Kind
    priority: int
    needs: Needs
    company: Company


class Unreadable(ValueError):
    """Nobody can tell what a pod asks for."""


def asked_by(pod: Object) -> Asked:
    """What a pod asks for; raises Unreadable."""
    spec = pod["spec"]
    kind = kind_of(pod)
    key = f"{kind.namespace}/{pod['metadata']['name']}"
    try:
        needs, company = needs_of(pod), company_of(spec, kind)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # strangers wrote it
        raise Unreadable(f"what pod {key} asks for cannot be read: {error!r}") from error
    return Asked(pod, key, kind, spec.get("priority") or 0, needs, company)


# -- who it is


def kind_of(pod: Object) -> Kind:
    owner = controller_of(pod)
    uid = owner["uid"] if owner is not None and owner["kind"] in SPREAD_OWNERS else ""
    return _kind(namespace_of(pod) or "", tuple(labels_of(pod).items()), uid, is_deleting(pod))


@lru_cache(REMEMBERED)
def _kind(namespace: str, labels: tuple[tuple[str, str], ...], owner: str, is_going: bool) -> Kind:
    return Kind(namespace, dict(labels), owner, is_going)


# -- what it needs


def needs_of(pod: Object) -> Needs:
    spec = pod["spec"]
    parts: Object = {name: spec[name] for name in NODE_FIELDS if name in spec}
    for name in CONTAINERS:
        parts[name] = [{key: each[key] for key in CONTAINER_FIELDS if key in each} for each in spec.get(name) or ()]
    if nodes := value_at(spec, "affinity", "nodeAffinity"):
        parts["nodeAffinity"] = nodes
    if shows_resources(pod):  # it is, or was, resized: what it holds is its own
        return _needs_of_parts({**parts, **{name: spec.get(name) for name in CONTAINERS}}, pod["status"])
    return _needs(_encode(parts))


def shows_resources(pod: Object) -> list[Object]:
    """What its containers hold, where somebody says so."""
    status = pod.get("status") or {}
    every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return [each["resources"] for each in every if each.get("resources")]


@lru_cache(REMEMBERED)
def _needs(parts: bytes) -> Needs:
    return _needs_of_parts(_decode(parts), {})


def _needs_of_parts(spec: Object, status: Object) -> Needs:
    nodes = spec.get("nodeAffinity") or {}
    required = nodes.get(REQUIRED)
    weighs = effective_requests({"spec": counted(spec), "status": status})
    preferences = (
        (each["weight"], node_selector({"nodeSelectorTerms": [each["preference"]]}))
        for each in nodes.get(PREFERRED) or ()
    )
    return Needs(
        requests={
            name: amount.nano
            for name, amount in effective_requests({"spec": spec, "status": status}).items()
            if amount.nano > 0
        },
        weighs=(weighs["cpu"].nano, weighs["memory"].nano),
        ports=tuple(host_ports(spec)),
        tolerations=tuple(spec.get("tolerations") or ()),
        selector=spec.get("nodeSelector") or {},
        affinity=node_selector(required) if required is not None else None,
        preferences=tuple(preferences),
        names=named_nodes(required) if required is not None else None,
    )


def counted(spec: Object) -> Object:
    """The spec with something asked for where a container asks for nothing."""
    return {**spec, **{name: [at_least(each) for each in spec.get(name) or ()] for name in CONTAINERS}}


def at_least(container: Object) -> Object:
    asked = requests_of(container).texts()
    return {**container, "resources": {"requests": {**LEAST, **asked}}}


def host_ports(spec: Object) -> Iterable[Port]:
    sidecars = [each for each in spec.get("initContainers") or () if is_sidecar(each)]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            if number := port.get("hostPort"):
                yield port.get("hostIP") or ANY_ADDRESS, port.get("protocol", "TCP"), number


def named_nodes(required: Object) -> frozenset[str] | None:
    """The nodes that an affinity names, if every term of it does; there may be none that all of a term agree on."""
    found: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        names = [
            set(each.get("values") or ())
            for each in term.get("matchFields") or ()
            if each["key"] == "metadata.name" and each["operator"] == "In"
        ]
        if not names:
            return None
        found |= set.intersection(*names)
    return frozenset(found) if required.get("nodeSelectorTerms") else None


# -- whom it wants around


def company_of(spec: Object, kind: Kind) -> Company:
    affinity = spec.get("affinity") or {}
    near, apart = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spreads = spec.get("topologySpreadConstraints")
    if not (near or apart or spreads):
        return _by_default(kind.owner) if kind.owner else ALONE
    return _company(_encode([kind.namespace, dict(kind.labels), near, apart, spreads]), "" if spreads else kind.owner)


@lru_cache(REMEMBERED)
def _by_default(owner: str) -> Company:
    return Company(soft=default_spreads(owner), is_spread_by_default=True)


@lru_cache(REMEMBERED)
def _company(text: bytes, owner: str) -> Company:
    namespace, labels, near, apart, spreads = _decode(text)
    hard = [each for each in spreads or () if each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]
    soft = [each for each in spreads or () if each not in hard]
    return Company(
        near=tuple(terms(near, REQUIRED, namespace, labels)),
        apart=tuple(terms(apart, REQUIRED, namespace, labels)),
        rather_near=tuple(terms(near, PREFERRED, namespace, labels)),
        rather_apart=tuple(terms(apart, PREFERRED, namespace, labels)),
        hard=tuple(spread(each, labels) for each in hard),
        soft=default_spreads(owner) if owner else tuple(spread(each, labels) for each in soft),
        is_spread_by_default=bool(owner),
    )


def default_spreads(owner: str) -> tuple[Spread, ...]:
    return (
        Spread("kubernetes.io/hostname", 3, NOTHING, owner=owner),
        Spread("topology.kubernetes.io/zone", 5, NOTHING, owner=owner),
    )


def terms(rules: Object | None, when: str, namespace: str, labels: Mapping[str, str]) -> Iterable[Term]:
    for each in (rules or {}).get(when) or ():
        wanted = each if when == REQUIRED else each["podAffinityTerm"]
        namespaces, selector = wanted.get("namespaces") or (), wanted.get("namespaceSelector")
        if not namespaces and selector is None:
            namespaces = (namespace,)
        yield Term(
            topology=wanted["topologyKey"],
            selector=with_own_labels(wanted, labels),
            namespaces=frozenset(namespaces),
            namespace_selector=label_selector(selector) if selector is not None else None,
            weight=0 if when == REQUIRED else each["weight"],
        )


def spread(constraint: Object, labels: Mapping[str, str]) -> Spread:
    return Spread(
        topology=constraint["topologyKey"],
        most=constraint["maxSkew"],
        selector=with_own_labels(constraint, labels),
        least_domains=constraint.get("minDomains") or 1,
        by_affinity=constraint.get("nodeAffinityPolicy", "Honor") == "Honor",
        by_taints=constraint.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def with_own_labels(wanted: Object, labels: Mapping[str, str]) -> LabelSelector:
    """The selector, narrowed to pods that share some of the asking pod's labels with it, or differ in some."""
    if wanted.get("labelSelector") is None:
        return NOTHING
    selector = label_selector(wanted["labelSelector"])
    own = [
        Requirement(key, operator, (labels[key],))
        for field, operator in (("matchLabelKeys", Operator.IN), ("mismatchLabelKeys", Operator.NOT_IN))
        for key in wanted.get(field) or ()
        if key in labels
    ]
    return LabelSelector((*selector.requirements, *own)) if own else selector


# -- whether it waits


def is_for_us(pod: Object, name: str = DEFAULT_SCHEDULER) -> bool:
    """Whether a pod waits for this scheduler."""
    spec = pod["spec"]
    if spec.get("nodeName") or is_deleting(pod) or spec.get("schedulingGates"):
        return False
    phase = value_at(pod, "status", "phase")
    return spec.get("schedulerName", DEFAULT_SCHEDULER) == name and phase not in ENDED
