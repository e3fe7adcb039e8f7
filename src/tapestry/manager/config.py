"""Configuration of the manager: common controller settings and those of the syncers."""

from typing import Annotated

from msgspec import Meta, field

from tapestry import __version__
from tapestry.apis import keys
from tapestry.apis.release import RELEASE_IMAGE
from tapestry.controller.config import LeaderElection, ManagerConfig
from tapestry.kube.quantity import parse_quantity
from tapestry.process.config import Section

DEFAULT_IMAGE = RELEASE_IMAGE or f"tapestry:{__version__}"

DEFAULT_REPLICAS = 3
"""Number of manager pods.  One is active."""

ContainerResources = dict[str, dict[str, str]]

PROFILES: dict[str, ContainerResources] = {
    "small": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
    "medium": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    "large": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
}
"""Resources of one container by the size of a cluster: up to 100 nodes, up to 1,000 nodes, more nodes."""


def default_resources() -> ContainerResources:
    return PROFILES["small"]


class SyncerSettings(Section, frozen=True):
    image: Annotated[str, Meta(min_length=1)] = DEFAULT_IMAGE
    replicas: Annotated[int, Meta(ge=0, le=10)] = 2
    """Number of replicas.  One is active, the others stand by with synced caches."""
    resources: ContainerResources = field(default_factory=default_resources)
    """Requests and limits of one replica."""
    args: list[str] = field(default_factory=list)
    """Arguments added after those of the template, which they override."""
    kubelet_service: bool = True
    """True if each syncer gets a Service, whose address its virtual nodes show.  The API server must reach Services."""
    priority_class_name: str = ""
    image_pull_secrets: list[str] = field(default_factory=list)
    """Names of Secrets with credentials for the registry of the image, in the namespace that syncers run in."""
    virtual_server: str = ""
    """URL of the virtual API server for syncers in another cluster.  Default: the one that the manager uses."""

    def __post_init__(self) -> None:
        for part, amounts in self.resources.items():
            for name, amount in amounts.items():
                parse_quantity(amount, f"resources.{part}.{name}")


class BindingsConfig(ManagerConfig, frozen=True):
    """Configuration of `tapestry manager`."""

    name: str = "tapestry-manager"
    workers: Annotated[int, Meta(ge=1, le=256)] = 16
    """Number of workers.  An unreachable cluster blocks one of them for half a minute."""
    leader_election: LeaderElection = field(default_factory=lambda: LeaderElection(enabled=True, namespace=""))
    """Leader election.  The Lease is in the manager's namespace by default."""
    namespace: Annotated[str, Meta(min_length=1)] = keys.SYSTEM_NAMESPACE
    """Namespace of syncers, and of kubeconfig Secrets."""
    kubeconfig_namespaces: list[str] = field(default_factory=list)
    """Further namespaces of kubeconfig Secrets."""
    allow_loopback: bool = False
    """Allow kubeconfigs with loopback addresses, for syncers, too."""
    deploy_kubeconfig: str = ""
    """Kubeconfig file of another cluster for syncers to run in.  The manager issues their credentials."""
    template_dir: str = ""
    """Folder with templates that replace the packaged ones."""
    syncer: SyncerSettings = field(default_factory=SyncerSettings)

    @property
    def secret_namespaces(self) -> frozenset[str]:
        """All namespaces that kubeconfigs are read from."""
        return frozenset({self.namespace, *self.kubeconfig_namespaces})
