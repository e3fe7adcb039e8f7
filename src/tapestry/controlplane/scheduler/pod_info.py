"""Parsed scheduling constraints of a pod, cached for all pods of a template.

`PodRequirements` can be checked against a single node. `AffinityTerms` depend on pods of other nodes. Pods with equal
specs share these values, so that cached results apply to all of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tapestry.controlplane.volume_matching import claim_names
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
"""Requests assumed for scoring where a container has none."""
ANY_ADDRESS = "0.0.0.0"
CONTAINERS = ("containers", "initContainers")
NODE_FIELDS = ("overhead", "resources", "nodeSelector", "tolerations")
CONTAINER_FIELDS = ("resources", "ports", "restartPolicy")
"""Fields that matter to a node. Others are left out because they differ between pods of a template, or are long."""
DEFAULT_SPREAD_OWNERS = ("ReplicaSet", "StatefulSet", "ReplicationController")
"""Owners whose pods are spread over nodes and zones by default."""
CACHE_SIZE = 4096

HostPort = tuple[str, str, int]
"""Address, protocol and port number on the host."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True, eq=False)
class PodGroupKey:
    """Group of pods that affinity and spread rules cannot distinguish."""

    namespace: str
    labels: Mapping[str, str]
    owner: str
    """UID of the owner whose pods are spread by default, or empty."""
    is_terminating: bool


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """Matching pods within a topology domain: the nodes that share the value of a label."""

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector | None
    weight: int = 0

    def matches(self, group: PodGroupKey, namespace_labels: Mapping[str, Mapping[str, str]]) -> bool:
        """Return whether the term selects pods of the group. `namespace_labels` are by namespace name."""
        if group.namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and self.namespace_selector.matches(namespace_labels.get(group.namespace, {}))
        ):
            return False
        return self.selector.matches(group.labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """Limit on the uneven distribution of matching pods over topology domains."""

    topology_key: str
    max_skew: int
    selector: LabelSelector
    min_domains: int = 1
    honors_node_affinity: bool = True
    """True if only nodes count that match the pod's node selector and affinity."""
    honors_taints: bool = False
    """True if only nodes count whose taints the pod tolerates."""
    owner: str = ""
    """If set, the constraint matches the pods of this owner instead of the selector."""

    def matches(self, group: PodGroupKey) -> bool:
        if self.owner:
            return group.owner == self.owner
        return self.selector.matches(group.labels)


@dataclass(frozen=True, slots=True, eq=False)
class PodRequirements:
    """Constraints that can be checked against a single node. Amounts are in nano-units."""

    requests: Mapping[str, int]
    nonzero_requests: tuple[int, int]
    """Cpu and memory used for scoring."""
    host_ports: tuple[HostPort, ...]
    tolerations: tuple[Object, ...]
    node_selector: Mapping[str, str]
    node_affinity: NodeSelector | None
    preferred_node_affinity: tuple[tuple[int, NodeSelector], ...]
    node_names: frozenset[str] | None
    """Names of the only feasible nodes, if the affinity lists them."""


@dataclass(frozen=True, slots=True, eq=False)
class AffinityTerms:
    """Constraints that depend on pods of other nodes."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[AffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[AffinityTerm, ...] = ()
    hard_spreads: tuple[SpreadConstraint, ...] = ()
    soft_spreads: tuple[SpreadConstraint, ...] = ()
    uses_default_spread: bool = False

    @property
    def has_affinity(self) -> bool:
        """True if there are affinity or anti-affinity terms, apart from spread constraints."""
        return bool(self.affinity or self.anti_affinity or self.preferred_affinity or self.preferred_anti_affinity)


NO_AFFINITY_TERMS = AffinityTerms()


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod with its parsed scheduling constraints."""

    pod: Object
    key: str
    group: PodGroupKey
    priority: int
    requirements: PodRequirements
    affinity_terms: AffinityTerms
    claims: tuple[str, ...] = ()
    """Keys of the claims that it mounts."""


class InvalidPod(ValueError):
    """The scheduling constraints of a pod are invalid."""


def pod_info_of(pod: Object) -> PodInfo:
    """Parse the scheduling constraints of a pod. Raises InvalidPod."""
    spec = pod["spec"]
    group = pod_group_key(pod)
    key = f"{group.namespace}/{pod['metadata']['name']}"
    try:
        requirements, affinity_terms = requirements_of(pod), affinity_terms_of(spec, group)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # may contain anything
        raise InvalidPod(f"pod {key}: invalid scheduling constraints: {error!r}") from error
    claims = tuple(f"{group.namespace}/{name}" for name, _ in claim_names(pod))
    return PodInfo(pod, key, group, spec.get("priority") or 0, requirements, affinity_terms, claims)


# -- groups


def pod_group_key(pod: Object) -> PodGroupKey:
    owner = controller_of(pod)
    uid = owner["uid"] if owner is not None and owner["kind"] in DEFAULT_SPREAD_OWNERS else ""
    return _pod_group_key(namespace_of(pod) or "", tuple(labels_of(pod).items()), uid, is_deleting(pod))


@lru_cache(CACHE_SIZE)
def _pod_group_key(
    namespace: str, labels: tuple[tuple[str, str], ...], owner: str, is_terminating: bool
) -> PodGroupKey:
    return PodGroupKey(namespace, dict(labels), owner, is_terminating)


# -- requirements


def requirements_of(pod: Object) -> PodRequirements:
    spec = pod["spec"]
    parts: Object = {name: spec[name] for name in NODE_FIELDS if name in spec}
    for name in CONTAINERS:
        parts[name] = [{key: each[key] for key in CONTAINER_FIELDS if key in each} for each in spec.get(name) or ()]
    if nodes := value_at(spec, "affinity", "nodeAffinity"):
        parts["nodeAffinity"] = nodes
    if reported_resources(pod):  # resized: its resources are not those of the template
        return _requirements_of_parts({**parts, **{name: spec.get(name) for name in CONTAINERS}}, pod["status"])
    return _requirements(_encode(parts))


def reported_resources(pod: Object) -> list[Object]:
    """Return the resources that its status reports for the containers."""
    status = pod.get("status") or {}
    every = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    return [each["resources"] for each in every if each.get("resources")]


@lru_cache(CACHE_SIZE)
def _requirements(parts: bytes) -> PodRequirements:
    return _requirements_of_parts(_decode(parts), {})


def _requirements_of_parts(spec: Object, status: Object) -> PodRequirements:
    nodes = spec.get("nodeAffinity") or {}
    required = nodes.get(REQUIRED)
    nonzero = effective_requests({"spec": with_default_requests(spec), "status": status})
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
        nonzero_requests=(nonzero["cpu"].nano, nonzero["memory"].nano),
        host_ports=tuple(host_ports(spec)),
        tolerations=tuple(spec.get("tolerations") or ()),
        node_selector=spec.get("nodeSelector") or {},
        node_affinity=node_selector(required) if required is not None else None,
        preferred_node_affinity=tuple(preferences),
        node_names=named_nodes(required) if required is not None else None,
    )


def with_default_requests(spec: Object) -> Object:
    """Return the spec with default requests where a container has none."""
    return {
        **spec,
        **{name: [with_default_container_requests(each) for each in spec.get(name) or ()] for name in CONTAINERS},
    }


def with_default_container_requests(container: Object) -> Object:
    requests = container_requests(container).texts()
    return {**container, "resources": {"requests": {**DEFAULT_REQUESTS, **requests}}}


def host_ports(spec: Object) -> Iterable[HostPort]:
    sidecars = [each for each in spec.get("initContainers") or () if is_sidecar(each)]
    for container in (*(spec.get("containers") or ()), *sidecars):
        for port in container.get("ports") or ():
            if number := port.get("hostPort"):
                yield port.get("hostIP") or ANY_ADDRESS, port.get("protocol", "TCP"), number


def named_nodes(required: Object) -> frozenset[str] | None:
    """Return the nodes that an affinity lists by name, or None unless every term does so."""
    nodes: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        names = [
            set(each.get("values") or ())
            for each in term.get("matchFields") or ()
            if each["key"] == "metadata.name" and each["operator"] == "In"
        ]
        if not names:
            return None
        nodes |= set.intersection(*names)
    return frozenset(nodes) if required.get("nodeSelectorTerms") else None


# -- affinity and spread


def affinity_terms_of(spec: Object, group: PodGroupKey) -> AffinityTerms:
    affinity = spec.get("affinity") or {}
    pod_affinity, anti_affinity = affinity.get("podAffinity"), affinity.get("podAntiAffinity")
    spread = spec.get("topologySpreadConstraints")
    if not (pod_affinity or anti_affinity or spread):
        return _default_affinity_terms(group.owner) if group.owner else NO_AFFINITY_TERMS
    return _affinity_terms(
        _encode([group.namespace, dict(group.labels), pod_affinity, anti_affinity, spread]),
        "" if spread else group.owner,
    )


@lru_cache(CACHE_SIZE)
def _default_affinity_terms(owner: str) -> AffinityTerms:
    return AffinityTerms(soft_spreads=default_spreads(owner), uses_default_spread=True)


@lru_cache(CACHE_SIZE)
def _affinity_terms(text: bytes, owner: str) -> AffinityTerms:
    namespace, labels, pod_affinity, pod_anti_affinity, spreads = _decode(text)
    hard = [each for each in spreads or () if each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]
    soft = [each for each in spreads or () if each not in hard]
    return AffinityTerms(
        affinity=tuple(pod_affinity_terms(pod_affinity, REQUIRED, namespace, labels)),
        anti_affinity=tuple(pod_affinity_terms(pod_anti_affinity, REQUIRED, namespace, labels)),
        preferred_affinity=tuple(pod_affinity_terms(pod_affinity, PREFERRED, namespace, labels)),
        preferred_anti_affinity=tuple(pod_affinity_terms(pod_anti_affinity, PREFERRED, namespace, labels)),
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
        term = each if when == REQUIRED else each["podAffinityTerm"]
        namespaces, selector = term.get("namespaces") or (), term.get("namespaceSelector")
        if not namespaces and selector is None:
            namespaces = (namespace,)
        yield AffinityTerm(
            topology_key=term["topologyKey"],
            selector=selector_with_label_keys(term, labels),
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
    """Return the selector of a term, extended by its matchLabelKeys and mismatchLabelKeys."""
    if term.get("labelSelector") is None:
        return NOTHING
    selector = label_selector(term["labelSelector"])
    extra = [
        Requirement(key, operator, (labels[key],))
        for field, operator in (("matchLabelKeys", Operator.IN), ("mismatchLabelKeys", Operator.NOT_IN))
        for key in term.get(field) or ()
        if key in labels
    ]
    return LabelSelector((*selector.requirements, *extra)) if extra else selector


# -- pending pods


def awaits_scheduling(pod: Object, scheduler_name: str = DEFAULT_SCHEDULER) -> bool:
    """Return whether a pod is pending for this scheduler."""
    spec = pod["spec"]
    if spec.get("nodeName") or is_deleting(pod) or spec.get("schedulingGates"):
        return False
    phase = value_at(pod, "status", "phase")
    return spec.get("schedulerName", DEFAULT_SCHEDULER) == scheduler_name and phase not in TERMINAL_PHASES
