"""Transforms and indexers of the syncer's caches, which keep only the fields that are read.

Transforms modify the object they are given: it was just decoded and has no other user yet.
"""

import msgspec

from tapestry.apis import keys
from tapestry.apis.names import virtual_cluster_label
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import Object, annotations_of, labels_of
from tapestry.kube.pod_requests import effective_requests, occupies_node, pod_allocation
from tapestry.kube.pods import CONTAINER_FIELDS, is_pod_terminal
from tapestry.kube.times import timestamp
from tapestry.syncer.policies import CHANGED_AT, changed_at
from tapestry.syncer.translate.copies import digest_view
from tapestry.syncer.translate.metadata import source_key
from tapestry.syncer.translate.nodes import sanitized_node
from tapestry.syncer.translate.pod_status import reduced_status, sanitized_pod_status
from tapestry.syncer.translate.pods import SYSTEM_NAMESPACES
from tapestry.syncer.translate.references import references
from tapestry.syncer.translate.sanitize import is_ip_address

PROTOCOLS = ("TCP", "UDP", "SCTP")
TWIN_STATUS = msgspec.json.Encoder(order="sorted")


def reduced_physical_node(node: Object) -> Object:
    return slim(sanitized_node(node))


def physical_node_of(virtual_node: Object) -> list[str]:
    name = annotations_of(virtual_node).get(keys.PHYSICAL_NODE_NAME)
    return [name] if name else []


def pod_node_name(pod: Object) -> list[str]:
    return [pod["spec"]["nodeName"]]


def with_changed_at(policy: Object) -> Object:
    """Apply `slim`, and keep the time of the last spec change from managedFields."""
    policy["metadata"][CHANGED_AT] = timestamp(changed_at(policy))
    return slim(policy)


def is_placeholder(pod: Object) -> bool:
    """Return whether the pod only reserves host ports taken in the physical cluster; see `bottomup.hostports`."""
    return pod["metadata"]["namespace"] == keys.HOST_PORTS_NAMESPACE and keys.HOST_PORTS in labels_of(pod)


def with_reduced_status(pod: Object) -> Object:
    """Reduce the status of a virtual pod, which only we write, to little more than a digest.

    `held` is the amount that the pod holds of its node.
    """
    pod["metadata"].pop("managedFields", None)
    pod["held"] = effective_requests(pod)  # computed once: sums over all pods read it often
    pod["status"] = reduced_status(pod.get("status"))
    return pod


def reference_keys(pod: Object) -> list[str]:
    """Return the keys of the objects that an active pod refers to, e.g. `secrets/team-a/password`."""
    if is_pod_terminal(pod):
        return []
    return [f"{each.kind}/{pod['metadata']['namespace']}/{each.name}" for each in references(pod["spec"])]


def dependency_namespace(pod: Object) -> list[str]:
    """Return the namespace of an active pod whose dependencies may have to be copied."""
    namespace = pod["metadata"]["namespace"]
    return [] if is_pod_terminal(pod) or namespace in SYSTEM_NAMESPACES else [namespace]


def digest_only(obj: Object) -> Object:
    """Reduce a ConfigMap or Secret of either cluster to a digest of its data."""
    return slim(digest_view(obj))


def source_namespace(copy: Object) -> list[str]:
    """Return the virtual namespace of the source of a copy."""
    return [key.split("/")[0] for key in source_key(copy)]


def physical_pod_transform(binding_uid: str, virtual_cluster_uid: str) -> Transform:
    """Return a transform that keeps of twins what is compared and synced, and of foreign pods what they hold."""
    virtual_cluster = virtual_cluster_label(virtual_cluster_uid)

    def transform(pod: Object) -> Object:
        labels = labels_of(pod)
        is_twin = (
            labels.get(keys.CLUSTER_BINDING_UID) == binding_uid and labels.get(keys.VIRTUAL_CLUSTER) == virtual_cluster
        )
        return reduced_twin(pod) if is_twin else reduced_foreign_pod(pod)

    return transform


def reduced_twin(pod: Object) -> Object:
    """Reduce a twin to its identity, its mutable fields, and its sanitized status as bytes.

    `held` is the amount that it requests of its node; None once it has ended.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.pop("managedFields", None)
    cached_spec = {name: spec[name] for name in ("nodeName", "terminationGracePeriodSeconds") if name in spec}
    for containers in CONTAINER_FIELDS:
        if spec.get(containers):
            cached_spec[containers] = [
                {name: each[name] for name in ("name", "image", "resources") if each.get(name)}
                for each in spec[containers]
            ]
    return {
        "metadata": metadata,
        "node": "",
        "spec": cached_spec,
        "held": None if is_pod_terminal(pod) else effective_requests(pod),
        "twin": TWIN_STATUS.encode(sanitized_pod_status(pod.get("status"))),
    }


def reduced_foreign_pod(pod: Object) -> Object:
    """Reduce a foreign pod to its identity, node, ownership labels, allocation and host ports."""
    metadata = pod["metadata"]
    labels = labels_of(pod)
    spec = pod["spec"]
    identity = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    owner = {key: labels[key] for key in (keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING_UID) if key in labels}
    claim: Object = {
        "metadata": {**identity, "labels": owner} if owner else identity,
        "node": spec.get("nodeName", "") if occupies_node(pod) else "",
        "hold": pod_allocation(pod),
    }
    if ports := host_ports_of(spec):
        claim["ports"] = ports
    return claim


def host_ports_of(spec: Object) -> tuple[tuple[str, int, str], ...]:
    """Return the host ports of a pod as (address, port, protocol), without invalid ones."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    found = {
        (port.get("hostIP") or "0.0.0.0", port["hostPort"], port.get("protocol") or "TCP")
        for container in containers
        for port in container.get("ports") or ()
        if port.get("hostPort")
    }
    return tuple(sorted(each for each in found if is_port(*each)))


def is_port(address: object, number: object, protocol: object) -> bool:
    return is_ip_address(address) and type(number) is int and 0 < number < 65536 and protocol in PROTOCOLS


def foreign_pod_node(claim: Object) -> list[str]:
    return [claim["node"]] if claim["node"] else []
