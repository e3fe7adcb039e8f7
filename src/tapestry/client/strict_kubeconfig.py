"""Kubeconfigs out of a Secret: somebody else wrote them, and we run with rights of our own.

Such a kubeconfig may only say where a server is and hold credentials inline.  Whatever would make us run a program,
read a file, act as somebody else, or talk to anybody but that server over verified TLS is refused, in every entry of
the document and not only in those that the current context names.  So are keys that kubectl does not know: they may be
misspelled ones that matter.
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
"""Keys of an object.  Where the value is an object or a list of objects, what keys it may have; None for anything."""
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
    """The access that a kubeconfig out of a Secret gives.  Nothing is run, opened or dialled, whatever it says.

    `allow_insecure` admits plain HTTP and unverified TLS: both hand the credentials to whoever is on the way.
    `allow_loopback` admits servers on this machine.  A connection made with the result checks the address it dials.
    Raises KubeconfigError naming the first field that is not allowed.
    """
    if len(data) > max_bytes:
        raise KubeconfigError(f"document: {len(data)} bytes are over {max_bytes}")
    try:
        document = parse_strict_yaml(data)
    except StrictYamlError as error:
        raise KubeconfigError(str(error)) from None
    found = parse_kubeconfig(document, origin="", directory=Path())
    check_keys(document, CONFIG_KEYS, "")
    addresses = AddressPolicy(allow_loopback)
    for cluster in found.clusters.values():
        check_cluster(cluster, addresses, allow_insecure)
    for user in found.users.values():
        check_user(user)
    return replace(access_from_kubeconfig(found, None, CredentialEnvironment()), address_policy=addresses)


def check_keys(value: Any, allowed: AllowedKeys, path: str) -> None:
    """Raises KubeconfigError for the first key that is not `known`; what has another shape is for the decoder."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            check_keys(item, allowed, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, child in value.items():
            place = f"{path}.{key if SAFE_KEY.fullmatch(key) else '?'}".lstrip(".")
            if key not in allowed:
                raise KubeconfigError(f"{place}: not a field of a kubeconfig; remove it")
            if (inside := allowed[key]) is not None:
                check_keys(child, inside, place)


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
        hint = "; start the manager with --allow-loopback if it is meant" if "loopback" in problem else ""
        raise not_allowed_error(f"{origin}.server", f"it is {problem}{hint}")
    if not server.startswith("https:") and not allow_insecure:
        raise not_allowed_error(f"{origin}.server", "plain HTTP would show the credentials to everybody; use https://")
    server_verification(cluster)


def check_user(user: Entry[User]) -> None:
    for field in forbidden_fields(user.value):
        raise not_allowed_error(f"{user.origin}.{field}", "use a token or inline certificates")
    key_pair_of(user)
    authorization_source(user, Entry(Cluster(), "", Path()), CredentialEnvironment())


def forbidden_fields(user: User) -> Iterator[str]:
    """The fields of `user` that would run a program, read a file or act as somebody else."""
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
