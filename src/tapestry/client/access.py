"""Where an API server is and what lets us in: the one value that a connection is made from.

`access_in` makes it of the entries of a kubeconfig.
"""

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

from tapestry.client.addresses import AddressRule
from tapestry.client.credentials import Credentials, Fixed, Source, TokenFile, basic, bearer, has_control_characters
from tapestry.client.entries import Cluster, Entry, Kubeconfig, User, entry, known, shown
from tapestry.client.errors import CredentialsError, KubeconfigError
from tapestry.client.exec_plugin import ExecPlugin, ExecSpec
from tapestry.client.tls import KeyPair, Pem, Tls, Trust
from tapestry.client.urls import host_name, http_proxy_url, server_url

NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
EXEC_CONFIG = "client.authentication.k8s.io/exec"
"""The extension of a cluster that is meant for the programs of its users."""


@dataclass(frozen=True, slots=True)
class Access:
    """`server` is a URL without a trailing slash; a path in it stands before every path of the API.

    `tls_server_name` is the name to ask for and to verify in place of the host of `server`.  `impersonation` are
    headers to send with every request, in order; `Impersonate-Group` may come several times.
    """

    server: str
    credentials: Credentials = field(default_factory=Credentials)
    namespace: str = "default"
    trust: Trust = field(default_factory=Trust)
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)  # may hold a password
    impersonation: tuple[tuple[str, str], ...] = ()
    addresses: AddressRule | None = None
    """Addresses that connections may be made to; any, if None."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What credentials need of the process they live in."""

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now


def access_in(merged: Kubeconfig, context: str | None, around: Surroundings) -> Access:
    name = context or merged.current_context
    if not name:
        raise KubeconfigError(f"current-context: not set; choose one of {known(merged.contexts)}")
    chosen = entry(merged.contexts, name, "context" if context else "current-context")
    namespace = chosen.part.namespace or "default"
    if not NAMESPACE.fullmatch(namespace):
        raise KubeconfigError(f"{chosen.origin}.namespace: {shown(namespace)} cannot be the name of a namespace")
    cluster = entry(merged.clusters, chosen.part.cluster, f"{chosen.origin}.cluster")
    nobody = Entry(User(), chosen.origin, chosen.directory)
    user = entry(merged.users, chosen.part.user, f"{chosen.origin}.user") if chosen.part.user else nobody
    return access_of(cluster, user, namespace, around)


def access_of(cluster: Entry[Cluster], user: Entry[User], namespace: str, around: Surroundings) -> Access:
    server = server_url(cluster.part.server, f"{cluster.origin}.server")
    trust = trust_of(cluster)
    tls = Tls(trust, key_pair_of(user), monotonic=around.monotonic) if server.startswith("https:") else None
    name, proxy = cluster.part.tls_server_name, cluster.part.proxy_url
    return usable(
        Access(
            server,
            Credentials(source_of(user, cluster, around), tls),
            namespace,
            trust,
            host_name(name, f"{cluster.origin}.tls-server-name") if name else None,
            http_proxy_url(proxy, f"{cluster.origin}.proxy-url") if proxy else None,
            impersonation_of(user),
        )
    )


def usable(access: Access) -> Access:
    """`access` itself: certificates that do not load are said now and not at the first request."""
    try:
        access.credentials.ssl_context()
    except CredentialsError as error:
        raise KubeconfigError(str(error)) from None
    return access


def trust_of(cluster: Entry[Cluster]) -> Trust:
    part = cluster.part
    authority = pem(cluster, "certificate-authority", part.certificate_authority, part.certificate_authority_data)
    if authority and part.insecure_skip_tls_verify:
        raise KubeconfigError(f"{cluster.origin}.insecure-skip-tls-verify: true makes the authority useless; drop one")
    return Trust(authority, part.insecure_skip_tls_verify)


def key_pair_of(user: Entry[User]) -> KeyPair | None:
    part = user.part
    certificate = pem(user, "client-certificate", part.client_certificate, part.client_certificate_data)
    key = pem(user, "client-key", part.client_key, part.client_key_data)
    if certificate and key:
        return KeyPair(certificate, key)
    if certificate or key:
        missing = "client-key" if certificate else "client-certificate"
        raise KubeconfigError(f"{user.origin}.{missing}: not set; a certificate and its key go together")
    return None


def pem(found: Entry[Any], name: str, file: str, data: str) -> Pem | None:
    if file and data:
        raise KubeconfigError(f"{found.origin}.{name}: given in {name}-data too; keep one")
    if file:
        return Pem(f"{found.origin}.{name}", found.directory / file)
    if not data:
        return None
    try:
        return Pem(f"{found.origin}.{name}-data", base64.b64decode("".join(data.split()), validate=True))
    except ValueError:
        raise KubeconfigError(f"{found.origin}.{name}-data: not base64") from None


def source_of(user: Entry[User], cluster: Entry[Cluster], around: Surroundings) -> Source:
    """Where the Authorization header comes from; a program is the last resort, as for kubectl."""
    part, origin = user.part, user.origin
    for name, text in (("token", part.token), ("username", part.username), ("password", part.password)):
        if has_control_characters(text):
            raise KubeconfigError(f"{origin}.{name}: has control characters")
    if part.auth_provider is not None:
        raise KubeconfigError(f"{origin}.auth-provider: not supported, as in kubectl since 1.26; use exec")
    if (part.token or part.token_file) and (part.username or part.password):
        raise KubeconfigError(f"{origin}: both a token and a username or password; keep one")
    if part.token_file:
        path = user.directory / part.token_file
        return TokenFile(path, f"{origin}.tokenFile", fallback=part.token, monotonic=around.monotonic)
    if part.token:
        return Fixed(bearer(part.token))
    if part.username or part.password:
        return Fixed(basic(part.username, part.password))
    return exec_plugin(part.exec, user, cluster, around) if part.exec else Fixed(None)


def exec_plugin(spec: ExecSpec, user: Entry[User], cluster: Entry[Cluster], around: Surroundings) -> ExecPlugin:
    if os.sep in spec.command:
        spec = msgspec.structs.replace(spec, command=str(user.directory / spec.command))
    return ExecPlugin(
        spec,
        f"{user.origin}.exec",
        cluster=partial(exec_cluster, cluster),
        environ=around.environ,
        monotonic=around.monotonic,
        now=around.now,
    )


def exec_cluster(cluster: Entry[Cluster]) -> dict[str, Any]:
    """What a program may be told about the server, with the authority as it is now."""
    part = cluster.part
    authority = trust_of(cluster).authority
    about = {
        "server": part.server,
        "tls-server-name": part.tls_server_name,
        "insecure-skip-tls-verify": part.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority.read()).decode() if authority else "",
        "proxy-url": part.proxy_url,
        "config": next((each.extension for each in part.extensions if each.name == EXEC_CONFIG), None),
    }
    return {key: value for key, value in about.items() if value}


def impersonation_of(user: Entry[User]) -> tuple[tuple[str, str], ...]:
    part, origin = user.part, user.origin
    wanted = [("as", "Impersonate-User", part.as_user)] if part.as_user else []
    wanted += [("as-uid", "Impersonate-Uid", part.as_uid)] if part.as_uid else []
    wanted += [(f"as-groups[{index}]", "Impersonate-Group", each) for index, each in enumerate(part.as_groups)]
    for key, values in part.as_user_extra.items():
        header = f"Impersonate-Extra-{quote(key, safe='')}"
        wanted += [("as-user-extra", header, each) for each in values]
    if wanted and not part.as_user:
        raise KubeconfigError(f"{origin}.{wanted[0][0]}: nobody is impersonated; set as")
    for name, _, text in wanted:
        if not text.strip() or has_control_characters(text):
            raise KubeconfigError(f"{origin}.{name}: empty, or has control characters")
    return tuple((header, text) for _, header, text in wanted)
