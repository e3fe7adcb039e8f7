"""The switches of `spec.sync` of a tenant's binding: what each does. The guide about tenants has this table."""

from collections.abc import Iterator
from typing import NamedTuple


class Switch(NamedTuple):
    """A switch of the lifecycle service, and what it does."""

    name: str
    """Field of the SyncConfig of a virtual cluster."""
    field: str
    """Field of `spec.sync` of the binding; empty if the switch is rejected."""
    on: str
    off: str


SWITCHES = (
    Switch(
        "sync_nodes",
        "nodes",
        "The plane has a Node for each node of the host cluster whose lease is open.",
        "The plane has only the Nodes on which its pods run.",
    ),
    Switch(
        "sync_persistent_volumes",
        "persistentVolumes",
        "The host cluster provisions volumes for claims, and the plane has a PersistentVolume for each.",
        "New claims of classes of the host cluster stay Pending, with an event. Existing volumes stay.",
    ),
    Switch(
        "sync_storage_classes",
        "storageClasses",
        "The plane has the classes that the HostCluster offers.",
        "The plane lists none. Claims may name them, or have `defaultStorageClass`.",
    ),
    Switch(
        "sync_ingresses",
        "ingresses",
        "Ingresses of the offered class, or of none, have twins. Their hosts are below ID.DOMAIN.",
        "The host cluster has no Ingresses of the tenant.",
    ),
    Switch(
        "sync_priority_classes",
        "priorityClasses",
        "Pods have the classes of the HostCluster's `priorityRange`, in the order of their priorities.",
        "All pods have the PriorityClass of the binding, or else of the HostCluster.",
    ),
    Switch(
        "sync_network_policies",
        "networkPolicies",
        "NetworkPolicies have twins, which allow no more than the isolation of the tenant.",
        "NetworkPolicies have no effect. The isolation of the tenant has.",
    ),
    Switch(
        "sync_pod_disruption_budgets",
        "disruptionBudgets",
        "Evictions in the host cluster respect the PodDisruptionBudgets of the plane, too.",
        "Only evictions in the plane respect them.",
    ),
    Switch("custom_resources", "", "Rejected: custom resources are not synced.", ""),
)


def switch_rows() -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield "| `spec.sync` | SyncConfig | on | off |"
    yield "|---|---|---|---|"
    for each in SWITCHES:
        field = f"`{each.field}`" if each.field else "-"
        yield f"| {field} | `{each.name}` | {each.on} | {each.off or '-'} |"
