"""Placement of a twin by the scheduler of a host cluster: its candidate nodes, affinity and topology spread.

The candidates are the open nodes that match the node selector and the required node affinity of the pod, as the tenant
sees these nodes. The twin names them by their host name, so it needs none of the selectors. Preferences are copied.
Affinity to other pods and topology spread count only pods of the same tenant.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tapestry.apis.clusterbindings import Binding
from tapestry.kube.objects import Object, digest_of, labels_of, name_of, namespace_of, value_at
from tapestry.kube.pod_references import object_at, objects_at
from tapestry.kube.selectors import SelectorError, node_selector
from tapestry.syncer.translate.nodes import HOSTNAME, visible_labels
from tapestry.syncer.translate.tenant_labels import twin_label_key, twin_label_selector

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
POD_AFFINITIES = ("podAffinity", "podAntiAffinity")


@dataclass(frozen=True, slots=True)
class HostPlacement:
    """Candidates of the scheduler of the host cluster."""

    hostnames: tuple[str, ...]
    """Host names of the nodes, sorted. No other node has one of them."""
    taints: tuple[Object, ...] = ()
    """Taints of the nodes, each once."""

    @property
    def digest(self) -> str:
        return digest_of(list(self.hostnames))


def host_placement(nodes: Iterable[Object]) -> HostPlacement:
    """Return the placement on any of these nodes."""
    found = list(nodes)
    taints = {
        (each.get("key"), each.get("value"), each.get("effect")): each
        for node in found
        for each in value_at(node, "spec", "taints", default=[])
    }
    return HostPlacement(tuple(sorted(map(hostname_of_node, found))), tuple(taints.values()))


def hostname_of_node(node: Object) -> str:
    return labels_of(node).get(HOSTNAME, "")


def unique_hostnames(nodes: Iterable[Object]) -> set[str]:
    """Return the host names that identify one of the nodes of a host cluster."""
    return {name for name, count in Counter(map(hostname_of_node, nodes)).items() if name and count == 1}


def node_matcher(pod: Object) -> Callable[[Object], bool] | None:
    """Return whether a node matches what the pod requires of its node; None if it requires nothing."""
    selected = pod["spec"].get("nodeSelector") or {}
    required = value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED)
    if not selected and required is None:
        return None
    try:
        affinity = node_selector(required)
    except SelectorError:  # the plane would have rejected it
        return lambda _: False

    def matches(node: Object) -> bool:
        labels = visible_labels(node)
        if any(labels.get(key) != value for key, value in selected.items()):
            return False
        return affinity.matches({"metadata": {"name": name_of(node), "labels": labels}})

    return matches


def placement_fields(pod: Object, binding: Binding, placement: HostPlacement) -> Object:
    """Return the fields of a twin that leave the choice of its node to the host cluster."""
    spec = pod["spec"]
    expression = {"key": HOSTNAME, "operator": "In", "values": list(placement.hostnames)}
    node_affinity: Object = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    if preferred := value_at(spec, "affinity", "nodeAffinity", PREFERRED):
        node_affinity[PREFERRED] = preferred
    affinity: Object = {"nodeAffinity": node_affinity}
    for field in POD_AFFINITIES:
        if terms := value_at(spec, "affinity", field):
            affinity[field] = twin_pod_affinity(terms, binding, namespace_of(pod) or "")
    constraints = [
        twin_spread_constraint(each, binding, namespace_of(pod) or "")
        for each in objects_at(spec, "topologySpreadConstraints")
    ]
    return {"affinity": affinity, **({"topologySpreadConstraints": constraints} if constraints else {})}


def twin_pod_affinity(affinity: Object, binding: Binding, namespace: str) -> Object:
    """Return the affinity or anti-affinity of a twin to the twins of the same tenant."""
    result: Object = {}
    if terms := affinity.get(REQUIRED):
        result[REQUIRED] = [twin_affinity_term(each, binding, namespace) for each in terms]
    if weighted := affinity.get(PREFERRED):
        result[PREFERRED] = [
            {**each, "podAffinityTerm": twin_affinity_term(each["podAffinityTerm"], binding, namespace)}
            for each in weighted
        ]
    return result


def twin_affinity_term(term: Object, binding: Binding, namespace: str) -> Object:
    """Return a term about twins. All twins are in one namespace of the host cluster, so the selector names theirs."""
    namespaces: list[str] | None = [*(term.get("namespaces") or ())]
    if term.get("namespaceSelector") is not None:
        namespaces = None  # it is empty, or the pod is rejected
    elif not namespaces:
        namespaces = [namespace]
    return {
        "topologyKey": term["topologyKey"],
        **selector_fields(term, binding, namespaces),
        **renamed_keys(term, binding, "matchLabelKeys", "mismatchLabelKeys"),
    }


def twin_spread_constraint(constraint: Object, binding: Binding, namespace: str) -> Object:
    copied = {key: value for key, value in constraint.items() if key not in ("labelSelector", "matchLabelKeys")}
    return {
        **copied,
        **selector_fields(constraint, binding, [namespace]),
        **renamed_keys(constraint, binding, "matchLabelKeys"),
    }


def selector_fields(source: Object, binding: Binding, namespaces: list[str] | None) -> Object:
    selector = source.get("labelSelector")
    return {} if selector is None else {"labelSelector": twin_label_selector(selector, binding, namespaces)}


def renamed_keys(source: Object, binding: Binding, *fields: str) -> Object:
    return {field: [twin_label_key(key, binding) for key in source[field]] for field in fields if source.get(field)}


def placement_errors(pod: Object) -> list[str]:
    """Return the fields of a pod that the scheduler of a host cluster cannot follow."""
    errors = []
    for field in POD_AFFINITIES:
        affinity = object_at(object_at(pod["spec"], "affinity"), field)
        terms = [(f"{REQUIRED}[{number}]", each) for number, each in enumerate(objects_at(affinity, REQUIRED))]
        for number, each in enumerate(objects_at(affinity, PREFERRED)):
            terms.append((f"{PREFERRED}[{number}].podAffinityTerm", object_at(each, "podAffinityTerm")))
        errors += [
            f"spec.affinity.{field}.{path}.namespaceSelector: labels of namespaces are not known to the host cluster; "
            "name the namespaces, or select all with {}"
            for path, term in terms
            if term.get("namespaceSelector")
        ]
    return errors
