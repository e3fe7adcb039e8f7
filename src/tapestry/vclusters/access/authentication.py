"""Authentication of callers of the service: access keys, and client certificates of the management API."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tapestry.apis.projects import AccessKeySpec, ProjectSpec
from tapestry.apiserver.core.requests import MASTERS_GROUP, User
from tapestry.vclusters.access.keys import is_valid, parse_key
from tapestry.vclusters.access.roles import Caller, roles_in_projects, scopes_of
from tapestry.vclusters.errors import ServiceError, unauthenticated

BEARER = "bearer "
PLATFORM_ADMIN_GROUPS = frozenset({MASTERS_GROUP, "tapestry:platform-admins"})
"""Groups of the management API whose members are platform admins."""


Subject = Mapping[str, Sequence[str]]
"""Subject, serial number and chain of a client certificate, as the API server has them in its Credentials."""


class Credentials(NamedTuple):
    """Credentials of a request, which nothing has verified yet, except that a certificate is one of its CA."""

    authorization: str = ""
    """Value of the header Authorization."""
    certificate: Subject | None = None


@dataclass(frozen=True)
class Authenticator:
    """Identifies callers by the state of the management API in the caches of this process."""

    access_key: Callable[[str], AccessKeySpec | None]
    """Return an access key by its id."""
    projects: Callable[[], Iterable[tuple[str, ProjectSpec]]]
    certificate_user: Callable[[Subject], User | None]
    """Return the user of a certificate, or None if it is revoked or its CA is no longer trusted."""
    now: Callable[[], datetime]
    record_use: Callable[[str], None]
    """Note the use of a valid access key, by its id."""
    anonymous: Caller | None = None
    """Caller without credentials. Only a listener for clients on this machine has one."""

    def authenticate(self, credentials: Credentials) -> Caller:
        """Return the caller. Raises ServiceError. Wrong credentials are never ignored in favor of others."""
        if credentials.authorization:
            return self._key_holder(credentials.authorization)
        if credentials.certificate is not None:
            return self._certificate_holder(credentials.certificate)
        if self.anonymous is not None:
            return self.anonymous
        raise unauthenticated("present an access key as `Authorization: Bearer KEY`, or a client certificate")

    def _certificate_holder(self, certificate: Subject) -> Caller:
        user = self.certificate_user(certificate)
        if user is None:
            raise unauthenticated("the client certificate is not valid, or has been revoked")
        return Caller(
            user.name,
            f"certificate:{certificate['sha256'][0]}",
            not PLATFORM_ADMIN_GROUPS.isdisjoint(user.groups),
            roles_in_projects(self.projects(), user.name, user.groups),
        )

    def _key_holder(self, authorization: str) -> Caller:
        presented = parse_key(authorization[len(BEARER) :]) if authorization[: len(BEARER)].lower() == BEARER else None
        key = self.access_key(presented.id) if presented is not None else None
        if presented is None or key is None or not is_valid(presented, key.secret_sha256, key.expire_time, self.now()):
            raise invalid_key()
        self.record_use(presented.id)
        roles = {} if key.platform_admin else roles_in_projects(self.projects(), key.principal, ())
        return Caller(key.principal, f"key:{presented.id}", key.platform_admin, roles, scopes_of(key))


def invalid_key() -> ServiceError:
    """Return the same error for a key that never was, that has expired, and whose secret is wrong."""
    return unauthenticated("the access key is not valid, or has expired")
