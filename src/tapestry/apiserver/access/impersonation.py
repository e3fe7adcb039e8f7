"""Impersonation: requests on behalf of another user, authorized by the verb `impersonate`.

Each part of the identity is authorized separately: the user or service account, each group, the UID, and each value
of each extra key.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from msgspec import structs

from tapestry.apiserver.access.authentication import ANONYMOUS_USER, AUTHENTICATED, UNAUTHENTICATED
from tapestry.apiserver.core.requests import Attributes, Authorize, Call, Target, User, forbidden_resource
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.kube.errors import ServerError
from tapestry.kube.resources import Resource

HEADER_PREFIX = "impersonate-"
USER_HEADER, GROUP_HEADER, UID_HEADER, EXTRA_HEADER_PREFIX = (
    "impersonate-user",
    "impersonate-group",
    "impersonate-uid",
    "impersonate-extra-",
)
SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS_GROUP = "system:serviceaccount:", "system:serviceaccounts"
AUTHENTICATION_GROUP = "authentication.k8s.io"

Headers = Iterable[tuple[str, str]]
"""Header names in lower case and values; names may repeat."""


def impersonate(call: Call, authorize: Authorize) -> Call:
    """Return the call as the impersonated user. Raises Forbidden if the sender may not impersonate it."""
    if not call.impersonation_headers:
        return call
    name = next((value for header, value in call.impersonation_headers if header == USER_HEADER and value), "")
    if not name:
        requested = [f"{header}: {value}" for header, value in call.impersonation_headers]
        raise ServerError(500, "InternalError", f"requested {requested} without impersonating a user")
    for part in impersonation_targets(name, call.impersonation_headers):
        if not authorize(Attributes(call.user, "impersonate", part)):
            raise forbidden_resource(call.user.name, "impersonate", part)
    return structs.replace(call, user=impersonated_user(name, call.impersonation_headers), impersonation_headers=())


def impersonation_targets(name: str, headers: Headers) -> Iterator[Target]:
    """Yield the targets to authorize, as pseudo resources."""
    account = service_account_of(name)
    yield (
        identity_target("serviceaccounts", account[1], namespace=account[0])
        if account
        else identity_target("users", name)
    )
    for header, value in headers:
        if header == GROUP_HEADER:
            yield identity_target("groups", value)
        elif header == UID_HEADER:
            yield identity_target("uids", value, group=AUTHENTICATION_GROUP)
        elif header.startswith(EXTRA_HEADER_PREFIX):
            yield identity_target("userextras", value, group=AUTHENTICATION_GROUP, subresource=extra_key(header))


def impersonated_user(name: str, headers: Headers) -> User:
    account = service_account_of(name)
    groups = [value for header, value in headers if header == GROUP_HEADER]
    if not groups and account:
        groups = [SERVICE_ACCOUNTS_GROUP, f"{SERVICE_ACCOUNTS_GROUP}:{account[0]}"]
    if name == ANONYMOUS_USER.name:
        groups += [UNAUTHENTICATED] if UNAUTHENTICATED not in groups else []
    elif not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups.append(AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in headers:
        if header.startswith(EXTRA_HEADER_PREFIX):
            extra[extra_key(header)] = (*extra.get(extra_key(header), ()), value)
    uid = next((value for header, value in headers if header == UID_HEADER), "")
    return User(name, tuple(groups), uid, extra)


def service_account_of(name: str) -> tuple[str, str] | None:
    """Return the namespace and name of a service account, or None for other users."""
    namespace, colon, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return (
        (namespace, account)
        if name.startswith(SERVICE_ACCOUNT_PREFIX) and colon and namespace and account and ":" not in account
        else None
    )


def extra_key(header: str) -> str:
    return unquote(header.removeprefix(EXTRA_HEADER_PREFIX))


def identity_target(plural: str, name: str, *, namespace: str = "", group: str = "", subresource: str = "") -> Target:
    info = ResourceInfo(Resource(group, "v1", plural, plural, namespaced=bool(namespace)), plural, ())
    return Target(info, namespace, name, subresource)
