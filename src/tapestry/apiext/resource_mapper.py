"""Resources of the API server, found by the names that users write."""

import fnmatch
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tapestry.apiext.errors import bad_request, not_found
from tapestry.client.client import Client
from tapestry.client.discovery import Served, discovered_resources
from tapestry.client.transport import Transport
from tapestry.kube.errors import NotFound
from tapestry.kube.resources import Resource

REQUIRED_VERBS = frozenset({"list", "get"})
VERBS = ("list", "get", "watch", "create", "update", "patch", "delete")
CACHE_SECONDS = 60.0
"""Seconds that known names are cached; an unknown name is looked up at once."""

ServedResources = Mapping[Resource, Served]


class ResourceMapper:
    """Resources of the server that match `patterns`, discovered with the caller's credentials."""

    def __init__(self, patterns: Sequence[str] = ("*",), monotonic: Callable[[], float] = time.monotonic) -> None:
        self._patterns = patterns
        self._monotonic = monotonic
        self._served: ServedResources = {}
        self._expires_at = float("-inf")

    async def all(self, api: Transport) -> ServedResources:
        """Discover the resources again; return them with their verbs and short names."""
        found = await discovered_resources(Client(api), skip_unavailable=True)
        self._served = {
            each: served for each, served in found.items() if served.verbs >= REQUIRED_VERBS and self._matches(each)
        }
        self._expires_at = self._monotonic() + CACHE_SECONDS
        return self._served

    async def find(self, name: str, api: Transport) -> Resource:
        """Return the resource of that name; raise NotFound with a hint if there is none."""
        if self._monotonic() < self._expires_at:
            try:
                return resource_named(name, self._served)
            except NotFound:  # it may have been added since
                pass
        return resource_named(name, await self.all(api))

    def _matches(self, resource: Resource) -> bool:
        return any(
            fnmatch.fnmatchcase(name, each) for each in self._patterns for name in (resource.plural, resource.name)
        )


def resource_named(name: str, served: ServedResources) -> Resource:
    """Find `users`, `user`, `User`, `users.example.com` or a short name; the core group wins if it is ambiguous."""
    named = [each for each in served if name in (each.name, each.plural) or name.lower() == each.kind.lower()]
    found = named or [each for each, info in served.items() if name in info.short_names]
    exact = [each for each in found if each.name == name]
    match exact or [each for each in found if not each.group] or found:
        case []:
            raise not_found(f"no kind {name!r}; /apiext/v1 lists the available kinds")
        case [one]:
            return one
        case several:
            names = " or ".join(sorted(each.name for each in several))
            raise bad_request(f"kind {name!r} is ambiguous; use {names}")


def shortest_name(resource: Resource, served: Iterable[Resource]) -> str:
    """Return the plural, or the full name if several groups share the plural."""
    same_plural = [each for each in served if each.plural == resource.plural]
    return resource.plural if same_plural == [resource] or not resource.group else resource.name
