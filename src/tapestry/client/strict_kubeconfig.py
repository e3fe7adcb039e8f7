"""Kubeconfigs out of a Secret: somebody else wrote them, and we run with rights of our own.

Such a kubeconfig may only say where a server is and hold credentials inline.  Whatever would make us run a program,
read a file, or talk to anybody but that server over verified TLS is refused, in every entry of the document and not
only in those that the current context names.
"""

from collections.abc import Iterator
from pathlib import Path

from tapestry.client.access import (
    Access,
    Surroundings,
    access_in,
    impersonation_of,
    key_pair_of,
    source_of,
    trust_of,
)
from tapestry.client.entries import Cluster, Entry, User, kubeconfig_in
from tapestry.client.errors import KubeconfigError
from tapestry.client.plain_yaml import PlainYamlError, plain_document
from tapestry.client.urls import server_url

MAX_BYTES = 1 << 20


def from_secret(data: bytes, *, allow_insecure: bool = False, max_bytes: int = MAX_BYTES) -> Access:
    """The access that a kubeconfig out of a Secret gives.  Nothing is run, opened or dialled, whatever it says.

    `allow_insecure` admits plain HTTP and unverified TLS: both hand the credentials to whoever is on the way.
    Raises KubeconfigError naming the first field that is not allowed.
    """
    if len(data) > max_bytes:
        raise KubeconfigError(f"document: {len(data)} bytes are over {max_bytes}")
    try:
        document = plain_document(data)
    except PlainYamlError as error:
        raise KubeconfigError(str(error)) from None
    found = kubeconfig_in(document, origin="", directory=Path())
    for cluster in found.clusters.values():
        check_cluster(cluster, allow_insecure)
    for user in found.users.values():
        check_user(user)
    return access_in(found, None, Surroundings())


def check_cluster(cluster: Entry[Cluster], allow_insecure: bool) -> None:
    part, origin = cluster.part, cluster.origin
    if part.certificate_authority:
        raise not_allowed(f"{origin}.certificate-authority", "use certificate-authority-data")
    if part.proxy_url:
        raise not_allowed(f"{origin}.proxy-url", "the server must be reachable directly")
    if part.insecure_skip_tls_verify and not allow_insecure:
        raise not_allowed(f"{origin}.insecure-skip-tls-verify", "use certificate-authority-data")
    if not server_url(part.server, f"{origin}.server").startswith("https:") and not allow_insecure:
        raise not_allowed(f"{origin}.server", "plain HTTP would show the credentials to everybody; use https://")
    trust_of(cluster)


def check_user(user: Entry[User]) -> None:
    for field in forbidden_fields(user.part):
        raise not_allowed(f"{user.origin}.{field}", "use a token or inline certificates")
    key_pair_of(user)
    impersonation_of(user)
    source_of(user, Entry(Cluster(), "", Path()), Surroundings())


def forbidden_fields(user: User) -> Iterator[str]:
    """The fields of `user` that would run a program or read a file."""
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


def not_allowed(field: str, instead: str) -> KubeconfigError:
    return KubeconfigError(f"{field}: not allowed in a kubeconfig from a Secret; {instead}")
