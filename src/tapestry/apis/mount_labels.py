"""Labels of the mount namespace: the owning virtual cluster and the owner's restrictions.

Only the owner of the physical cluster can write the labels of a namespace, so their values are trusted.
"""

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, labels_of

DEFAULT_MOUNT_NAMESPACE = "tapestry-leased"
LEVELS = ("privileged", "baseline", "restricted")
"""Pod Security levels, from least to most restrictive."""


def virtual_cluster_of(namespace: Object | None) -> str:
    """Return the label value of the virtual cluster that owns the namespace, or "" without the label."""
    return labels_of(namespace).get(keys.VIRTUAL_CLUSTER, "") if namespace is not None else ""


def is_taken(namespace: Object | None, virtual_cluster: str) -> bool:
    return virtual_cluster_of(namespace) not in ("", virtual_cluster)


def taken_message(name: str, virtual_cluster: str) -> str:
    return (
        f"namespace {name} in the physical cluster belongs to another virtual cluster: its label "
        f"{keys.VIRTUAL_CLUSTER} is not {virtual_cluster}; unjoin, and join with another --mount-namespace"
    )


def unmarked_message(name: str, virtual_cluster: str) -> str:
    return (
        f"namespace {name} in the physical cluster has no label {keys.VIRTUAL_CLUSTER}={virtual_cluster}, so another "
        f"virtual cluster could use it, too; `tapestry join` sets the label"
    )


def enforced_level(namespace: Object | None) -> str | None:
    """Return the Pod Security level that the owner enforces, or None without the label.

    An unknown value counts as the most restrictive level, as in Kubernetes.
    """
    label = labels_of(namespace).get(keys.POD_SECURITY_ENFORCE) if namespace is not None else None
    return label if label is None or label in LEVELS else LEVELS[-1]


def stricter_level(level: str, other: str | None) -> str:
    return level if other is None else max(level, other, key=LEVELS.index)


def safeguards_of(namespace: Object | None) -> frozenset[str]:
    text = annotations_of(namespace).get(keys.SAFEGUARDS, "") if namespace is not None else ""
    return frozenset(filter(None, text.split(",")))
