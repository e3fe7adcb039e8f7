"""Cache of discovery and OpenAPI documents, which are built on first use after a change.

Clients revalidate a document with its ETag. Documents are held only in compressed form. OpenAPI documents of built-in
kinds are recorded, and read from their file. When custom resources change, only their own parts are built again.

Servers without custom resources and aggregated APIs have the same documents, and share them. Documents of other servers
are dropped when they are not used for a minute.
"""

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha512
from operator import is_

import msgspec

from tapestry.apiserver.aggregation.remote_documents import RemoteGroupVersion, RemoteOpenApi, merged_v2
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.core.workers import LARGE_BYTES, run_if_large
from tapestry.apiserver.documents import discovery, openapi_v2, openapi_v2_protobuf, openapi_v3
from tapestry.apiserver.documents.openapi_archive import recorded_document, recorded_etags
from tapestry.apiserver.documents.openapi_v2 import CustomParts
from tapestry.kube.objects import Object
from tapestry.process.logs import logger

log = logger(__name__)

COMPRESSION_LEVEL = 3
"""Level of gzip. Level 6 takes more than twice the time for documents that are a quarter smaller."""
IDLE_SECONDS = 60.0
"""Seconds after their last use at which the documents of one server are dropped."""


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    """The document, compressed with gzip."""
    etag: str
    """A hash of the document before compression."""


def compressed_document(value: Object | bytes) -> Document:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Document(gzip.compress(body, COMPRESSION_LEVEL, mtime=0), etag_of(body))


def etag_of(body: bytes) -> str:
    return sha512(body).hexdigest().upper()


def read_recorded(name: str) -> Document:
    return Document(recorded_document(name), recorded_etags()[name])


@cache
def built_in_documents() -> dict[str, Document]:
    """Return the documents of the built-in resources, which all servers of a process share. They are added on use."""
    return {}


Remotes = tuple[RemoteGroupVersion, ...] | tuple[RemoteOpenApi, ...]
"""Documents of other servers that are merged into one of ours."""


@dataclass(slots=True)
class GroupDocument:
    """OpenAPI v3 document of a group version with these custom resources."""

    custom: list[ResourceInfo]
    etag: str
    document: Document | None = None
    """The document, once it was requested."""


class DocumentCache:
    """The OpenAPI and discovery documents of the served resources.

    `built_in` has the documents that were built from the built-in resources of `registry` only.
    """

    def __init__(self, registry: ResourceRegistry, built_in: dict[str, Document]) -> None:
        self._registry, self._built_in = registry, built_in
        self._groups: dict[str, GroupDocument] = {}
        """The OpenAPI v3 documents with custom resources by name."""
        self._parts = CustomParts()
        self._generation = -1
        self._documents: dict[str, tuple[Remotes, Document]] = {}
        self._used_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    async def openapi_v3_index(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        return await self._cached("index", lambda: compressed_document(self._index(remotes)), remotes)

    async def openapi_v3(self, path: str) -> Document:
        """The document of a path below /openapi/v3. Raises KeyError if there is none."""
        name = f"v3/{path}"
        custom = custom_resources(self._registry).get(name)
        if custom is None:
            return read_recorded(name)
        self._drop_when_idle()
        cached = self._groups.get(name)
        if cached is not None and cached.document is not None and cached.custom == custom:
            return cached.document
        return await run_if_large(LARGE_BYTES, self._group, name, custom)

    async def openapi_v2(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        remotes = tuple(each for each in remotes if each.v2 is not None)
        if not remotes and not custom_resources(self._registry):
            return read_recorded("v2")
        return await self._cached("swagger", lambda: compressed_document(self._openapi_v2(remotes)), remotes)

    async def openapi_v2_protobuf(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        """The OpenAPI v2 document in protobuf, for Go clients."""
        remotes = tuple(each for each in remotes if each.v2 is not None)
        return await self._cached(
            "swagger protobuf", lambda: compressed_document(self._openapi_v2_protobuf(remotes)), remotes
        )

    async def aggregated_discovery(self, remotes: tuple[RemoteGroupVersion, ...] = (), *, legacy: bool) -> Document:
        """The aggregated documents of /api and /apis."""
        return await self._cached(
            "api" if legacy else "apis",
            lambda: compressed_document(discovery.aggregated_discovery(self._registry, remotes, legacy=legacy)),
            remotes,
        )

    async def _cached(self, name: str, make: Callable[[], Document], remotes: Remotes) -> Document:
        """Build a document in a worker thread. If it is outdated by then, it is returned but not cached."""
        self._drop_stale()
        is_built_in = not remotes and not any(info.is_custom for info in self._registry)
        cached = self._built_in.get(name) if is_built_in else self._current(name, remotes)
        if cached is None:
            generation = self._generation
            cached = await run_if_large(LARGE_BYTES, make)
            if self._generation == generation == self._registry.generation:
                if is_built_in:
                    self._built_in[name] = cached
                else:
                    self._documents[name] = remotes, cached
        if not is_built_in:
            self._drop_when_idle()
        return cached

    def _drop_when_idle(self) -> None:
        """Drop all documents of this server unless this is called again in time."""
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._drop_if_idle)

    def _drop_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._used_at + IDLE_SECONDS
        if loop.time() < due:
            self._idle_timer = loop.call_at(due, self._drop_if_idle)
            return
        self._idle_timer = None
        self._documents, self._parts = {}, CustomParts()
        for each in list(self._groups.values()):  # copied, because a thread may add one
            each.document = None

    def _current(self, name: str, remotes: Remotes) -> Document | None:
        """Return a cached document if it was built from the same documents of other servers."""
        before, document = self._documents.get(name, ((), None))
        is_same = len(before) == len(remotes) and all(map(is_, before, remotes))
        return document if is_same else None

    def _drop_stale(self) -> None:
        if self._generation != self._registry.generation:
            self._documents, self._generation = {}, self._registry.generation
            served = custom_resources(self._registry)
            self._groups = {name: entry for name, entry in self._groups.copy().items() if name in served}
            self._parts.retain(info for infos in served.values() for info in infos)

    def _group(self, name: str, custom: list[ResourceInfo]) -> Document:
        """Build the document of a group version. It is reused until its custom resources change."""
        document = compressed_document(openapi_v3.document_of(name, custom))
        self._groups[name] = GroupDocument(custom, document.etag, document)
        return document

    def _group_etag(self, name: str, custom: list[ResourceInfo]) -> str:
        cached = self._groups.get(name)
        if cached is None or cached.custom != custom:
            etag = etag_of(msgspec.json.encode(openapi_v3.document_of(name, custom)))
            cached = self._groups[name] = GroupDocument(custom, etag)
        return cached.etag

    def _index(self, remotes: tuple[RemoteOpenApi, ...]) -> Object:
        etags = {name: etag for name, etag in recorded_etags().items() if name.startswith("v3/")}
        etags |= {name: self._group_etag(name, rows) for name, rows in custom_resources(self._registry).items()}
        etags |= {f"v3/apis/{each.group}/{each.version}": each.v3_hash for each in remotes if each.v3_hash is not None}
        paths = {name.removeprefix("v3/"): f"/openapi/{name}?hash={etag}" for name, etag in etags.items()}
        return {"paths": {path: {"serverRelativeURL": url} for path, url in paths.items()}}

    def _openapi_v2(self, remotes: tuple[RemoteOpenApi, ...]) -> Object:
        document = openapi_v2.document_of(self._custom(), self._parts)
        return merged_v2(decoded(document), remotes) if remotes else document

    def _openapi_v2_protobuf(self, remotes: tuple[RemoteOpenApi, ...]) -> bytes:
        """The OpenAPI v2 document without paths."""
        if not remotes:
            return openapi_v2_protobuf.encoded_document(self._custom(), self._parts)
        document = decoded({**self._openapi_v2(()), "paths": {}})
        try:
            return openapi_v2_protobuf.encode_document({**merged_v2(document, remotes), "paths": {}})
        except (LookupError, TypeError, ValueError, AttributeError):
            groups = [each.group for each in remotes]
            log.warning("OpenAPI v2 documents of aggregated APIs cannot be encoded", groups=groups)
            return openapi_v2_protobuf.encode_document(document)

    def _custom(self) -> list[ResourceInfo]:
        return [info for info in self._registry if info.is_custom]


def decoded(document: Object) -> Object:
    """Return a document without encoded parts."""
    result: Object = msgspec.json.decode(msgspec.json.encode(document))
    return result


def custom_resources(registry: ResourceRegistry) -> dict[str, list[ResourceInfo]]:
    """The custom resources by the name of their OpenAPI v3 document."""
    found: dict[str, list[ResourceInfo]] = {}
    for info in registry:
        if info.is_custom:
            found.setdefault(f"v3/apis/{info.resource.api_version}", []).append(info)
    return found
