"""The configuration of a syncer: that of any process that runs controllers, and a little more."""

import ipaddress
from typing import Annotated

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.controller.config import LeaderElection, ManagerConfig
from tapestry.process.addresses import parse_address
from tapestry.process.config import Section


class Kubelet(Section, frozen=True):
    """The kubelet of our virtual nodes."""

    address: str = ""
    """Where it listens, and what nodes say of it; empty serves none, port 0 takes a free one."""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    """Of client certificates that callers are known by; without it, what the virtual cluster publishes as such."""

    def __post_init__(self) -> None:
        found = parse_address(self.address)
        try:
            ipaddress.ip_address(found.host if found else "127.0.0.1")
        except ValueError:
            raise ValueError(f"address: {self.address} names no IP; say which: virtual nodes show it") from None
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together")


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
    allow_loopback: bool = False
    """Whether the binding's kubeconfig may lead to this machine."""
    kubelet: Kubelet = field(default_factory=Kubelet)
