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


class KubeletClientConfig(Section, frozen=True):
    """How the server calls kubelets."""

    client_certificate: str = ""
    """A file with the certificate that says who the server is."""
    client_key: str = ""
    certificate_authority: str = ""
    """A file with the CAs of the kubelets' own certificates; without it, these are not checked."""


class Etcd(Section, frozen=True):
    """Where etcd is, and who we are to it."""

    servers: list[str] = field(default_factory=list)
    """The URLs of its members."""
    cafile: str = ""
    """A file with the CAs of their certificates."""
    certfile: str = ""
    """A file with our certificate."""
    keyfile: str = ""
    prefix: str = "/registry"
    """What the keys of all objects begin with."""


class ApiServerConfig(Section, frozen=True):
    """Everything `tapestry apiserver` can be told."""

    backend: Literal["file", "etcd", "memory"] = "file"
    """Where objects are kept."""
    etcd: Etcd = Etcd()
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
    kubectl_ephemeral_token: bool = False
    """Whether kubectl may not use the tokens of the token file, but only such as expire."""
    anonymous_auth: bool = True
    """Whether requests without credentials are served, with the few rights of `system:anonymous`."""
    request_timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds that a request may take; watches are exempt."""
    max_requests_inflight: Annotated[int, Meta(ge=0)] = 400
    """How many reads may be under way at once, watches aside, and half as many of one user; 0 is no limit."""
    max_mutating_requests_inflight: Annotated[int, Meta(ge=0)] = 200
    """The same for writes."""
    max_connections: Annotated[int, Meta(gt=0)] = 10_000
    """How many connections users may have in all, one for each watch among them; fewer where the process may not open
    as many files."""
    max_connections_per_user: Annotated[int, Meta(gt=0)] = 2_000
    """The same for one user; `system:masters` have no limit."""
    service_cluster_ip_range: str = "10.0.0.0/24"
    """Where the addresses of Services come from."""
    service_account_issuer: str = "https://kubernetes.default.svc.cluster.local"
    """Who signs the tokens of service accounts."""
    service_account_signing_key_file: str = ""
    """The key that they are signed with; without one, it is made below the data folder."""
    service_account_key_files: list[str] = field(default_factory=list)
    """Keys that tokens are known by beside that one, private or public: those of yesterday, or of tomorrow."""
    api_audiences: list[str] = field(default_factory=list)
    """What tokens for this server may name as their audience; the issuer unless given."""
    audit_log_path: str = ""
    """Where to write down who asked for what; `-` is stderr."""
    audit_policy_file: str = ""
    """What of it: a Policy of audit.k8s.io/v1.  Without one, everything is, but for the bodies."""
    audit_log_maxsize: Annotated[int, Meta(ge=0)] = 100
    """The size in MiB at which the audit log is moved away; 0 is never."""
    audit_log_maxbackup: Annotated[int, Meta(ge=0)] = 0
    """How many that were moved away are kept; 0 is all."""
    controllers: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of the controllers that run beside the server; one that begins with `-` takes away again.
    `none` leaves them to a kube-controller-manager."""
    history_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """For how long watches and pages can go back."""
    tls: Tls = Tls()
    kubelet: KubeletClientConfig = KubeletClientConfig()
    log_level: Level = "info"
    log_format: Format = "auto"
