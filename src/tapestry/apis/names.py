"""The names that things of ours have on the other side."""

from functools import lru_cache
from hashlib import sha256

from tapestry.kube.names import DNS_1035_LABEL, LABEL_LIMIT, hashed_name


def virtual_cluster_label(uid: str) -> str:
    """A virtual cluster as a label value: a hash of the UID of its kube-system namespace."""
    return sha256(uid.encode()).hexdigest()[:32]


def virtual_node_name(cluster_id: str, node: str) -> str:
    """The virtual node of a physical one; a name that would be too long is cut and hashed."""
    plain = f"vnode-{cluster_id}-{node}"
    return plain if len(plain) <= LABEL_LIMIT else hashed_name(plain, cluster_id, node)


def fallback_virtual_node_name(cluster_id: str, node: str, binding_uid: str) -> str:
    """The virtual node's name where the first choice belongs to another binding."""
    return hashed_name(f"vnode-{cluster_id}-{node}", cluster_id, node, binding_uid)


@lru_cache(maxsize=1 << 15)  # asked at every pass over a pod
def physical_name(virtual_cluster: str, binding_uid: str, namespace: str, name: str) -> str:
    """The name below of a namespaced virtual object: no two virtual clusters or bindings ever meet in one."""
    return hashed_name(name, virtual_cluster, binding_uid, namespace, name)


def physical_service_name(virtual_cluster: str, binding_uid: str, namespace: str, name: str) -> str:
    """The name below of a virtual Service; it begins with a letter, as the name of a Service has to."""
    readable = name if DNS_1035_LABEL.fullmatch(name) else f"service-{name}"
    return hashed_name(readable, virtual_cluster, binding_uid, namespace, name)


def syncer_name(cluster_id: str) -> str:
    """The Deployment, account and roles of the syncer that a manager runs for a binding."""
    return f"tapestry-syncer-{cluster_id}"


def syncer_lease_name(binding: str) -> str:
    """The Lease that the replicas of a binding's syncer campaign for."""
    return f"tapestry-syncer-{binding}"


def tokens_secret_name(virtual_cluster: str, binding_uid: str, namespace: str, pod: str) -> str:
    """The Secret below with the service account tokens of a virtual pod."""
    return hashed_name(f"{pod}-tokens", virtual_cluster, binding_uid, namespace, pod, "tokens")
