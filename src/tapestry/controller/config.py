"""The configuration of a process that runs controllers: one frozen value, validated once, passed down."""

from typing import Annotated, Any

from msgspec import Meta, field

from tapestry.kube.selectors import parse_label_selector
from tapestry.process.addresses import parse_address
from tapestry.process.config import Section
from tapestry.process.logs import Format, Level

DEFAULT_NAME = "tapestry"
"""The name of a process that was given none."""


class LeaderElection(Section, frozen=True):
    """One of several replicas works, the others stand by with warm caches."""

    enabled: bool = False
    namespace: str = "default"
    name: str = ""
    """Of the Lease; the name of the process where it is empty."""
    lease_seconds: float = 15.0
    deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


class Filter(Section, frozen=True):
    """Shows the reconcilers only a part of the resources."""

    namespaces: list[str] = field(default_factory=list)
    labels: str = ""

    def __post_init__(self) -> None:
        parse_label_selector(self.labels, "labels")


class Metrics(Section, frozen=True):
    address: str = "127.0.0.1:8080"
    """Empty serves none.  Off loopback a reader must show a token that may `get /metrics`."""
    open: bool = False
    """Serve anyone, whatever the address."""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    """A client certificate signed by this CA is as good as a token."""

    def __post_init__(self) -> None:
        parse_address(self.address)
        if bool(self.certificate) != bool(self.key) or (self.client_ca and not self.certificate):
            raise ValueError("certificate and key belong together, and clientCa is of no use without them")


class Probes(Section, frozen=True):
    address: str = ":8081"

    def __post_init__(self) -> None:
        parse_address(self.address)


class Logs(Section, frozen=True):
    level: Level = "info"
    format: Format = "auto"


class Tracing(Section, frozen=True):
    endpoint: str = ""
    """Of an OTLP collector, over HTTP; empty traces nothing."""
    sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01


class ManagerConfig(Section, frozen=True):
    """Everything `tapestry run` and `tapestry hub` can be told."""

    name: str = DEFAULT_NAME
    """Of the process: in events, in the audit log, and of the Lease."""
    kubeconfig: str = ""
    context: str = ""
    controllers: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of what runs; one that begins with `-` takes away again."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 4
    """For each controller."""
    resync_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Look at everything again this often; 0 never does."""
    shutdown_seconds: Annotated[float, Meta(ge=0, le=60)] = 8.0
    """How long work under way may take to finish when the process is asked to stop."""
    filter: Filter = field(default_factory=Filter)
    leader_election: LeaderElection = field(default_factory=LeaderElection)
    metrics: Metrics = field(default_factory=Metrics)
    probes: Probes = field(default_factory=Probes)
    log: Logs = field(default_factory=Logs)
    tracing: Tracing = field(default_factory=Tracing)
    audit: str = ""
    """A file that gets a line for each write; `-` is standard error."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For single controllers, by name."""
