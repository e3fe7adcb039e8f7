"""Configuration of a process that runs controllers."""

from typing import Annotated, Any

from msgspec import Meta, field

from tapestry.kube.selectors import parse_label_selector
from tapestry.process.addresses import parse_address
from tapestry.process.config import Section
from tapestry.process.logs import Format, Level

DEFAULT_NAME = "tapestry"
"""Name of a process without a configured name."""


class LeaderElection(Section, frozen=True):
    """Leader election: one replica works, the others stand by with synced caches."""

    enabled: bool = False
    namespace: str = "default"
    name: str = ""
    """Name of the Lease.  Default: the name of the process."""
    lease_seconds: float = 15.0
    deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


class Filter(Section, frozen=True):
    """Restrict the objects that reconcilers see."""

    namespaces: list[str] = field(default_factory=list)
    labels: str = ""

    def __post_init__(self) -> None:
        parse_label_selector(self.labels, "labels")


class Metrics(Section, frozen=True):
    address: str = "127.0.0.1:8080"
    """Listen address.  Empty disables metrics.  Off loopback, clients need permission to `get /metrics`."""
    open: bool = False
    """Serve metrics without authentication, whatever the address."""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    """CA whose client certificates are accepted in place of a token."""

    def __post_init__(self) -> None:
        parse_address(self.address)
        if bool(self.certificate) != bool(self.key) or (self.client_ca and not self.certificate):
            raise ValueError("certificate and key belong together; clientCa requires both")


class Probes(Section, frozen=True):
    address: str = ":8081"

    def __post_init__(self) -> None:
        parse_address(self.address)


class Logs(Section, frozen=True):
    level: Level = "info"
    format: Format = "auto"


class Tracing(Section, frozen=True):
    endpoint: str = ""
    """URL of an OTLP collector (HTTP).  Empty disables tracing."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01


class ManagerConfig(Section, frozen=True):
    """Configuration of `tapestry run` and `tapestry hub`."""

    name: str = DEFAULT_NAME
    """Name of the process in events and the audit log, and of its Lease."""
    kubeconfig: str = ""
    context: str = ""
    controllers: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of controllers to run.  A pattern with the prefix `-` excludes."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 4
    """Number of workers per controller."""
    resync_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Interval at which all objects are reconciled again. 0 disables it."""
    shutdown_seconds: Annotated[float, Meta(ge=0, le=60)] = 8.0
    """Seconds that reconciles in flight get to finish at shutdown."""
    filter: Filter = field(default_factory=Filter)
    leader_election: LeaderElection = field(default_factory=LeaderElection)
    metrics: Metrics = field(default_factory=Metrics)
    probes: Probes = field(default_factory=Probes)
    log: Logs = field(default_factory=Logs)
    tracing: Tracing = field(default_factory=Tracing)
    audit: str = ""
    """File that gets one line per write.  `-` is standard error."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of single controllers, by name."""
