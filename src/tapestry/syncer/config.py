"""The configuration of a syncer: that of any process that runs controllers, and a little more."""

from typing import Annotated

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.controller.config import LeaderElection, ManagerConfig


class SyncerConfig(ManagerConfig, frozen=True):
    """Everything `tapestry syncer` can be told."""

    binding: str = ""
    """The ClusterBinding that this process works for."""
    leader_election: LeaderElection = field(
        default_factory=lambda: LeaderElection(enabled=True, namespace=keys.SYSTEM_NAMESPACE)
    )
    time_zone: str = "UTC"
    """Of windows that name none."""
    warning_seconds: Annotated[float, Meta(ge=0)] = 600.0
    """How long before the end of a lease its node says so."""
    silence_seconds: Annotated[float, Meta(gt=0)] = 20.0
    """After how long without an answer the physical cluster counts as out of reach."""
    unschedulable_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """How long a pod may find no place below before it has failed."""
    refusal_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """How long the physical API server may refuse a pod before it has failed."""
    check_seconds: Annotated[float, Meta(ge=0)] = 300.0
    """How often everything is looked at for what slipped through; 0 never."""
    kubeconfig_namespaces: Annotated[tuple[str, ...], Meta(max_length=64)] = ("tapestry-system",)
    """Namespaces that a binding's kubeconfig may come from."""
