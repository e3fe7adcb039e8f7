"""The configuration of an API server."""

from typing import Annotated, Literal

from msgspec import Meta, field

from tapestry.process.config import Section
from tapestry.process.logs import Format, Level


class Tls(Section, frozen=True):
    """The server's certificate; without one, a CA and a certificate are made below the data folder."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    """A file with the CAs whose client certificates are trusted."""


class ApiServerConfig(Section, frozen=True):
    """Everything `tapestry apiserver` can be told."""

    backend: Literal["file", "memory"] = "file"
    """Where objects are kept."""
    file_rootpath: str = "tapestry-data"
    """The folder of the file backend; certificates and signing keys are kept there, too."""
    secure_address: str = "127.0.0.1:6443"
    """Where to serve HTTPS; empty serves none."""
    local_address: str = "127.0.0.1:6080"
    """Where to serve plain HTTP, on loopback, if this machine is trusted."""
    authn_allow_localhost: bool = False
    """Whether whoever is on this machine may do everything, without credentials."""
    token_auth_file: str = ""
    """A CSV file of tokens and their users."""
    authorization: Literal["RBAC", "AlwaysAllow"] = "RBAC"
    """Whether roles decide what users may do."""
    pod_accounts: bool = True
    """Whether pods get a service account and its token; for that, namespaces must have accounts."""
    unrestricted_update: bool = False
    """Whether a write to an object may change its status, too."""
    managed_fields: Literal["Always", "AfterApply"] = "Always"
    """Whether account is kept of who owns which fields of every object, or only of those that were applied once."""
    kubectl_disabled: bool = False
    """Whether requests of kubectl are refused."""
    request_timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds that a request may take; watches are exempt."""
    service_account_issuer: str = "https://kubernetes.default.svc.cluster.local"
    """Who signs the tokens of service accounts."""
    controllers: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of the controllers that run beside the server; one that begins with `-` takes away again.
    `none` leaves them to a kube-controller-manager."""
    history_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """For how long watches and pages can go back."""
    tls: Tls = Tls()
    log_level: Level = "info"
    log_format: Format = "auto"
