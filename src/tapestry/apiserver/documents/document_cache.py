"""Cache of discovery and OpenAPI documents, which are built on first use after a change.

Clients revalidate a document with its ETag. OpenAPI documents are held only in compressed form. Those of built-in
kinds are recorded, and read from their file. When custom resources change, only their own parts are built again.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    etag: str
    """A hash of the body before compression."""
    is_compressed: bool = False
    """True if the body is compressed with gzip."""


def with_etag(value: Object) -> Document:
    body = msgspec.json.encode(value)
    return Document(body, etag_of(body))


def compressed_document(value: Object | bytes) -> Document:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Document(gzip.compress(body, COMPRESSION_LEVEL, mtime=0), etag_of(body), is_compressed=True)


def etag_of(body: bytes) -> str:
    return sha512(body).hexdigest().upper()


def read_recorded(name: str) -> Document:
    return Document(recorded_document(name), recorded_etags()[name], is_compressed=True)


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
    """The OpenAPI and discovery documents of the served resources."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry
        self._groups: dict[str, GroupDocument] = {}
        """The OpenAPI v3 documents with custom resources by name."""
        self._parts = CustomParts()
        self._generation = -1
        self._documents: dict[str, tuple[Remotes, Document]] = {}

    async def openapi_v3_index(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        return await self._cached_large("index", lambda: with_etag(self._index(remotes)), remotes)

    async def openapi_v3(self, path: str) -> Document:
        """The document of a path below /openapi/v3. Raises KeyError if there is none."""
        name = f"v3/{path}"
        custom = custom_resources(self._registry).get(name)
        if custom is None:
            return read_recorded(name)
        cached = self._groups.get(name)
        if cached is not None and cached.document is not None and cached.custom == custom:
            return cached.document
        return await run_if_large(LARGE_BYTES, self._group, name, custom)

    async def openapi_v2(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        remotes = tuple(each for each in remotes if each.v2 is not None)
        if not remotes and not custom_resources(self._registry):
            return read_recorded("v2")
        return await self._cached_large("swagger", lambda: compressed_document(self._openapi_v2(remotes)), remotes)

    async def openapi_v2_protobuf(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        """The OpenAPI v2 document in protobuf, for Go clients."""
        remotes = tuple(each for each in remotes if each.v2 is not None)
        return await self._cached_large(
            "swagger protobuf", lambda: compressed_document(self._openapi_v2_protobuf(remotes)), remotes
        )

    def aggregated_discovery(self, remotes: tuple[RemoteGroupVersion, ...] = (), *, legacy: bool) -> Document:
        """The aggregated documents of /api and /apis."""
        name = "api" if legacy else "apis"
        self._drop_stale()
        if (cached := self._current(name, remotes)) is not None:
            return cached
        document = with_etag(discovery.aggregated_discovery(self._registry, remotes, legacy=legacy))
        self._documents[name] = remotes, document
        return document

    async def _cached_large(self, name: str, make: Callable[[], Document], remotes: Remotes) -> Document:
        """Build a large document in a worker thread. If it is outdated by then, it is returned but not cached."""
        self._drop_stale()
        if (cached := self._current(name, remotes)) is not None:
            return cached
        generation = self._generation
        document = await run_if_large(LARGE_BYTES, make)
        if self._generation == generation == self._registry.generation:
            self._documents[name] = remotes, document
        return document

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
