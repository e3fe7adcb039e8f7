"""Used, unused and denied permissions, according to the audit logs of the API servers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tapestry.apis.permissions import Permission, Placeholder, single_permissions, with_names
from tapestry.kube.objects import value_at
from tapestry.local.kubernetes import ControlPlane

GRANTS = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


class Request(NamedTuple):
    """A request to an API server."""

    verb: str
    group: str
    kind: str
    """`pods`, `pods/status`"""
    namespace: str
    name: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.kind, f"{self.namespace}/{self.name}".strip("/"))))


@dataclass(frozen=True)
class PermissionAudit:
    """The permissions of one account in one cluster, and its requests."""

    label: str
    namespace: str
    account: str
    plane: ControlPlane
    permissions: tuple[Permission, ...]
    placeholders: Mapping[Placeholder, str]

    def granted(self) -> list[Permission]:
        return single_permissions(with_names(self.permissions, self.placeholders))

    def requests(self, *, refused: bool) -> set[Request]:
        """Return the requests of the account while its permissions existed. Later refusals are expected."""
        user, found, has_permissions = f"system:serviceaccount:{self.namespace}:{self.account}", set(), True
        for request, by, code in audited(self.plane):
            if request.kind in GRANTS and is_own_role(request.name, self.account) and code < 300:
                has_permissions = request.verb != "delete"
            if by == user and has_permissions and (code == 403) == refused:
                found.add(request)
        return found

    def unused(self) -> list[Permission]:
        """Return permissions that no request needed. If several cover a request, only the narrowest counts."""
        granted, needed = self.granted(), set()
        for request in self.requests(refused=False):
            covering = [permission for permission in granted if covers(permission, request)]
            narrowest = max(map(narrowness, covering), default=0)
            needed |= {permission for permission in covering if narrowness(permission) == narrowest}
        return [permission for permission in granted if permission not in needed]


def is_own_role(name: str, account: str) -> bool:
    """Return whether a role exists as long as the account has permissions. Those for nodes and pods have a suffix."""
    return name.startswith(account) and ":" not in name


def audited(plane: ControlPlane) -> Iterator[tuple[Request, str, int]]:
    """Yield each request for a resource with its user and status code, in the order of responses."""
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef") or {}
        if "resource" in reference:
            kind = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
            place = reference.get("namespace", ""), reference.get("name", "")
            request = Request(entry["verb"], reference.get("apiGroup", ""), kind, *place)
            yield request, entry["user"].get("username", ""), value_at(entry, "responseStatus", "code", default=0)


def covers(permission: Permission, request: Request) -> bool:
    return (
        permission.verbs == (request.verb,)
        and (permission.resource.group, permission.rule_resource) == (request.group, request.kind)
        and permission.namespace in ("", request.namespace)
        and (not permission.names or request.name in permission.names)
    )


def narrowness(permission: Permission) -> int:
    return bool(permission.namespace) + 2 * bool(permission.names)


def permission_errors(audit: PermissionAudit, exceptions: Mapping[str, str]) -> Iterator[str]:
    """Yield denied requests, unused permissions and needless exceptions of an account.

    `exceptions` maps permissions that no request shows to the reason for granting them.
    """
    unused = list(map(str, audit.unused()))
    denied = audit.requests(refused=True) - audit.requests(refused=False)  # some rights are granted a moment later
    yield from (f"{audit.label}: denied: {request}" for request in sorted(denied))
    yield from (
        f"{audit.label}: granted and never used: {permission}" for permission in unused if permission not in exceptions
    )
    yield from (
        f"{audit.label}: used, but listed as an exception: {permission}"
        for permission in exceptions
        if permission not in unused
    )
