"""The configuration of the manager: that of any process that runs controllers, and how it runs syncers."""

from typing import Annotated

from msgspec import Meta, field

from tapestry import __version__
from tapestry.apis import keys
from tapestry.controller.config import LeaderElection, ManagerConfig
from tapestry.kube.quantity import parse_quantity
from tapestry.process.config import Section

DEFAULT_IMAGE = f"tapestry:{__version__}"

ContainerResources = dict[str, dict[str, str]]


def default_resources() -> ContainerResources:
    return {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}


class SyncerSettings(Section, frozen=True):
    """What every syncer is started with."""

    image: Annotated[str, Meta(min_length=1)] = DEFAULT_IMAGE
    replicas: Annotated[int, Meta(ge=0, le=10)] = 2
    """One works, the others stand by with warm caches."""
    resources: ContainerResources = field(default_factory=default_resources)
    """Requests and limits of a replica."""
    args: list[str] = field(default_factory=list)
    """Put behind those of the template, so the last word is theirs."""
    priority_class_name: str = ""
    kubeconfig_secret: str = ""
    """A Secret in the cluster where syncers run that opens the virtual cluster to them, under the key `kubeconfig`."""

    def __post_init__(self) -> None:
        for part, amounts in self.resources.items():
            for name, amount in amounts.items():
                parse_quantity(amount, f"resources.{part}.{name}")


class BindingsConfig(ManagerConfig, frozen=True):
    """Everything `tapestry manager` can be told."""

    name: str = "tapestry-manager"
    workers: Annotated[int, Meta(ge=1, le=256)] = 16
    """An unreachable cluster keeps one of them busy for half a minute."""
    leader_election: LeaderElection = field(default_factory=lambda: LeaderElection(enabled=True, namespace=""))
    """In the manager's own namespace, unless it names another."""
    namespace: Annotated[str, Meta(min_length=1)] = keys.SYSTEM_NAMESPACE
    """Where syncers live, and kubeconfigs are read from."""
    kubeconfig_namespaces: list[str] = field(default_factory=list)
    """More namespaces that kubeconfigs are read from."""
    allow_loopback: bool = False
    """Whether kubeconfigs may lead to this machine; syncers are told the same."""
    deploy_kubeconfig: str = ""
    """A kubeconfig file of another cluster for the syncers to run in; their access to this one is then set up there."""
    template_dir: str = ""
    """A folder with templates in the place of the packaged ones."""
    syncer: SyncerSettings = field(default_factory=SyncerSettings)

    def __post_init__(self) -> None:
        if self.deploy_kubeconfig and not self.syncer.kubeconfig_secret:
            raise ValueError("deployKubeconfig: syncers elsewhere need syncer.kubeconfigSecret to reach this cluster")

    @property
    def secret_namespaces(self) -> frozenset[str]:
        """Every namespace that a kubeconfig may come from."""
        return frozenset({self.namespace, *self.kubeconfig_namespaces})
