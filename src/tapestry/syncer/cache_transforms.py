"""Transforms and indexers of the syncer's caches, which keep only the fields that are read.

Transforms modify the object they are given: it was just decoded and has no other user yet.
"""

import msgspec

from tapestry.apis import keys
from tapestry.apis.excluded_pods import is_system_namespace
from tapestry.apis.names import virtual_cluster_label
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import Object, annotations_of, digest_of, labels_of, uid_of, version_of
from tapestry.kube.pod_references import references
from tapestry.kube.pod_requests import effective_requests, occupies_node, pod_allocation
from tapestry.kube.pods import CONTAINER_FIELDS, is_pod_terminal
from tapestry.kube.times import timestamp
from tapestry.syncer.policies import CHANGED_AT, changed_at
from tapestry.syncer.translate.copies import digest_view
from tapestry.syncer.translate.metadata import source_key, virtual_key
from tapestry.syncer.translate.nodes import sanitized_node
from tapestry.syncer.translate.pod_status import SCHEDULED, TWIN_CONDITIONS, sanitized_pod_status
from tapestry.syncer.translate.sanitize import as_list, as_object, is_ip_address
from tapestry.syncer.views import ForeignPod, PhysicalPod, Port, Twin, VirtualPod

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


def virtual_pod(pod: Object) -> VirtualPod:
    """Return a view of a virtual pod. Of the status, which only we write, little more than a digest is kept."""
    status = as_object(pod.get("status"))
    pod["metadata"].pop("managedFields", None)
    requests, sanitized = effective_requests(pod), sanitized_pod_status(status)
    conditions = [as_object(each) for each in as_list(status.get("conditions"))]
    own = (each for each in conditions if str(each.get("type")) not in TWIN_CONDITIONS)
    without_nulls = [{field: value for field, value in each.items() if value is not None} for each in own]
    pod["status"] = {"phase": sanitized["phase"], "conditions": without_nulls}
    return VirtualPod(
        uid_of(pod),
        version_of(pod),
        pod,
        pod["spec"].get("nodeName", ""),
        requests,
        # A pod created with a node lacks the condition until it has a twin.
        any(each.get("type") == SCHEDULED and each.get("status") == "True" for each in conditions),
        tuple(each["type"] for each in sanitized["conditions"] if each["type"] in TWIN_CONDITIONS),
        digest_of(sanitized),
    )


def reference_keys(pod: Object) -> list[str]:
    """Return the keys of the objects that an active pod refers to, e.g. `secrets/team-a/password`."""
    if is_pod_terminal(pod):
        return []
    return [f"{each.kind}/{pod['metadata']['namespace']}/{each.name}" for each in references(pod)]


def dependency_namespace(pod: Object, manager_namespace: str) -> list[str]:
    """Return the namespace of an active pod whose dependencies may have to be copied."""
    namespace = pod["metadata"]["namespace"]
    return [] if is_pod_terminal(pod) or is_system_namespace(namespace, manager_namespace) else [namespace]


def digest_only(obj: Object) -> Object:
    """Reduce a ConfigMap or Secret of either cluster to a digest of its data."""
    return slim(digest_view(obj))


def source_namespace(copy: Object) -> list[str]:
    """Return the virtual namespace of the source of a copy."""
    return [key.split("/")[0] for key in source_key(copy)]


def physical_pod_transform(binding_uid: str, virtual_cluster_uid: str) -> Transform[PhysicalPod]:
    """Return a transform that keeps of twins what is compared and synced, and of foreign pods what they hold."""
    virtual_cluster = virtual_cluster_label(virtual_cluster_uid)
    shared = {keys.CLUSTER_BINDING_UID: binding_uid, keys.VIRTUAL_CLUSTER: virtual_cluster}

    def transform(pod: Object) -> PhysicalPod:
        labels = pod["metadata"].get("labels") or {}
        if labels.get(keys.CLUSTER_BINDING_UID) != binding_uid or labels.get(keys.VIRTUAL_CLUSTER) != virtual_cluster:
            return foreign_pod(pod)
        labels |= shared  # all twins then have the same strings, not equal ones
        return twin_view(pod)

    return transform


def twin_view(pod: Object) -> Twin:
    """Return a view of a twin: its identity, its mutable fields, and its sanitized status."""
    metadata, spec = pod["metadata"], pod["spec"]
    metadata.pop("managedFields", None)
    cached_spec = {name: spec[name] for name in ("nodeName", "terminationGracePeriodSeconds") if name in spec}
    for containers in CONTAINER_FIELDS:
        if spec.get(containers):
            cached_spec[containers] = [
                {name: each[name] for name in ("name", "image", "resources") if each.get(name)}
                for each in spec[containers]
            ]
    return Twin(
        uid_of(pod),
        version_of(pod),
        {"metadata": metadata, "spec": cached_spec},
        None if is_pod_terminal(pod) else effective_requests(pod),
        TWIN_STATUS.encode(sanitized_pod_status(pod.get("status"))),
    )


def foreign_pod(pod: Object) -> ForeignPod:
    node = pod["spec"]["nodeName"] if occupies_node(pod) else ""
    return ForeignPod(uid_of(pod), version_of(pod), node, pod_allocation(pod), host_ports_of(pod["spec"]))


def host_ports_of(spec: Object) -> tuple[Port, ...]:
    """Return the valid host ports of a pod."""
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


def foreign_pod_node(pod: PhysicalPod) -> list[str]:
    return [pod.node] if isinstance(pod, ForeignPod) and pod.node else []


def pod_key_of_twin(pod: PhysicalPod) -> list[str]:
    return virtual_key(pod.object) if isinstance(pod, Twin) else []
