"""The mount namespace in a physical cluster: which virtual cluster it belongs to, and what its owner allows there.

Only the owner of the physical cluster can write the labels of a namespace, so what they say is trusted.
"""

from tapestry.apis import keys
from tapestry.kube.objects import Object, annotations_of, labels_of

DEFAULT_MOUNT_NAMESPACE = "tapestry-leased"
LEVELS = ("privileged", "baseline", "restricted")
"""Pod Security levels, the loosest first."""


def virtual_cluster_of(namespace: Object | None) -> str:
    """The virtual cluster that the namespace belongs to, as a label value; empty where it carries no mark."""
    return labels_of(namespace).get(keys.VIRTUAL_CLUSTER, "") if namespace is not None else ""


def is_taken(namespace: Object | None, virtual_cluster: str) -> bool:
    """Whether the namespace carries the mark of another virtual cluster."""
    return virtual_cluster_of(namespace) not in ("", virtual_cluster)


def taken_message(name: str, virtual_cluster: str) -> str:
    """What to tell about a namespace that is taken."""
    return (
        f"namespace {name} in the physical cluster belongs to another virtual cluster: its label "
        f"{keys.VIRTUAL_CLUSTER} is not {virtual_cluster}; unjoin, and join with another --mount-namespace"
    )


def unmarked_message(name: str, virtual_cluster: str) -> str:
    """What to tell about a namespace without a mark."""
    return (
        f"namespace {name} in the physical cluster has no label {keys.VIRTUAL_CLUSTER}={virtual_cluster}, so another "
        f"virtual cluster could use it, too; `tapestry join` sets the label"
    )


def enforced_level(namespace: Object | None) -> str | None:
    """The Pod Security level that the owner enforces; None where the namespace does not say.

    A value that is no level counts as the strictest one, as it does in Kubernetes.
    """
    label = labels_of(namespace).get(keys.POD_SECURITY_ENFORCE) if namespace is not None else None
    return label if label is None or label in LEVELS else LEVELS[-1]


def stricter_level(level: str, other: str | None) -> str:
    """The stricter of two levels; None is no level at all."""
    return level if other is None else max(level, other, key=LEVELS.index)


def safeguards_of(namespace: Object | None) -> frozenset[str]:
    """The safeguards that `tapestry join` says it has set up."""
    text = annotations_of(namespace).get(keys.SAFEGUARDS, "") if namespace is not None else ""
    return frozenset(filter(None, text.split(",")))
