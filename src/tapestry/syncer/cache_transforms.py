"""What the caches of a syncer keep of each object: what somebody reads, and no more.

Transforms change the object that they are given: it has just been decoded and is nobody else's yet.
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
    """A physical node as we need it, which is a small part of it."""
    return slim(sanitized_node(node))


def physical_node_of(virtual_node: Object) -> list[str]:
    name = annotations_of(virtual_node).get(keys.PHYSICAL_NODE_NAME)
    return [name] if name else []


def pod_node_name(pod: Object) -> list[str]:
    return [pod["spec"]["nodeName"]]


def with_changed_at(policy: Object) -> Object:
    """A transform: `slim`, but what managedFields say of the last change is kept."""
    policy["metadata"][CHANGED_AT] = timestamp(changed_at(policy))
    return slim(policy)


def is_placeholder(pod: Object) -> bool:
    """Whether the pod only shows host ports that are taken below; see `bottomup.hostports`."""
    return pod["metadata"]["namespace"] == keys.HOST_PORTS_NAMESPACE and keys.HOST_PORTS in labels_of(pod)


def with_reduced_status(pod: Object) -> Object:
    """A virtual pod as we need it: of its status, which is ours to write, little more than a digest.

    Under `held` is what it holds of its node.
    """
    pod["metadata"].pop("managedFields", None)
    pod["held"] = effective_requests(pod)  # sums over all pods are made again and again
    pod["status"] = reduced_status(pod.get("status"))
    return pod


def reference_keys(pod: Object) -> list[str]:
    """What a pod that has not ended refers to: `secrets/team-a/password`."""
    if is_pod_terminal(pod):
        return []
    return [f"{each.kind}/{pod['metadata']['namespace']}/{each.name}" for each in references(pod["spec"])]


def dependency_namespace(pod: Object) -> list[str]:
    """The namespace of a pod, where something may have to cross for it."""
    namespace = pod["metadata"]["namespace"]
    return [] if is_pod_terminal(pod) or namespace in SYSTEM_NAMESPACES else [namespace]


def digest_only(obj: Object) -> Object:
    """A ConfigMap or Secret without its data, on either side."""
    return slim(digest_view(obj))


def source_namespace(copy: Object) -> list[str]:
    """The namespace above of what something below is the copy of."""
    return [key.split("/")[0] for key in source_key(copy)]


def physical_pod_transform(binding_uid: str, virtual_cluster_uid: str) -> Transform:
    """A transform: of our twins what has to be compared and shown, of everybody else's pods what they hold."""
    virtual_cluster = virtual_cluster_label(virtual_cluster_uid)

    def seen(pod: Object) -> Object:
        labels = labels_of(pod)
        ours = (
            labels.get(keys.CLUSTER_BINDING_UID) == binding_uid and labels.get(keys.VIRTUAL_CLUSTER) == virtual_cluster
        )
        return reduced_twin(pod) if ours else reduced_foreign_pod(pod)

    return seen


def reduced_twin(pod: Object) -> Object:
    """A twin as we need it: who it is, what of it may change, and its status as it is shown, in bytes.

    Under `held` is what it requests of its node; None once it has ended.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.pop("managedFields", None)
    kept = {name: spec[name] for name in ("nodeName", "terminationGracePeriodSeconds") if name in spec}
    for containers in CONTAINER_FIELDS:
        if spec.get(containers):
            kept[containers] = [
                {name: each[name] for name in ("name", "image", "resources") if each.get(name)}
                for each in spec[containers]
            ]
    return {
        "metadata": metadata,
        "node": "",
        "spec": kept,
        "held": None if is_pod_terminal(pod) else effective_requests(pod),
        "twin": TWIN_STATUS.encode(sanitized_pod_status(pod.get("status"))),
    }


def reduced_foreign_pod(pod: Object) -> Object:
    """What arithmetic needs of a pod below: who it is, where, whose, what it holds and which host ports it has."""
    metadata = pod["metadata"]
    labels = labels_of(pod)
    spec = pod["spec"]
    kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")}
    ours = {key: labels[key] for key in (keys.VIRTUAL_CLUSTER, keys.CLUSTER_BINDING_UID) if key in labels}
    claim: Object = {
        "metadata": {**kept, "labels": ours} if ours else kept,
        "node": spec.get("nodeName", "") if occupies_node(pod) else "",
        "hold": pod_allocation(pod),
    }
    if ports := host_ports_of(spec):
        claim["ports"] = ports
    return claim


def host_ports_of(spec: Object) -> tuple[tuple[str, int, str], ...]:
    """The host ports of a pod as (address, port, protocol); what is no port is left out."""
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
