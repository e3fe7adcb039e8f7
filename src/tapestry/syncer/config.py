"""Configuration of a syncer: that of any controller process, and the syncer's own options."""

import ipaddress
from typing import Annotated

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.controller.config import LeaderElection, ManagerConfig
from tapestry.kube.names import dns_label_error, dns_subdomain_error
from tapestry.process.addresses import parse_address
from tapestry.process.config import Section


class Kubelet(Section, frozen=True):
    """Kubelet endpoint of our virtual nodes."""

    address: str = ""
    """Address to listen on, also published in node status; empty serves none, port 0 takes a free port."""
    service: str = ""
    """Namespace and name of a Service that leads here, whose address nodes show instead, as in `NAMESPACE/NAME`."""
    certificate: str = ""
    key: str = ""
    secret: str = ""
    """Namespace and name of a Secret with a certificate, as in `NAMESPACE/NAME`; files have precedence."""
    client_ca: str = ""
    """CA of client certificates of callers; by default the one that the virtual cluster publishes."""

    def __post_init__(self) -> None:
        parsed = parse_address(self.address)
        try:
            ipaddress.ip_address(parsed.host if parsed else "127.0.0.1")
        except ValueError:
            raise ValueError(f"address: {self.address} names no IP; give one that virtual nodes can publish") from None
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together")
        for option, text in (("service", self.service), ("secret", self.secret)):
            namespace, _, name = text.partition("/")
            if text and (dns_label_error(namespace) or dns_subdomain_error(name)):
                raise ValueError(f"{option}: {text} is not of the form NAMESPACE/NAME")


class SyncerLeaderElection(LeaderElection, frozen=True):
    """Leader election of a syncer, in the namespace of the manager and the syncers."""

    enabled: bool = True
    namespace: str = keys.SYSTEM_NAMESPACE


class SyncerConfig(ManagerConfig, frozen=True):
    """Options of `tapestry syncer`."""

    binding: str = ""
    """Name of the ClusterBinding that this process serves."""
    leader_election: SyncerLeaderElection = field(default_factory=SyncerLeaderElection)
    time_zone: str = "UTC"
    """Default time zone of windows that name none."""
    warning_seconds: Annotated[float, Meta(ge=0)] = 600.0
    """Seconds before the end of a lease at which its node warns."""
    silence_seconds: Annotated[float, Meta(gt=0)] = 20.0
    """Seconds without a response after which the physical cluster counts as unreachable."""
    unschedulable_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds that a twin may stay unschedulable before its pod fails."""
    refusal_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds that the physical API server may reject a twin before its pod fails."""
    check_seconds: Annotated[float, Meta(ge=0)] = 300.0
    """Seconds between two consistency checks; 0 disables them."""
    kubeconfig_namespaces: Annotated[tuple[str, ...], Meta(max_length=64)] = ("tapestry-system",)
    """Namespaces that a binding's kubeconfig Secret may be in."""
    allow_loopback: bool = False
    """True if the binding's kubeconfig may point to a loopback address."""
    kubelet: Kubelet = field(default_factory=Kubelet)
