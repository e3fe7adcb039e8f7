"""Validation of kubeconfigs from Secrets, which are not trusted.

Such a kubeconfig may only contain a server address and inline credentials.  Fields that would run a program, read a
file, impersonate another user, or connect to anything but that server over verified TLS are rejected, in every entry of
the document and not only in those of the current context.  Unknown keys are rejected, too: they may be misspelled.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tapestry.client.access import (
    Access,
    CredentialEnvironment,
    access_from_kubeconfig,
    authorization_source,
    key_pair_of,
    server_verification,
)
from tapestry.client.addresses import AddressPolicy
from tapestry.client.errors import KubeconfigError
from tapestry.client.kubeconfig_entries import Cluster, Entry, User, parse_kubeconfig
from tapestry.client.strict_yaml import SAFE_KEY, StrictYamlError, parse_strict_yaml
from tapestry.client.urls import server_url

MAX_BYTES = 1 << 20

AllowedKeys = Mapping[str, "AllowedKeys | None"]
"""Allowed keys of an object.  The value holds the allowed keys of nested objects, or None for any value."""
EXTENSION_KEYS: AllowedKeys = {"name": None, "extension": None}
CLUSTER_KEYS: AllowedKeys = {
    **dict.fromkeys(("server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify")),
    **dict.fromkeys(("tls-server-name", "proxy-url", "disable-compression")),
    "extensions": EXTENSION_KEYS,
}
USER_KEYS: AllowedKeys = {
    **dict.fromkeys(("client-certificate", "client-certificate-data", "client-key", "client-key-data")),
    **dict.fromkeys(("token", "tokenFile", "username", "password", "exec", "auth-provider")),
    **dict.fromkeys(("as", "as-uid", "as-groups", "as-user-extra")),
    "extensions": EXTENSION_KEYS,
}
CONTEXT_KEYS: AllowedKeys = {**dict.fromkeys(("cluster", "user", "namespace")), "extensions": EXTENSION_KEYS}
CONFIG_KEYS: AllowedKeys = {
    **dict.fromkeys(("apiVersion", "kind", "current-context")),
    "preferences": {"colors": None, "extensions": EXTENSION_KEYS},
    "clusters": {"name": None, "cluster": CLUSTER_KEYS},
    "users": {"name": None, "user": USER_KEYS},
    "contexts": {"name": None, "context": CONTEXT_KEYS},
    "extensions": EXTENSION_KEYS,
}
"""The keys of kubectl's type Config."""


def strict_access(
    data: bytes, *, allow_insecure: bool = False, allow_loopback: bool = False, max_bytes: int = MAX_BYTES
) -> Access:
    """Return the access that a kubeconfig from a Secret gives.  No program is run, no file opened, no address dialed.

    `allow_insecure` allows plain HTTP and unverified TLS, which expose the credentials to the network.
    `allow_loopback` allows servers on this machine.  A connection made with the result checks the address that it
    dials.  Raise KubeconfigError naming the first field that is not allowed.
    """
    if len(data) > max_bytes:
        raise KubeconfigError(f"document: {len(data)} bytes are over {max_bytes}")
    try:
        document = parse_strict_yaml(data)
    except StrictYamlError as error:
        raise KubeconfigError(str(error)) from None
    config = parse_kubeconfig(document, origin="", directory=Path())
    check_keys(document, CONFIG_KEYS, "")
    addresses = AddressPolicy(allow_loopback)
    for cluster in config.clusters.values():
        check_cluster(cluster, addresses, allow_insecure)
    for user in config.users.values():
        check_user(user)
    return replace(access_from_kubeconfig(config, None, CredentialEnvironment()), address_policy=addresses)


def check_keys(value: Any, allowed: AllowedKeys, path: str) -> None:
    """Raise KubeconfigError for the first key that is not in `allowed`.  The decoder has checked the types."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_keys(item, allowed, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, child in value.items():
            place = f"{path}.{key if SAFE_KEY.fullmatch(key) else '?'}".lstrip(".")
            if key not in allowed:
                raise KubeconfigError(f"{place}: not a field of a kubeconfig; remove it")
            if (child_keys := allowed[key]) is not None:
                check_keys(child, child_keys, place)


def check_cluster(cluster: Entry[Cluster], addresses: AddressPolicy, allow_insecure: bool) -> None:
    part, origin = cluster.value, cluster.origin
    if part.certificate_authority:
        raise not_allowed_error(f"{origin}.certificate-authority", "use certificate-authority-data")
    if part.proxy_url:
        raise not_allowed_error(f"{origin}.proxy-url", "the server must be reachable directly")
    if part.insecure_skip_tls_verify and not allow_insecure:
        raise not_allowed_error(f"{origin}.insecure-skip-tls-verify", "use certificate-authority-data")
    server = server_url(part.server, f"{origin}.server")
    if problem := addresses.denial_reason(urlsplit(server).hostname or ""):
        hint = "; start the manager with --allow-loopback if this is intended" if "loopback" in problem else ""
        raise not_allowed_error(f"{origin}.server", f"it is {problem}{hint}")
    if not server.startswith("https:") and not allow_insecure:
        raise not_allowed_error(f"{origin}.server", "plain HTTP exposes the credentials; use https://")
    server_verification(cluster)


def check_user(user: Entry[User]) -> None:
    for field in forbidden_fields(user.value):
        raise not_allowed_error(f"{user.origin}.{field}", "use a token or inline certificates")
    key_pair_of(user)
    authorization_source(user, Entry(Cluster(), "", Path()), CredentialEnvironment())


def forbidden_fields(user: User) -> Iterator[str]:
    """Yield the set fields of `user` that would run a program, read a file or impersonate a user."""
    if user.exec is not None:
        yield "exec"
    if user.auth_provider is not None:
        yield "auth-provider"
    if user.client_certificate:
        yield "client-certificate"
    if user.client_key:
        yield "client-key"
    if user.token_file:
        yield "tokenFile"
    for name, value in (
        ("as", user.as_user),
        ("as-uid", user.as_uid),
        ("as-groups", user.as_groups),
        ("as-user-extra", user.as_user_extra),
    ):
        if value:
            yield name


def not_allowed_error(field: str, instead: str) -> KubeconfigError:
    return KubeconfigError(f"{field}: not allowed in a kubeconfig from a Secret; {instead}")
