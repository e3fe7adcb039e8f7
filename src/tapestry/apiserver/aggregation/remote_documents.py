"""Discovery and OpenAPI documents of other API servers.

A document is read on first use and again after 30 seconds. While its server is known to be unavailable, it is not
read, and discovery reports the last known resources as stale. So a broken server delays at most one reader, and only
until the next check of its APIService.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tapestry.apiserver.aggregation.api_services import ApiService, ApiServices
from tapestry.apiserver.aggregation.proxy import AggregationProxy
from tapestry.apiserver.core.codec import decode_json
from tapestry.apiserver.core.workers import run_if_large
from tapestry.kube.errors import ApiError, Unavailable
from tapestry.kube.objects import Object

DOCUMENT_TTL = 30.0
MAX_CONCURRENT_READS = 8
HASH = re.compile(r"[?&]hash=([0-9A-Za-z]{1,256})(?:&|$)")
REFERENCE = "#/definitions/"

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteGroupVersion:
    """A group version in aggregated discovery."""

    group: str
    version: str
    resources: list[Object] = field(default_factory=list)
    is_stale: bool = False


@dataclass(frozen=True)
class RemoteOpenApi:
    """OpenAPI of a group version."""

    group: str
    version: str
    v3_hash: str | None = None
    """Hash of the v3 document, possibly empty; None if the server has none."""
    v2: Object | None = None
    """Paths and definitions of the v2 document; None if the server has none."""


@dataclass(frozen=True)
class CacheEntry(Generic[T]):
    service: ApiService
    expires: float
    document: T


@dataclass(frozen=True)
class RemoteDocumentCache(Generic[T]):
    """One kind of documents, by the name of the APIService."""

    read: Callable[[ApiService, T | None], Awaitable[T]]
    """Read a document, given the previous one."""
    entries: dict[str, CacheEntry[T]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def documents(self, services: list[ApiService], now: Callable[[], float]) -> tuple[T, ...]:
        if not services:
            self.entries.clear()
            return ()
        async with self.lock:  # concurrent readers wait for the same documents
            for name in self.entries.keys() - {each.name for each in services}:
                del self.entries[name]
            outdated = iter([each for each in services if not self.is_current(each, now())])

            async def update_some() -> None:
                for each in outdated:
                    await self.update(each, now)

            async with asyncio.TaskGroup() as group:
                for _ in range(MAX_CONCURRENT_READS):
                    group.create_task(update_some())
            return tuple(self.entries[each.name].document for each in services)

    def is_current(self, service: ApiService, now: float) -> bool:
        entry = self.entries.get(service.name)
        return entry is not None and entry.service == service and now < entry.expires

    async def update(self, service: ApiService, now: Callable[[], float]) -> None:
        entry = self.entries.get(service.name)
        previous = entry.document if entry is not None else None
        document = await self.read(service, previous)
        if previous is not None and document == previous:
            document = previous  # documents that were built from it stay valid
        self.entries[service.name] = CacheEntry(service, now() + DOCUMENT_TTL, document)


class RemoteDocuments:
    """Documents of all forwarded group versions. A result is equal to the previous one if nothing has changed."""

    def __init__(self, services: ApiServices, proxy: AggregationProxy, clock: Callable[[], float]) -> None:
        self._services = services
        self._clock = clock
        reader = RemoteDocumentReader(proxy)
        self._discovery = RemoteDocumentCache(reader.group_version)
        self._openapi = RemoteDocumentCache(reader.openapi)

    def group_versions(self) -> list[tuple[str, str]]:
        """Return the group versions, without calling a server."""
        return [(each.group, each.version) for each in self._services]

    async def discovery(self) -> tuple[RemoteGroupVersion, ...]:
        return await self._discovery.documents(list(self._services), self._clock)

    async def openapi(self) -> tuple[RemoteOpenApi, ...]:
        return await self._openapi.documents(list(self._services), self._clock)


@dataclass(frozen=True)
class RemoteDocumentReader:
    """Read documents of other servers. The previous document is used while a server is not available."""

    proxy: AggregationProxy

    async def group_version(self, service: ApiService, previous: RemoteGroupVersion | None) -> RemoteGroupVersion:
        try:
            document = await self._json(service, service.path)
            return RemoteGroupVersion(service.group, service.version, discovered_resources(service, document))
        except (ApiError, ValueError, KeyError, TypeError, AttributeError):
            known = previous.resources if previous is not None else []
            return RemoteGroupVersion(service.group, service.version, known, is_stale=True)

    async def openapi(self, service: ApiService, previous: RemoteOpenApi | None) -> RemoteOpenApi:
        if service.is_unavailable and previous is not None:
            return previous
        v3_hash, v2 = None, None
        # a server may lack either document
        with suppress(ApiError, ValueError, KeyError, TypeError):
            entry = (await self._json(service, "/openapi/v3"))["paths"][service.path.lstrip("/")]
            found = HASH.search(entry["serverRelativeURL"])
            v3_hash = found[1] if found is not None else ""
        with suppress(ApiError, ValueError, KeyError, TypeError, AttributeError):
            v2 = v2_part(await self._json(service, "/openapi/v2"), service.path)
        return RemoteOpenApi(service.group, service.version, v3_hash, v2)

    async def _json(self, service: ApiService, path: str) -> Any:
        """Return a decoded document. Raises Unavailable, or BadRequest if it is malformed, too deep or too large."""
        if service.is_unavailable:
            raise Unavailable(503, "ServiceUnavailable", f"APIService {service.name} is not available")
        raw = await self.proxy.document(service, path)
        return await run_if_large(len(raw), decode_json, raw)


def discovered_resources(service: ApiService, document: Object) -> list[Object]:
    """Return the resources of an APIResourceList as in aggregated discovery. Raises KeyError or ValueError."""
    if document["kind"] != "APIResourceList":
        raise ValueError("not an APIResourceList")
    found: dict[str, Object] = {}
    for entry in document["resources"]:
        plural, _, subresource = str(entry["name"]).partition("/")
        kind = {
            "group": entry.get("group") or service.group,
            "version": entry.get("version") or service.version,
            "kind": str(entry["kind"]),
        }
        verbs = [str(each) for each in entry.get("verbs") or ()]
        if subresource:
            if plural in found:
                part = {"subresource": subresource, "responseKind": kind, "verbs": verbs}
                found[plural].setdefault("subresources", []).append(part)
            continue
        found[plural] = {
            "resource": plural,
            "responseKind": kind,
            "scope": "Namespaced" if entry.get("namespaced") else "Cluster",
            "singularResource": str(entry.get("singularName") or ""),
            "verbs": verbs,
            **{key: list(map(str, entry[key])) for key in ("shortNames", "categories") if entry.get(key)},
        }
    return list(found.values())


def v2_part(document: Object, path: str) -> Object:
    """Return the paths of a group version in an OpenAPI v2 document, and the definitions to which they refer."""
    paths = {key: value for key, value in document["paths"].items() if key.startswith(f"{path}/")}
    definitions: dict[str, Any] = document.get("definitions") or {}
    needed: dict[str, Any] = {}
    pending = list(references(paths))
    while pending:
        name = pending.pop()
        if name not in needed and name in definitions:
            needed[name] = definitions[name]
            pending.extend(references(definitions[name]))
    return {"paths": paths, "definitions": needed}


def references(value: Any) -> list[str]:
    """Return the names of all definitions to which a part of a document refers."""
    found, pending = [], [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            target = each.get("$ref")
            if isinstance(target, str):
                found.append(target.removeprefix(REFERENCE))
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return found


def merged_v2(document: Object, parts: tuple[RemoteOpenApi, ...]) -> Object:
    """Return an OpenAPI v2 document with the parts of other servers. Definitions that differ get another name."""
    paths, definitions = dict(document["paths"]), dict(document["definitions"])
    for part in parts:
        if part.v2 is None:
            continue
        renamed = {
            name: f"{name}_{part.group}_{part.version}"
            for name, definition in part.v2["definitions"].items()
            if name in definitions and definitions[name] != definition
        }
        for name, definition in part.v2["definitions"].items():
            definitions[renamed.get(name, name)] = with_renamed_references(definition, renamed)
        paths |= with_renamed_references(part.v2["paths"], renamed)
    return {**document, "paths": paths, "definitions": definitions}


def with_renamed_references(value: Any, renamed: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: REFERENCE + renamed.get(each.removeprefix(REFERENCE), each.removeprefix(REFERENCE))
            if key == "$ref" and isinstance(each, str)
            else with_renamed_references(each, renamed)
            for key, each in value.items()
        }
    return [with_renamed_references(each, renamed) for each in value] if isinstance(value, list) else value
