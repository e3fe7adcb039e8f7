"""Names and UIDs of a syncer's binding, from which the names of its objects are derived."""

from dataclasses import dataclass
from functools import cached_property

from tapestry.apis.names import physical_name, virtual_cluster_label

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True)
class Identity:
    """Identity of a binding and its virtual cluster. It is constant while the syncer runs."""

    binding_name: str
    binding_uid: str
    virtual_cluster_uid: str
    mount_namespace: str
    manager_namespace: str
    """Namespace of the manager and the syncers in the virtual cluster; empty for a tenant, which has none there."""
    is_tenant: bool = False
    """True if the virtual cluster is a plane."""
    schedules_on_host: bool = False
    """True if the scheduler of the physical cluster chooses the nodes of pods, see `topdown/host_scheduling`."""

    @cached_property
    def virtual_cluster(self) -> str:
        """UID of the virtual cluster as a label value."""
        return virtual_cluster_label(self.virtual_cluster_uid)

    @property
    def active_pods(self) -> str:
        """Field selector of the virtual pods that may have twins."""
        return UNFINISHED if self.schedules_on_host else f"spec.nodeName!=,{UNFINISHED}"

    def twin_key(self, key: str) -> str:
        """Return the key of the twin of the virtual pod under `key`."""
        namespace, name = key.split("/")
        twin, mount = physical_name(self.virtual_cluster, self.binding_uid, namespace, name), self.mount_namespace
        return f"{mount}/{twin}" if mount else twin
