"""Nodes and pods for scheduler tests, and a simple reference implementation of the scheduling rules."""

from collections.abc import Iterable, Sequence
from typing import Any

from tapestry.controlplane.scheduler.cache import SchedulerCache
from tapestry.controlplane.scheduler.pod_info import pod_info_of
from tapestry.kube.objects import Object, labels_of, name_of, value_at

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TEAMS = {"x": {"team": "red"}, "y": {"team": "blue"}}


def new_node(name: str, *, cpu: str = "4", pods: str = "10", labels: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": {HOST: name, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": pods}},
    }


def new_pod(name: str, on: str = "", *, cpu: str = "0", namespace: str = "x", app: str = "", **spec: Any) -> Object:
    metadata: Object = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "labels": {"app": app} if app else {},
    }
    if spec.pop("terminating", False):
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


def cache_of(nodes: Iterable[Object], pods: Iterable[Object] = ()) -> SchedulerCache:
    cache = SchedulerCache()
    cache.namespace_labels = dict(TEAMS)
    for node in nodes:
        cache.set_node(node)
    for pod in pods:
        cache.add_pod(pod_info_of(pod), pod["spec"]["nodeName"])
    return cache


# -- reference implementation: no caches, no counts, and no code of the scheduler


def fits(pod: Object, node: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> bool:
    others = [each for each in pods if name_of(each) != name_of(pod)]
    on_node = [each for each in others if each["spec"]["nodeName"] == name_of(node)]
    return (
        has_capacity(pod, node, on_node)
        and tolerates_taints(pod, node)
        and matches_node(pod, node)
        and not {*ports(pod)} & {port for each in on_node for port in ports(each)}
        and all(
            satisfies_spread(pod, node, nodes, others, rule)
            for rule in pod["spec"].get("topologySpreadConstraints", ())
        )
        and satisfies_affinity(pod, node, nodes, others)
        and satisfies_anti_affinity(pod, node, nodes, others)
    )


def has_capacity(pod: Object, node: Object, on_node: Sequence[Object]) -> bool:
    allocatable, cpu = node["status"]["allocatable"], cpu_of(pod)
    is_enough = not cpu or sum(map(cpu_of, on_node)) + cpu <= int(
        allocatable["cpu"]
    )  # a pod without requests fits everywhere
    return is_enough and len(on_node) + 1 <= int(allocatable["pods"])


def cpu_of(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def ports(pod: Object) -> list[int]:
    return [each["hostPort"] for each in pod["spec"]["containers"][0].get("ports", ())]


def tolerates_taints(pod: Object, node: Object) -> bool:
    tolerated = {each["key"] for each in pod["spec"].get("tolerations", ())}
    taints = {each["key"] for each in node["spec"].get("taints", ()) if each["effect"] != "PreferNoSchedule"}
    if node["spec"].get("unschedulable"):
        taints.add("node.kubernetes.io/unschedulable")
    return taints <= tolerated


def matches_node(pod: Object, node: Object) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = value_at(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    return required is None or any(
        all(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"]) for term in required
    )


def satisfies_spread(
    pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object], rule: Object
) -> bool:
    if rule["whenUnsatisfiable"] != "DoNotSchedule":
        return True
    hard = [each for each in pod["spec"]["topologySpreadConstraints"] if each["whenUnsatisfiable"] == "DoNotSchedule"]
    key = rule["topologyKey"]
    if key not in labels_of(node):
        return False
    eligible = [
        each
        for each in nodes
        if all(other["topologyKey"] in labels_of(each) for other in hard)
        and (rule.get("nodeAffinityPolicy") == "Ignore" or matches_node(pod, each))
        and (
            rule.get("nodeTaintsPolicy") != "Honor"
            or tolerates_taints(pod, {**each, "spec": {**each["spec"], "unschedulable": False}})
        )
    ]
    domains = {labels_of(each)[key]: 0 for each in eligible}
    for other in others:
        other_node = next((each for each in eligible if name_of(each) == other["spec"]["nodeName"]), None)
        if (
            other_node is not None
            and matches_labels(rule, other)
            and namespace(other) == namespace(pod)
            and not is_terminating(other)
        ):
            domains[labels_of(other_node)[key]] += 1
    minimum = min(domains.values()) if len(domains) >= rule.get("minDomains", 1) else 0
    return domains.get(labels_of(node)[key], 0) + matches_labels(rule, pod) - minimum <= rule["maxSkew"]


def satisfies_affinity(pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object]) -> bool:
    terms = value_at(pod, "spec", "affinity", "podAffinity", REQUIRED, default=[])
    friends = [each for each in others if terms and all(matches_term(term, pod, each) for term in terms)]
    friend_nodes = [friend_node for each in friends if (friend_node := node_of(each, nodes)) is not None]
    if any(term["topologyKey"] not in labels_of(node) for term in terms):
        return False
    if terms and not any(
        term["topologyKey"] in labels_of(friend_node) for friend_node in friend_nodes for term in terms
    ):
        return all(matches_term(term, pod, pod) for term in terms)
    return all(any(share(term, friend_node, node) for friend_node in friend_nodes) for term in terms)


def satisfies_anti_affinity(pod: Object, node: Object, nodes: Sequence[Object], others: Sequence[Object]) -> bool:
    for other in others:
        other_node = node_of(other, nodes)
        if other_node is None:
            continue
        for one, another in ((pod, other), (other, pod)):
            for term in value_at(one, "spec", "affinity", "podAntiAffinity", REQUIRED, default=()):
                if matches_term(term, one, another) and share(term, other_node, node):
                    return False
    return True


def matches_term(term: Object, subject: Object, other: Object) -> bool:
    if "namespaceSelector" in term:
        labels = term["namespaceSelector"].get("matchLabels", {})
        is_in_namespace = labels.items() <= TEAMS[namespace(other)].items() or namespace(other) in term.get(
            "namespaces", ()
        )
    else:
        is_in_namespace = namespace(other) in (term.get("namespaces") or [namespace(subject)])
    return is_in_namespace and matches_labels(term, other)


def matches_labels(rule: Object, pod: Object) -> bool:
    return bool(rule["labelSelector"]["matchLabels"].items() <= labels_of(pod).items())


def share(term: Object, one: Object, other: Object) -> bool:
    value = labels_of(one).get(term["topologyKey"])
    return value is not None and labels_of(other).get(term["topologyKey"]) == value


def node_of(pod: Object, nodes: Sequence[Object]) -> Object | None:
    return next((each for each in nodes if name_of(each) == pod["spec"]["nodeName"]), None)


def namespace(pod: Object) -> str:
    return str(pod["metadata"]["namespace"])


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
