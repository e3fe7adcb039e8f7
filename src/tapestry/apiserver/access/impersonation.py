"""Impersonation: a request in the name of somebody else, by those who may `impersonate` them.

Each part of the other's identity is a right of its own: the user (or service account), each group, the UID, and each
value of each extra.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from msgspec import structs

from tapestry.apiserver import refusals
from tapestry.apiserver.access.authentication import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from tapestry.apiserver.requests import Call, Target, User
from tapestry.apiserver.rows import Row
from tapestry.apiserver.server import Attributes, Authorize
from tapestry.kube.errors import ServerError
from tapestry.kube.resources import Resource

PREFIX = "impersonate-"
USER, GROUP, UID, EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
ACCOUNT, ACCOUNTS = "system:serviceaccount:", "system:serviceaccounts"
AUTHENTICATION = "authentication.k8s.io"

Headers = Iterable[tuple[str, str]]
"""Names in lower case and values; a name may come more than once."""


def impersonated(call: Call, authorize: Authorize) -> Call:
    """The call as whoever it is made in the name of; raises Forbidden where its sender may not be them."""
    if not call.impersonates:
        return call
    name = next((value for header, value in call.impersonates if header == USER and value), "")
    if not name:
        wanted = [f"{header}: {value}" for header, value in call.impersonates]
        raise ServerError(500, "InternalError", f"requested {wanted} without impersonating a user")
    for part in parts(name, call.impersonates):
        if not authorize(Attributes(call.user, "impersonate", part)):
            raise refusals.forbidden(call.user.name, "impersonate", part)
    return structs.replace(call, user=assumed(name, call.impersonates), impersonates=())


def parts(name: str, headers: Headers) -> Iterator[Target]:
    """What has to be allowed, in terms of resources that there are none of."""
    account = account_of(name)
    yield thing("serviceaccounts", account[1], namespace=account[0]) if account else thing("users", name)
    for header, value in headers:
        if header == GROUP:
            yield thing("groups", value)
        elif header == UID:
            yield thing("uids", value, group=AUTHENTICATION)
        elif header.startswith(EXTRA):
            yield thing("userextras", value, group=AUTHENTICATION, subresource=key_of(header))


def assumed(name: str, headers: Headers) -> User:
    account = account_of(name)
    groups = [value for header, value in headers if header == GROUP]
    if not groups and account:
        groups = [ACCOUNTS, f"{ACCOUNTS}:{account[0]}"]
    if name == ANONYMOUS.name:
        groups += [UNAUTHENTICATED] if UNAUTHENTICATED not in groups else []
    elif not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
        groups.append(AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in headers:
        if header.startswith(EXTRA):
            extra[key_of(header)] = (*extra.get(key_of(header), ()), value)
    uid = next((value for header, value in headers if header == UID), "")
    return User(name, tuple(groups), uid, extra)


def account_of(name: str) -> tuple[str, str] | None:
    """The namespace and the name of a service account."""
    namespace, colon, own = name.removeprefix(ACCOUNT).partition(":")
    return (namespace, own) if name.startswith(ACCOUNT) and colon and namespace and own and ":" not in own else None


def key_of(header: str) -> str:
    return unquote(header.removeprefix(EXTRA))


def thing(plural: str, name: str, *, namespace: str = "", group: str = "", subresource: str = "") -> Target:
    row = Row(Resource(group, "v1", plural, plural, namespaced=bool(namespace)), plural, ())
    return Target(row, namespace, name, subresource)
