"""Server address and credentials of one API server, built from the entries of a kubeconfig."""

import base64
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from tapestry.client.addresses import AddressPolicy
from tapestry.client.credentials import (
    AuthorizationSource,
    Credentials,
    StaticAuthorization,
    TokenFile,
    basic_header,
    bearer_header,
    has_control_characters,
)
from tapestry.client.errors import CredentialsError, KubeconfigError
from tapestry.client.exec_plugin import ExecPlugin, ExecSpec
from tapestry.client.kubeconfig_entries import Cluster, Entry, Kubeconfig, User, find_entry, known_names, quoted_name
from tapestry.client.tls import KeyPair, Pem, ServerVerification, TlsContextSource
from tapestry.client.urls import host_name, http_proxy_url, server_url

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
EXEC_CONFIG = "client.authentication.k8s.io/exec"
"""Name of the cluster extension that exec plugins receive."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an API server and the credentials for it.

    `server` is a URL without a trailing slash; a path in it is a prefix of every API path.  `tls_server_name` replaces
    the host of `server` in SNI and certificate verification.  `impersonation` holds headers for every request, in
    order; `Impersonate-Group` may occur several times.
    """

    server: str
    credentials: Credentials = field(default_factory=Credentials)
    namespace: str = "default"
    verification: ServerVerification = field(default_factory=ServerVerification)
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)  # may hold a password
    impersonation: tuple[tuple[str, str], ...] = ()
    address_policy: AddressPolicy | None = None
    """Addresses that connections may use.  None allows any."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CredentialEnvironment:
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now


def access_from_kubeconfig(merged: Kubeconfig, context: str | None, environment: CredentialEnvironment) -> Access:
    name = context or merged.current_context
    if not name:
        raise KubeconfigError(f"current-context: not set; choose one of {known_names(merged.contexts)}")
    chosen = find_entry(merged.contexts, name, "context" if context else "current-context")
    namespace = chosen.value.namespace or "default"
    if not NAMESPACE.fullmatch(namespace):
        raise KubeconfigError(f"{chosen.origin}.namespace: {quoted_name(namespace)} cannot be the name of a namespace")
    cluster = find_entry(merged.clusters, chosen.value.cluster, f"{chosen.origin}.cluster")
    anonymous = Entry(User(), chosen.origin, chosen.directory)
    user = find_entry(merged.users, chosen.value.user, f"{chosen.origin}.user") if chosen.value.user else anonymous
    return access_from_entries(cluster, user, namespace, environment)


def access_from_entries(
    cluster: Entry[Cluster], user: Entry[User], namespace: str, environment: CredentialEnvironment
) -> Access:
    server = server_url(cluster.value.server, f"{cluster.origin}.server")
    trust = server_verification(cluster)
    tls = (
        TlsContextSource(trust, key_pair_of(user), monotonic=environment.monotonic)
        if server.startswith("https:")
        else None
    )
    name, proxy = cluster.value.tls_server_name, cluster.value.proxy_url
    return with_loaded_certificates(
        Access(
            server,
            Credentials(authorization_source(user, cluster, environment), tls),
            namespace,
            trust,
            host_name(name, f"{cluster.origin}.tls-server-name") if name else None,
            http_proxy_url(proxy, f"{cluster.origin}.proxy-url") if proxy else None,
            impersonation_of(user),
        )
    )


def with_loaded_certificates(access: Access) -> Access:
    """Return `access`.  Raise now, not at the first request, if its certificates do not load."""
    try:
        access.credentials.ssl_context()
    except CredentialsError as error:
        raise KubeconfigError(str(error)) from None
    return access


def server_verification(cluster: Entry[Cluster]) -> ServerVerification:
    part = cluster.value
    authority = pem_of(cluster, "certificate-authority", part.certificate_authority, part.certificate_authority_data)
    if authority and part.insecure_skip_tls_verify:
        raise KubeconfigError(f"{cluster.origin}.insecure-skip-tls-verify: true makes the authority useless; drop one")
    return ServerVerification(authority, part.insecure_skip_tls_verify)


def key_pair_of(user: Entry[User]) -> KeyPair | None:
    part = user.value
    certificate = pem_of(user, "client-certificate", part.client_certificate, part.client_certificate_data)
    key = pem_of(user, "client-key", part.client_key, part.client_key_data)
    if certificate and key:
        return KeyPair(certificate, key)
    if certificate or key:
        missing = "client-key" if certificate else "client-certificate"
        raise KubeconfigError(f"{user.origin}.{missing}: not set; a certificate and its key go together")
    return None


def pem_of(kubeconfig_entry: Entry[Any], name: str, file: str, data: str) -> Pem | None:
    if file and data:
        raise KubeconfigError(f"{kubeconfig_entry.origin}.{name}: given in {name}-data too; keep one")
    if file:
        return Pem(f"{kubeconfig_entry.origin}.{name}", kubeconfig_entry.directory / file)
    if not data:
        return None
    try:
        return Pem(f"{kubeconfig_entry.origin}.{name}-data", base64.b64decode("".join(data.split()), validate=True))
    except ValueError:
        raise KubeconfigError(f"{kubeconfig_entry.origin}.{name}-data: not base64") from None


def authorization_source(
    user: Entry[User], cluster: Entry[Cluster], environment: CredentialEnvironment
) -> AuthorizationSource:
    """Return the source of the Authorization header.  An exec plugin is the last choice, as in kubectl."""
    part, origin = user.value, user.origin
    for name, text in (("token", part.token), ("username", part.username), ("password", part.password)):
        if has_control_characters(text):
            raise KubeconfigError(f"{origin}.{name}: has control characters")
    if part.auth_provider is not None:
        raise KubeconfigError(f"{origin}.auth-provider: not supported, as in kubectl since 1.26; use exec")
    if (part.token or part.token_file) and (part.username or part.password):
        raise KubeconfigError(f"{origin}: both a token and a username or password; keep one")
    if part.token_file:
        path = user.directory / part.token_file
        return TokenFile(path, f"{origin}.tokenFile", fallback=part.token, monotonic=environment.monotonic)
    if part.token:
        return StaticAuthorization(bearer_header(part.token))
    if part.username or part.password:
        return StaticAuthorization(basic_header(part.username, part.password))
    return build_exec_plugin(part.exec, user, cluster, environment) if part.exec else StaticAuthorization(None)


def build_exec_plugin(
    spec: ExecSpec, user: Entry[User], cluster: Entry[Cluster], environment: CredentialEnvironment
) -> ExecPlugin:
    if os.sep in spec.command:
        spec = msgspec.structs.replace(spec, command=str(user.directory / spec.command))
    return ExecPlugin(
        spec,
        f"{user.origin}.exec",
        cluster=partial(exec_cluster_info, cluster),
        environ=environment.environ,
        monotonic=environment.monotonic,
        now=environment.now,
    )


def exec_cluster_info(cluster: Entry[Cluster]) -> dict[str, Any]:
    """Return the server information for an exec plugin, with the current certificate authority."""
    part = cluster.value
    authority = server_verification(cluster).authority
    info = {
        "server": part.server,
        "tls-server-name": part.tls_server_name,
        "insecure-skip-tls-verify": part.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority.read()).decode() if authority else "",
        "proxy-url": part.proxy_url,
        "config": next((each.extension for each in part.extensions if each.name == EXEC_CONFIG), None),
    }
    return {key: value for key, value in info.items() if value}


def impersonation_of(user: Entry[User]) -> tuple[tuple[str, str], ...]:
    part, origin = user.value, user.origin
    headers = [("as", "Impersonate-User", part.as_user)] if part.as_user else []
    headers += [("as-uid", "Impersonate-Uid", part.as_uid)] if part.as_uid else []
    headers += [(f"as-groups[{index}]", "Impersonate-Group", each) for index, each in enumerate(part.as_groups)]
    for key, values in part.as_user_extra.items():
        header = f"Impersonate-Extra-{quote(key, safe='')}"
        headers += [("as-user-extra", header, each) for each in values]
    if headers and not part.as_user:
        raise KubeconfigError(f"{origin}.{headers[0][0]}: no user is impersonated; set `as`")
    for name, _, text in headers:
        if not text.strip() or has_control_characters(text):
            raise KubeconfigError(f"{origin}.{name}: empty, or has control characters")
    return tuple((header, text) for _, header, text in headers)
