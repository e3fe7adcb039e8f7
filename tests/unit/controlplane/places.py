"""Nodes and pods for schedulers, and the plainest answer there is to whether a pod fits a node."""

from collections.abc import Iterable, Sequence
from typing import Any

from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.pod_info import pod_info_of
from tapestry.kube.objects import Object, labels_of, name_of, value_at

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TEAMS = {"x": {"team": "red"}, "y": {"team": "blue"}}


def a_node(name: str, *, cpu: str = "4", pods: str = "10", labels: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}},
    }


def a_pod(name: str, on: str = "", *, cpu: str = "0", space: str = "x", app: str = "", **spec: Any) -> Object:
    metadata: Object = {"name": name, "namespace": space, "uid": f"uid-{name}", "labels": {"app": app} if app else {}}
    if spec.pop("going", False):
        metadata["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    if owner := spec.pop("owner", None):
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    container: Object = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    if port := spec.pop("port", None):
        container["ports"] = [{"hostPort": port, "containerPort": port}]
    return {
        "metadata": metadata,
        "spec": {"containers": [container], **({"nodeName": on} if on else {}), **spec},
    }


def rooms_of(nodes: Iterable[Object], pods: Iterable[Object] = ()) -> SchedulerCache:
    rooms = SchedulerCache()
    rooms.namespace_labels = dict(TEAMS)
    for node in nodes:
        rooms.set_node(node)
    for pod in pods:
        rooms.add_pod(pod_info_of(pod), pod["spec"]["nodeName"])
    return rooms


# -- the plain answer: no caches, no counts, no cleverness, and no code of the scheduler's


def fits(pod: Object, node: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> bool:
    others = [each for each in pods if name_of(each) != name_of(pod)]
    there = [each for each in others if each["spec"]["nodeName"] == name_of(node)]
    return (
        has_room(pod, node, there)
        and allows(pod, node)
        and is_chosen(pod, node)
        and not {*ports(pod)} & {port for each in there for port in ports(each)}
        and all(is_even(pod, node, nodes, others, rule) for rule in pod["spec"].get("topologySpreadConstraints", ()))
        and is_near_enough(pod, node, nodes, others)
        and is_far_enough(pod, node, nodes, others)
    )


def has_room(pod: Object, node: Object, there: Sequence[Object]) -> bool:
    has, asked = node["status"]["allocatable"], cpu_of(pod)
    is_enough = not asked or sum(map(cpu_of, there)) + asked <= int(has["cpu"])  # nothing fits everywhere
    return is_enough and len(there) + 1 <= int(has["pods"])


def cpu_of(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def ports(pod: Object) -> list[int]:
    return [each["hostPort"] for each in pod["spec"]["containers"][0].get("ports", ())]


def allows(pod: Object, node: Object) -> bool:
    tolerated = {each["key"] for each in pod["spec"].get("tolerations", ())}
    taints = {each["key"] for each in node["spec"].get("taints", ()) if each["effect"] != "PreferNoSchedule"}
    if node["spec"].get("unschedulable"):
        taints.add("node.kubernetes.io/unschedulable")
    return taints <= tolerated


def is_chosen(pod: Object, node: Object) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    return required is None or any(
        all(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"]) for term in required
    )


def is_even(pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object], rule: Object) -> bool:
    if rule["whenUnsatisfiable"] != "DoNotSchedule":
        return True
    hard = [each for each in pod["spec"]["topologySpreadConstraints"] if each["whenUnsatisfiable"] == "DoNotSchedule"]
    key = rule["topologyKey"]
    if key not in labels_of(node):
        return False
    counted = [
        each
        for each in nodes
        if all(other["topologyKey"] in labels_of(each) for other in hard)
        and (rule.get("nodeAffinityPolicy") == "Ignore" or is_chosen(pod, each))
        and (
            rule.get("nodeTaintsPolicy") != "Honor"
            or allows(pod, {**each, "spec": {**each["spec"], "unschedulable": False}})
        )
    ]
    domains = {labels_of(each)[key]: 0 for each in counted}
    for other in others:
        place = next((each for each in counted if name_of(each) == other["spec"]["nodeName"]), None)
        if place is not None and is_meant(rule, other) and space(other) == space(pod) and not is_going(other):
            domains[labels_of(place)[key]] += 1
    least = min(domains.values()) if len(domains) >= rule.get("minDomains", 1) else 0
    return domains.get(labels_of(node)[key], 0) + is_meant(rule, pod) - least <= rule["maxSkew"]


def is_near_enough(pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object]) -> bool:
    terms = value_at(pod, "spec", "affinity", "podAffinity", REQUIRED, default=[])
    friends = [each for each in others if terms and all(concerns(term, pod, each) for term in terms)]
    at = [place for each in friends if (place := place_of(each, nodes)) is not None]
    if any(term["topologyKey"] not in labels_of(node) for term in terms):
        return False
    if terms and not any(term["topologyKey"] in labels_of(place) for place in at for term in terms):
        return all(concerns(term, pod, pod) for term in terms)
    return all(any(share(term, place, node) for place in at) for term in terms)


def is_far_enough(pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object]) -> bool:
    for other in others:
        place = place_of(other, nodes)
        if place is None:
            continue
        for one, another in ((pod, other), (other, pod)):
            for term in value_at(one, "spec", "affinity", "podAntiAffinity", REQUIRED, default=()):
                if concerns(term, one, another) and share(term, place, node):
                    return False
    return True


def concerns(term: Object, asking: Object, other: Object) -> bool:
    if "namespaceSelector" in term:
        wanted = term["namespaceSelector"].get("matchLabels", {})
        is_there = wanted.items() <= TEAMS[space(other)].items() or space(other) in term.get("namespaces", ())
    else:
        is_there = space(other) in (term.get("namespaces") or [space(asking)])
    return is_there and is_meant(term, other)


def is_meant(rule: Object, pod: Object) -> bool:
    return bool(rule["labelSelector"]["matchLabels"].items() <= labels_of(pod).items())


def share(term: Object, one: Object, other: Object) -> bool:
    value = labels_of(one).get(term["topologyKey"])
    return value is not None and labels_of(other).get(term["topologyKey"]) == value


def place_of(pod: Object, nodes: Sequence[Object]) -> Object | None:
    return next((each for each in nodes if name_of(each) == pod["spec"]["nodeName"]), None)


def space(pod: Object) -> str:
    return str(pod["metadata"]["namespace"])


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
