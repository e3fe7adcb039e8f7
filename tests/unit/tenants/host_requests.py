"""Requests that a process of planes sends to a host cluster, by account, and the rights that they need."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from tapestry.apis.permissions import Permission, single_permissions
from tapestry.client.access import Access
from tapestry.client.http_connection import HttpConnection
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import Request, Response
from tapestry.manager.connectivity import claims_of
from tapestry.streams.upgrade import Headers, UpgradeResponse
from tapestry.tenants.host_objects import ACCOUNT
from tapestry.tenants.host_rights import HOST_ACCOUNT

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
PATH = re.compile(
    r"/api(?:s/(?P<group>[^/]+))?/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<kind>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)
DENIALS = re.compile(rb"cannot |ValidatingAdmissionPolicy")
"""Texts of 403 responses for a lack of rights. Others are about quotas or Pod Security."""


class Use(NamedTuple):
    """A request of an account for a resource."""

    account: str
    verb: str
    group: str
    resource: str
    """`pods`, `pods/log`"""
    namespace: str
    name: str


@dataclass
class HostRequests:
    """The requests of all accounts. `connect` is that of `run_tenants`."""

    uses: set[Use] = field(default_factory=set)
    denied: set[Use] = field(default_factory=set)

    def connect(self, access: Access) -> HttpTransport:
        return RecordingTransport(access, self)

    def record(self, account: str, request: Request, status: int, body: bytes = b"") -> None:
        if (use := use_of(account, request)) is None:
            return
        if status == 403 and (not body or DENIALS.search(body)):
            self.denied.add(use)
        elif status != 401:
            self.uses.add(use)

    def unused(self, account: str, rights: Iterable[Permission]) -> list[str]:
        """Return the rights of an account that no request has needed."""
        uses = [each for each in self.uses if each.account == account]
        return [str(each) for each in single_permissions(rights) if not any(covers(each, use) for use in uses)]


class RecordingTransport(HttpTransport):
    """A transport that records its requests."""

    def __init__(self, access: Access, requests: HostRequests) -> None:
        super().__init__(access)
        self._credentials, self._requests = access.credentials, requests

    async def _account(self) -> str:
        subject = str(claims_of(await self._credentials.headers()).get("sub", ""))
        return subject.rpartition(":")[2]

    async def send(self, request: Request) -> Response:
        response = await super().send(request)
        self._requests.record(await self._account(), request, response.status, response.body)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[HttpConnection]:
        async with super().stream(request) as connection:
            self._requests.record(await self._account(), request, connection.status)
            yield connection

    async def upgrade(self, request: Request, query: Sequence[tuple[str, str]], headers: Headers) -> UpgradeResponse:
        response = await super().upgrade(request, query, headers)
        self._requests.record(await self._account(), request, response.status)
        return response


def use_of(account: str, request: Request) -> Use | None:
    """Return what a request uses; None if it is not for a resource, or not of an account of ours."""
    found = PATH.fullmatch(request.path.partition("?")[0])
    if found is None or account not in (ACCOUNT, HOST_ACCOUNT):
        return None
    is_watch = request.query.get("watch") in ("true", "1")
    verb = VERBS.get(request.method) or ("watch" if is_watch else "get" if found["name"] else "list")
    resource = "/".join(filter(None, (found["kind"], found["subresource"])))
    return Use(account, verb, found["group"] or "", resource, found["namespace"] or "", found["name"] or "")


def covers(right: Permission, use: Use) -> bool:
    return (
        right.verbs == (use.verb,)
        and (right.resource.group, right.rule_resource) == (use.group, use.resource)
        and right.namespace in ("", use.namespace)
        and (not right.names or use.name in right.names)
    )


def described(uses: Iterable[Use]) -> Iterator[str]:
    return (" ".join(filter(None, each)) for each in sorted(uses))
