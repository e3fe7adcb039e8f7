"""What a pod asks of its place, read once for all pods of a template: every node is then asked the same.

`Needs` is what a node alone can grant, `Company` what matters about pods elsewhere.  Both are values that pods of the
same wording share, so that an answer that was worked out for one of them holds for the next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tapestry.kube.objects import Object, controller_of, is_deleting, labels_of, namespace_of, value_at
from tapestry.kube.pod_requests import container_requests, effective_requests
from tapestry.kube.pods import TERMINAL_PHASES, is_sidecar
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
DEFAULT_REQUESTS = {"cpu": "100m", "memory": "200Mi"}
"""What a container that asks for nothing counts for when nodes are compared."""
ANY_ADDRESS = "0.0.0.0"
CONTAINERS = ("containers", "initContainers")
NODE_FIELDS = ("overhead", "resources", "nodeSelector", "tolerations")
CONTAINER_FIELDS = ("resources", "ports", "restartPolicy")
"""Of all that a pod says, what matters to a node: the rest tells pods of one template apart, or is long."""
DEFAULT_SPREAD_OWNERS = ("ReplicaSet", "StatefulSet", "ReplicationController")
"""Whose pods are spread over nodes and zones where they do not say how they want it."""
CACHE_SIZE = 4096

HostPort = tuple[str, str, int]
"""Address, protocol and number on the host."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, eq=False)
class PodGroupKey:
    """Pods that no rule about other pods tells apart."""

    namespace: str
    labels: Mapping[str, str]
    owner: str
    """The UID of the set that spreads them; empty where there is none."""
    is_terminating: bool


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Pods of some kind within a domain: nodes that share the value of a label."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 0

    def matches(self, group: PodGroupKey, namespace_labels: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether it means such pods; `spaces` has the labels of namespaces."""
        if group.namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and self.namespace_selector.matches(namespace_labels.get(group.namespace, {}))
        ):
            return False
        return self.selector.matches(group.labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """How evenly pods of some kind are to be spread over domains."""

    topology_key: str
    max_skew: int
    selector: LabelSelector
    min_domains: int = 1
    honors_node_affinity: bool = True
    """Whether only nodes count that the pod's selector and affinity allow."""
    honors_taints: bool = False
    """Whether only nodes count whose taints the pod tolerates."""
    owner: str = ""
    """Means the pods of this owner, whatever the selector."""

    def matches(self, group: PodGroupKey) -> bool:
        if self.owner:
            return group.owner == self.owner
        return self.selector.matches(group.labels)


@dataclass(frozen=True, slots=True, eq=False)
class PodRequirements:
    """What a node alone can grant.  Amounts are in nano-units."""

    requests: Mapping[str, int]
    nonzero_requests: tuple[int, int]
    """The cpu and memory it counts for when nodes are compared."""
    host_ports: tuple[HostPort, ...]
    tolerations: tuple[Object, ...]
    node_selector: Mapping[str, str]
    node_affinity: NodeSelector | None
    preferred_node_affinity: tuple[tuple[int, NodeSelector], ...]
    node_names: frozenset[str] | None
    """The only nodes that the affinity can mean, where it names them."""


@dataclass(frozen=True, slots=True, eq=False)
class AffinityTerms:
    """What matters about pods elsewhere."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[AffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[AffinityTerm, ...] = ()
    hard_spreads: tuple[SpreadConstraint, ...] = ()
    soft_spreads: tuple[SpreadConstraint, ...] = ()
    uses_default_spread: bool = False

    @property
    def has_affinity(self) -> bool:
        """Whether it says anything about particular pods."""
        return bool(self.affinity or self.anti_affinity or self.preferred_affinity or self.preferred_anti_affinity)


NO_AFFINITY_TERMS = AffinityTerms()


@dataclass(frozen=True, slots=True)
class PodInfo:
    """One pod's wishes."""

    pod: Object
    key: str
    group: PodGroupKey
    priority: int
    requirements: PodRequirements
    affinity_terms: AffinityTerms


class InvalidPod(ValueError):
    """Nobody can tell what a pod asks for."""


def pod_info_of(pod: Object) -> PodInfo:
    """What a pod asks for; raises Unreadable."""
    spec = pod["spec"]
    kind = pod_group_key(pod)
    key = f"{kind.namespace}/{pod['metadata']['name']}"
    try:
        needs, company = requirements_of(pod), affinity_terms_of(spec, kind)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # strangers wrote it
        raise InvalidPod(f"what pod {key} asks for cannot be read: {error!r}") from error
    return PodInfo(pod, key, kind, spec.get("priority") or 0, needs, company)


# -- who it is


def pod_group_key(pod: Object) -> PodGroupKey:
    owner = controller_of(pod)
    uid = owner["uid"] if owner is not None and owner["kind"] in DEFAULT_SPREAD_OWNERS else ""
    return _pod_group_key(namespace_of(pod) or "", tuple(labels_of(pod).items()), uid, is_deleting(pod))


@lru_cache(CACHE_SIZE)
def _pod_group_key(
    namespace: str, labels: tuple[tuple[str, str], ...], owner: str, is_terminating: bool
) -> PodGroupKey:
    return PodGroupKey(namespace, dict(labels), owner, is_terminating)


# -- what it needs


def requirements_of(pod: Object) -> PodRequirements:
    spec = pod["spec"]
    parts: Object = {name: spec[name] for name in NODE_FIELDS if name in spec}
    for name in CONTAINERS:
        parts[name] = [{key: each[key] for key in CONTAINER_FIELDS if key in each} for each in spec.get(name) or ()]
    if nodes := value_at(spec, "affinity", "nodeAffinity"):
        parts["nodeAffinity"] = nodes
    if reported_resources(pod):  # it is, or was, resized: what it holds is its own
        return _requirements_of_parts({**parts, **{name: spec.get(name) for name in CONTAINERS}}, pod["status"])
    return _requirements(_encode(parts))


def reported_resources(pod: Object) -> list[Object]:
    """What its containers hold, where somebody says so."""
    status = pod.get("status") or {}
    every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return [each["resources"] for each in every if each.get("resources")]


@lru_cache(CACHE_SIZE)
def _requirements(parts: bytes) -> PodRequirements:
    return _requirements_of_parts(_decode(parts), {})


def _requirements_of_parts(spec: Object, status: Object) -> PodRequirements:
    nodes = spec.get("nodeAffinity") or {}
    required = nodes.get(REQUIRED)
    weighs = effective_requests({"spec": with_default_requests(spec), "status": status})
    preferences = (
        (each["weight"], node_selector({"nodeSelectorTerms": [each["preference"]]}))
        for each in nodes.get(PREFERRED) or ()
    )
    return PodRequirements(
        requests={
            name: amount.nano
            for name, amount in effective_requests({"spec": spec, "status": status}).items()
            if amount.nano > 0
        },
        nonzero_requests=(weighs["cpu"].nano, weighs["memory"].nano),
        host_ports=tuple(host_ports(spec)),
        tolerations=tuple(spec.get("tolerations") or ()),
        node_selector=spec.get("nodeSelector") or {},
        node_affinity=node_selector(required) if required is not None else None,
        preferred_node_affinity=tuple(preferences),
        node_names=named_nodes(required) if required is not None else None,
    )


def with_default_requests(spec: Object) -> Object:
    """The spec with something asked for where a container asks for nothing."""
    return {
        **spec,
        **{name: [with_default_container_requests(each) for each in spec.get(name) or ()] for name in CONTAINERS},
    }


def with_default_container_requests(container: Object) -> Object:
    asked = container_requests(container).texts()
    return {**container, "resources": {"requests": {**DEFAULT_REQUESTS, **asked}}}


def host_ports(spec: Object) -> Iterable[HostPort]:
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


def affinity_terms_of(spec: Object, group: PodGroupKey) -> AffinityTerms:
    affinity = spec.get("affinity") or {}
    near, apart = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spreads = spec.get("topologySpreadConstraints")
    if not (near or apart or spreads):
        return _default_affinity_terms(group.owner) if group.owner else NO_AFFINITY_TERMS
    return _affinity_terms(
        _encode([group.namespace, dict(group.labels), near, apart, spreads]), "" if spreads else group.owner
    )


@lru_cache(CACHE_SIZE)
def _default_affinity_terms(owner: str) -> AffinityTerms:
    return AffinityTerms(soft_spreads=default_spreads(owner), uses_default_spread=True)


@lru_cache(CACHE_SIZE)
def _affinity_terms(text: bytes, owner: str) -> AffinityTerms:
    namespace, labels, near, apart, spreads = _decode(text)
    hard = [each for each in spreads or () if each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]
    soft = [each for each in spreads or () if each not in hard]
    return AffinityTerms(
        affinity=tuple(pod_affinity_terms(near, REQUIRED, namespace, labels)),
        anti_affinity=tuple(pod_affinity_terms(apart, REQUIRED, namespace, labels)),
        preferred_affinity=tuple(pod_affinity_terms(near, PREFERRED, namespace, labels)),
        preferred_anti_affinity=tuple(pod_affinity_terms(apart, PREFERRED, namespace, labels)),
        hard_spreads=tuple(spread_constraint(each, labels) for each in hard),
        soft_spreads=default_spreads(owner) if owner else tuple(spread_constraint(each, labels) for each in soft),
        uses_default_spread=bool(owner),
    )


def default_spreads(owner: str) -> tuple[SpreadConstraint, ...]:
    return (
        SpreadConstraint("kubernetes.io/hostname", 3, NOTHING, owner=owner),
        SpreadConstraint("topology.kubernetes.io/zone", 5, NOTHING, owner=owner),
    )


def pod_affinity_terms(
    rules: Object | None, when: str, namespace: str, labels: Mapping[str, str]
) -> Iterable[AffinityTerm]:
    for each in (rules or {}).get(when) or ():
        wanted = each if when == REQUIRED else each["podAffinityTerm"]
        namespaces, selector = wanted.get("namespaces") or (), wanted.get("namespaceSelector")
        if not namespaces and selector is None:
            namespaces = (namespace,)
        yield AffinityTerm(
            topology_key=wanted["topologyKey"],
            selector=selector_with_label_keys(wanted, labels),
            namespaces=frozenset(namespaces),
            namespace_selector=label_selector(selector) if selector is not None else None,
            weight=0 if when == REQUIRED else each["weight"],
        )


def spread_constraint(constraint: Object, labels: Mapping[str, str]) -> SpreadConstraint:
    return SpreadConstraint(
        topology_key=constraint["topologyKey"],
        max_skew=constraint["maxSkew"],
        selector=selector_with_label_keys(constraint, labels),
        min_domains=constraint.get("minDomains") or 1,
        honors_node_affinity=constraint.get("nodeAffinityPolicy", "Honor") == "Honor",
        honors_taints=constraint.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def selector_with_label_keys(term: Object, labels: Mapping[str, str]) -> LabelSelector:
    """The selector, narrowed to pods that share some of the asking pod's labels with it, or differ in some."""
    if term.get("labelSelector") is None:
        return NOTHING
    selector = label_selector(term["labelSelector"])
    own = [
        Requirement(key, operator, (labels[key],))
        for field, operator in (("matchLabelKeys", Operator.IN), ("mismatchLabelKeys", Operator.NOT_IN))
        for key in term.get(field) or ()
        if key in labels
    ]
    return LabelSelector((*selector.requirements, *own)) if own else selector


# -- whether it waits


def awaits_scheduling(pod: Object, scheduler_name: str = DEFAULT_SCHEDULER) -> bool:
    """Whether a pod waits for this scheduler."""
    spec = pod["spec"]
    if spec.get("nodeName") or is_deleting(pod) or spec.get("schedulingGates"):
        return False
    phase = value_at(pod, "status", "phase")
    return spec.get("schedulerName", DEFAULT_SCHEDULER) == scheduler_name and phase not in TERMINAL_PHASES
