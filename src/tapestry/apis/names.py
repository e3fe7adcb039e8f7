"""Names of the objects that Tapestry creates in virtual and physical clusters."""

from functools import lru_cache
from hashlib import sha256

from tapestry.kube.names import DNS_1035_LABEL, LABEL_LIMIT, hashed_name

VIRTUAL_NODE_PREFIX = "vnode-"
"""Prefix of the names of all virtual nodes.  A longer prefix does not identify a binding."""


def virtual_cluster_label(uid: str) -> str:
    """Return the label value of a virtual cluster: a hash of the UID of its kube-system namespace."""
    return sha256(uid.encode()).hexdigest()[:32]


def virtual_node_name(cluster_id: str, node: str) -> str:
    """Return the name of a physical node's virtual node.  A name that is too long is truncated and hashed."""
    plain = f"{VIRTUAL_NODE_PREFIX}{cluster_id}-{node}"
    return plain if len(plain) <= LABEL_LIMIT else hashed_name(plain, cluster_id, node)


def fallback_virtual_node_name(cluster_id: str, node: str, binding_uid: str) -> str:
    """Return the virtual node name to use if the first choice belongs to another binding."""
    return hashed_name(f"{VIRTUAL_NODE_PREFIX}{cluster_id}-{node}", cluster_id, node, binding_uid)


@lru_cache(maxsize=1 << 15)  # called on every reconcile of a pod
def physical_name(virtual_cluster: str, binding_uid: str, namespace: str, name: str) -> str:
    """Return the physical name of a namespaced virtual object, unique across virtual clusters and bindings."""
    return hashed_name(name, virtual_cluster, binding_uid, namespace, name)


def physical_service_name(virtual_cluster: str, binding_uid: str, namespace: str, name: str) -> str:
    """Return the physical name of a virtual Service.  It starts with a letter, as Service names must."""
    readable = name if DNS_1035_LABEL.fullmatch(name) else f"service-{name}"
    return hashed_name(readable, virtual_cluster, binding_uid, namespace, name)


def syncer_name(cluster_id: str) -> str:
    """Return the name of the Deployment, ServiceAccount and roles of a managed syncer."""
    return f"tapestry-syncer-{cluster_id}"


def syncer_lease_name(binding: str) -> str:
    return f"tapestry-syncer-{binding}"


def tokens_secret_name(virtual_cluster: str, binding_uid: str, namespace: str, pod: str) -> str:
    """Return the name of the physical Secret with the service account tokens of a virtual pod."""
    return hashed_name(f"{pod}-tokens", virtual_cluster, binding_uid, namespace, pod, "tokens")


def node_metrics_path(node: str) -> str:
    """Return the path of the resource metrics of a virtual node.  All nodes of a syncer have the same address."""
    return f"/nodes/{node}/metrics/resource"
