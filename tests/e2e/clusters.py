"""Clusters with real pods, accessed with kubectl, which shares no code with Tapestry."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tapestry.local.kubernetes import ControlPlane

from .nodes import MACHINE, Kit, RealNode, run


@dataclass(frozen=True)
class Cluster:
    """A control plane that pods can reach."""

    plane: ControlPlane
    assets: Path

    def kubectl(self, *arguments: object) -> str:
        return run(self.assets / "kubectl", f"--kubeconfig={self.plane.kubeconfig}", *arguments)

    def diagnostics(self) -> str:
        """Return all pods and the latest events, to explain failures."""
        pods = self.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
        events = self.kubectl("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp")
        return "\n".join([*pods.splitlines(), *events.splitlines()[-20:]])


@dataclass(frozen=True)
class PhysicalCluster(Cluster):
    """A cluster with one node, which runs containers."""

    node: RealNode


def control_plane_of(folder: Path, kit: Kit, flags: Mapping[str, str]) -> ControlPlane:
    """Return a control plane with its own controllers and scheduler, which pods can reach.

    Its controllers provision volumes of `kubernetes.io/host-path`: folders of this machine.
    """
    controllers = {"enable-hostpath-provisioner": "true"}
    return ControlPlane(
        folder, kit.assets, controller_manager=controllers, scheduler=True, fsync=False, address=MACHINE, flags=flags
    )
