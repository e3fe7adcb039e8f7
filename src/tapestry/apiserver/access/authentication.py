"""Authentication of requests by token, client certificate, or loopback address.

An authenticator is a function from credentials to a user, or None if it does not recognize them. Unrecognized
credentials are rejected. A request without credentials is anonymous.
"""

import csv
import hashlib
import ipaddress
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import User
from tapestry.kube.objects import EMPTY_MAPPING

AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
KUBECTL_AGENT = "kubectl"
"""Prefix of the User-Agent of kubectl."""
ANONYMOUS_USER = User("system:anonymous", (UNAUTHENTICATED,))
LOCALHOST_USER = User("localhost", ("system:masters", AUTHENTICATED))
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
"""Extra key that identifies the credentials of a user in audit events."""
LOCAL_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
"""A Host header that names this machine."""
PROXY_HEADERS = frozenset({"forwarded", "via", "x-forwarded", "x-real-ip", "x-client-ip", "true-client-ip"})
SAME_ORIGIN_VALUES = ("none", "same-origin")
"""Values of Sec-Fetch-Site for requests that no other site has caused."""


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a request."""

    bearer_token: str = ""
    certificate: Mapping[str, Sequence[str]] = EMPTY_MAPPING
    """Subject of a verified client certificate (`commonName`, `organizationName`), its digest as `sha256`, its
    `serialNumber` in hexadecimal, `notBefore` in Unix time, and the digests of its `chain` up to the CA."""
    has_unknown_certificate: bool = False
    """True if there is an unverified certificate. It is ignored, but its owner is not anonymous."""
    peer: str = ""
    user_agent: str = ""
    headers: Mapping[str, str] = EMPTY_MAPPING
    """All headers of the request, with names in lower case."""


Authenticator = Callable[[Credentials], User | None]


@dataclass(frozen=True)
class UnionAuthenticator:
    """Try authenticators in order."""

    authenticators: Sequence[Authenticator]
    allow_anonymous: bool = True
    """Accept requests without credentials as anonymous."""

    def __call__(self, credentials: Credentials) -> User:
        """Return the user. Raises Unauthorized for credentials that no authenticator recognizes."""
        for authenticator in self.authenticators:
            user = authenticator(credentials)
            if user is not None:
                return user if AUTHENTICATED in user.groups else replace(user, groups=(*user.groups, AUTHENTICATED))
        has_certificate = credentials.has_unknown_certificate or "commonName" in credentials.certificate
        if credentials.bearer_token or has_certificate or not self.allow_anonymous:
            raise api_errors.unauthorized()
        return ANONYMOUS_USER

    def user_for_token(self, token: str) -> User | None:
        """Return the user of a token, or None if it is unknown."""
        credentials = Credentials(bearer_token=token)
        return next((user for each in self.authenticators if token and (user := each(credentials)) is not None), None)


def authenticate_certificate(credentials: Credentials) -> User | None:
    """Return the user of a verified client certificate: its last common name, as in Kubernetes, with its organizations
    as groups."""
    certificate = credentials.certificate
    names = certificate.get("commonName", ())
    if not names:
        return None
    digests = tuple(f"X509SHA256={each}" for each in certificate.get("sha256", ()))
    extra = {CREDENTIAL_ID: digests} if digests else {}
    return User(names[-1], tuple(certificate.get("organizationName", ())), extra=extra)


def authenticate_localhost(credentials: Credentials) -> User | None:
    """Trust a program on this machine.

    Requests from web pages are not trusted: they have an Origin, a Sec-Fetch-Site of another site, or a Host that is
    not this machine. Requests through a proxy are not trusted either, because their sender may be remote.
    """
    if credentials.bearer_token or not is_loopback(credentials.peer):
        return None
    headers = credentials.headers
    if not LOCAL_HOST.fullmatch(headers.get("host", "")) or headers.get("origin"):
        return None
    if headers.get("sec-fetch-site", "none").lower() not in SAME_ORIGIN_VALUES or is_proxied(headers):
        return None
    return LOCALHOST_USER


def is_proxied(headers: Mapping[str, str]) -> bool:
    """Return whether there is a header that proxies add."""
    return not PROXY_HEADERS.isdisjoint(headers) or "\nx-forwarded-" in "\n".join(("", *headers))


@lru_cache(maxsize=256)
def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class TokenFileError(ValueError):
    """The token file cannot be used; the message states the reason and the fix."""


@dataclass(frozen=True)
class StaticTokenAuthenticator:
    """Authenticate tokens of a token file."""

    users: Callable[[], Mapping[bytes, User]]
    """Users by token hash, so that the time of a lookup reveals nothing about other tokens."""
    rejects_kubectl: bool = False
    """Require kubectl to use a token that expires."""

    def __call__(self, credentials: Credentials) -> User | None:
        user = self.users().get(token_hash(credentials.bearer_token)) if credentials.bearer_token else None
        if user is not None and self.rejects_kubectl and credentials.user_agent.startswith(KUBECTL_AGENT):
            raise api_errors.ephemeral_token_required()
        return user


def token_hash(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape")).digest()


def load_token_file(path: Path) -> Mapping[bytes, User]:
    """Load tokens from a CSV file: token, user, uid, and optional groups in quotes. Only its owner may read it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except OSError as error:
        raise TokenFileError(f"{path}: cannot be read: {error.strerror}") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise TokenFileError(f"{path}: others may read it; `chmod 600 {path}` keeps its tokens secret")
    return {token_hash(token): user for token, user in parse_token_rows(csv.reader(text.splitlines()), path)}


def parse_token_rows(rows: Iterable[list[str]], path: Path) -> Iterable[tuple[str, User]]:
    for number, row in enumerate(rows, 1):
        fields = [each.strip() for each in row]
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) < 3 or not fields[0] or not fields[1]:
            raise TokenFileError(f'{path}: line {number}: expected token,user,uid[,"group,group"]')
        groups = tuple(each.strip() for each in ",".join(fields[3:]).split(",") if each.strip())
        yield fields[0], User(fields[1], (*groups, AUTHENTICATED), fields[2])
