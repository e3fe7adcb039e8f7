"""What rights were used, and what was denied, by the audit of the API servers themselves."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tapestry.apis.permissions import Permission, Placeholder, single_permissions, with_names
from tapestry.kube.objects import value_at
from tapestry.local.kubernetes import ControlPlane

GRANTS = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


class Request(NamedTuple):
    """What somebody asked of an API server."""

    verb: str
    group: str
    kind: str
    """`pods`, `pods/status`"""
    namespace: str
    name: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, self.kind, f"{self.namespace}/{self.name}".strip("/"))))


@dataclass(frozen=True)
class Ledger:
    """The rights that were granted to one account in one cluster, and what it made of them."""

    who: str
    namespace: str
    account: str
    plane: ControlPlane
    rights: tuple[Permission, ...]
    places: Mapping[Placeholder, str]

    def granted(self) -> list[Permission]:
        return single_permissions(with_names(self.rights, self.places))

    def requests(self, *, refused: bool) -> set[Request]:
        """What the account asked for, as long as it had its rights: whoever takes them away does not wait for it."""
        user, found, has_them = f"system:serviceaccount:{self.namespace}:{self.account}", set(), True
        for request, by, code in audited(self.plane):
            if request.kind in GRANTS and request.name.startswith(self.account) and code < 300:
                has_them = request.verb != "delete"
            if by == user and has_them and (code == 403) == refused:
                found.add(request)
        return found

    def unused(self) -> list[Permission]:
        """Rights that no request needed.  Where several cover a request it is the narrowest that was needed."""
        granted, needed = self.granted(), set()
        for request in self.requests(refused=False):
            covering = [right for right in granted if covers(right, request)]
            narrowest = max(map(narrowness, covering), default=0)
            needed |= {right for right in covering if narrowness(right) == narrowest}
        return [right for right in granted if right not in needed]


def audited(plane: ControlPlane) -> Iterator[tuple[Request, str, int]]:
    """Each request for a resource, in the order of the answers: what, by whom, and the code of the answer."""
    for line in plane.audit_log.read_text().splitlines():
        entry = json.loads(line)
        about = entry.get("objectRef") or {}
        if "resource" in about:
            kind = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            place = about.get("namespace", ""), about.get("name", "")
            request = Request(entry["verb"], about.get("apiGroup", ""), kind, *place)
            yield request, entry["user"].get("username", ""), value_at(entry, "responseStatus", "code", default=0)


def covers(right: Permission, request: Request) -> bool:
    return (
        right.verbs == (request.verb,)
        and (right.resource.group, right.rule_resource) == (request.group, request.kind)
        and right.namespace in ("", request.namespace)
        and (not right.names or request.name in right.names)
    )


def narrowness(right: Permission) -> int:
    return bool(right.namespace) + 2 * bool(right.names)


def complaints(ledger: Ledger, spare: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the rights of an account: too few, too many, or excused in vain.

    `spare` has those that no request shows, each with the reason why they are granted all the same.
    """
    unused = list(map(str, ledger.unused()))
    yield from (f"{ledger.who}: denied: {request}" for request in sorted(ledger.requests(refused=True)))
    yield from (f"{ledger.who}: granted and never used: {right}" for right in unused if right not in spare)
    yield from (f"{ledger.who}: used, and not spare: {right}" for right in spare if right not in unused)
