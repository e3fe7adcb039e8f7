"""Configuration options of the API server."""

from typing import Annotated, Literal

from msgspec import Meta, field

from tapestry.process.config import Section
from tapestry.process.logs import Format, Level


class Tls(Section, frozen=True):
    """TLS certificate of the server. Without one, a CA and a certificate are created in the data folder."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    """File with the CAs whose client certificates are trusted."""


class KubeletClientConfig(Section, frozen=True):
    """Credentials with which the server connects to kubelets."""

    client_certificate: str = ""
    """File with the client certificate that the server presents to kubelets."""
    client_key: str = ""
    certificate_authority: str = ""
    """File with the CAs of kubelet serving certificates. Without it, these certificates are not verified."""


class Egress(Section, frozen=True):
    """Addresses to which the server connects because an object names them: webhooks, APIServices, nodes and pods."""

    strict: bool = False
    """Never connect to this machine, and to kubelets and pods only in `allowed_cidrs` and `proxy_allowed_cidrs`. For
    servers whose users are not trusted with the network of this machine."""
    allowed_cidrs: list[str] = field(default_factory=list)
    """Ranges that are allowed although another rule excludes them."""
    denied_cidrs: list[str] = field(default_factory=list)
    """Ranges that are never allowed, for example that of the API server of the cluster in which this one runs."""


class Etcd(Section, frozen=True):
    """Connection to etcd."""

    servers: list[str] = field(default_factory=list)
    """URLs of the etcd members."""
    cafile: str = ""
    """File with the CAs of the etcd serving certificates."""
    certfile: str = ""
    """File with the client certificate that the server presents to etcd."""
    keyfile: str = ""
    prefix: str = "/registry"
    """Prefix of all object keys in etcd."""


class ApiServerConfig(Section, frozen=True):
    """All options of `tapestry apiserver`."""

    backend: Literal["file", "etcd", "memory"] = "file"
    """Storage backend for objects."""
    etcd: Etcd = Etcd()
    file_rootpath: str = "tapestry-data"
    """Folder of the file backend. Certificates and signing keys are stored there too."""
    secure_address: str = "127.0.0.1:6443"
    """Address for HTTPS; empty disables HTTPS."""
    local_address: str = "127.0.0.1:6080"
    """Loopback address for plain HTTP; used only with `authn_allow_localhost`."""
    authn_allow_localhost: bool = False
    """Grant every client on this machine full access without credentials."""
    token_auth_file: str = ""
    """CSV file with tokens and their users."""
    authorization: Literal["RBAC", "AlwaysAllow"] = "RBAC"
    """Authorization mode: RBAC roles, or no restrictions."""
    pod_accounts: bool = True
    """Assign a service account and its token to each pod. Requires service accounts in every namespace."""
    unrestricted_update: bool = False
    """Allow creates and updates of an object to set its status too, except for CertificateSigningRequests."""
    managed_fields: Literal["Always", "AfterApply"] = "Always"
    """Track field owners of every object, or only of objects that were applied at least once."""
    kubectl_disabled: bool = False
    """Reject requests from kubectl."""
    kubectl_ephemeral_token: bool = False
    """Reject kubectl requests with tokens of the token file; only tokens that expire are accepted."""
    anonymous_auth: bool = True
    """Serve requests without credentials as `system:anonymous`."""
    request_timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds that a request may take; watches are exempt."""
    max_requests_inflight: Annotated[int, Meta(ge=0)] = 400
    """Maximum number of concurrent reads, without watches. One user gets half of it. 0 means no limit."""
    max_mutating_requests_inflight: Annotated[int, Meta(ge=0)] = 200
    """Maximum number of concurrent writes. One user gets half of it. 0 means no limit."""
    max_connections: Annotated[int, Meta(gt=0)] = 10_000
    """Maximum number of connections of all users, including one per watch. Lower if the open file limit is lower."""
    max_connections_per_user: Annotated[int, Meta(gt=0)] = 2_000
    """Maximum number of connections of one user; `system:masters` has no limit."""
    max_objects: Annotated[int, Meta(ge=0)] = 0
    """Maximum number of objects. 0 means no limit."""
    max_bytes: Annotated[int, Meta(ge=0)] = 0
    """Maximum size of all objects in bytes. Their history for watches may have a quarter of it. 0 means no limit."""
    max_watches: Annotated[int, Meta(ge=0)] = 0
    """Maximum number of open watches, followed logs and sessions. 0 means no limit."""
    strict_limits: bool = False
    """Apply the limits on requests, connections and sessions of all users also to `system:masters` and to probes."""
    max_sessions: Annotated[int, Meta(gt=0)] = 2_000
    """Maximum number of sessions of all users: exec, attach, port-forward and requests that are proxied to pods,
    services and nodes."""
    max_sessions_per_user: Annotated[int, Meta(gt=0)] = 200
    """Maximum number of sessions of one user; `system:masters` has no limit."""
    proxy_allowed_cidrs: list[str] = field(default_factory=list)
    """Ranges of pods to which requests may be proxied. By default, all addresses except those of nodes, of this
    machine and of cloud metadata services."""
    service_cluster_ip_range: str = "10.0.0.0/24"
    """Range from which cluster IPs of Services are allocated."""
    service_account_issuer: str = "https://kubernetes.default.svc.cluster.local"
    """Issuer of service account tokens."""
    service_account_signing_key_file: str = ""
    """Key that signs service account tokens. By default, a key is created in the data folder."""
    service_account_key_files: list[str] = field(default_factory=list)
    """Additional private or public keys that verify service account tokens, for key rotation."""
    api_audiences: list[str] = field(default_factory=list)
    """Accepted audiences of service account tokens; the issuer by default."""
    audit_log_path: str = ""
    """File of the audit log; `-` is stderr."""
    audit_policy_file: str = ""
    """Audit policy, a Policy of audit.k8s.io/v1. Without one, all requests are logged without bodies."""
    audit_log_maxsize: Annotated[int, Meta(ge=0)] = 100
    """Size in MiB at which the audit log is rotated; 0 disables rotation."""
    audit_log_maxbackup: Annotated[int, Meta(ge=0)] = 0
    """Number of rotated audit logs to keep; 0 keeps all."""
    controllers: list[str] = field(default_factory=lambda: ["*"])
    """Names and globs of the controllers that run with the server; a leading `-` excludes. `none` leaves them to a
    kube-controller-manager."""
    history_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds for which watches and paginated lists can read past revisions."""
    aggregation_allow_host: bool = False
    """Allow APIServices to forward requests to addresses of this machine, including loopback."""
    egress: Egress = Egress()
    tls: Tls = Tls()
    kubelet: KubeletClientConfig = KubeletClientConfig()
    log_level: Level = "info"
    log_format: Format = "auto"
