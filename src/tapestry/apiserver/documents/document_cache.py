"""Cache of discovery and OpenAPI documents, which are built on first use after a change.

Clients revalidate a document with its ETag.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha512
from operator import is_
from typing import Any

import msgspec

from tapestry.apiserver.aggregation.remote_documents import RemoteGroupVersion, RemoteOpenApi, merged_v2
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry, type_descriptions
from tapestry.apiserver.core.workers import LARGE_BYTES, run_if_large
from tapestry.apiserver.documents import discovery, openapi_v2, openapi_v2_protobuf, openapi_v3
from tapestry.kube.objects import Object
from tapestry.process.logs import logger

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    etag: str
    """A hash of the body."""


def with_etag(value: Object | bytes) -> Document:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Document(body, sha512(body).hexdigest().upper())


Remotes = tuple[RemoteGroupVersion, ...] | tuple[RemoteOpenApi, ...]
"""Documents of other servers that are merged into one of ours."""


class DocumentCache:
    """The OpenAPI and discovery documents of the served resources."""

    def __init__(self, registry: ResourceRegistry, types: Mapping[str, Any]) -> None:
        self._registry = registry
        self._types = types
        self._groups: dict[tuple[str, str], tuple[list[ResourceInfo], Document]] = {}
        self._generation = -1
        self._documents: dict[str, tuple[Remotes, Document]] = {}

    @cached_property
    def _described(self) -> dict[str, Any]:
        return openapi_v3.with_descriptions(self._types, type_descriptions())

    @cached_property
    def _definitions(self) -> dict[str, Any]:
        return openapi_v2.built_in_definitions(self._described)

    async def openapi_v3_index(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        return await self._cached_large("index", lambda: self._index(remotes), remotes)

    async def openapi_v3_group(self, group: str, version: str) -> Document:
        """The document of /openapi/v3/apis/<group>/<version>. Raises KeyError if it is not served."""
        rows = self._registry.groups()[group][version]
        cached = self._groups.get((group, version))
        if cached is not None and cached[0] == rows:
            return cached[1]
        return await run_if_large(LARGE_BYTES, self._group, group, version, rows)

    async def openapi_v2(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        return await self._cached_large("swagger", lambda: self._openapi_v2(remotes), remotes)

    async def openapi_v2_protobuf(self, remotes: tuple[RemoteOpenApi, ...] = ()) -> Document:
        """The OpenAPI v2 document in protobuf, for Go clients."""
        return await self._cached_large("swagger protobuf", lambda: self._openapi_v2_protobuf(remotes), remotes)

    def aggregated_discovery(self, remotes: tuple[RemoteGroupVersion, ...] = (), *, legacy: bool) -> Document:
        """The aggregated documents of /api and /apis."""
        name = "api" if legacy else "apis"
        return self._cached(
            name, lambda: discovery.aggregated_discovery(self._registry, remotes, legacy=legacy), remotes
        )

    async def _cached_large(self, name: str, make: Callable[[], Object | bytes], remotes: Remotes) -> Document:
        """Build a large document in a worker thread. If it is outdated by then, it is returned but not cached."""
        self._drop_stale()
        if (cached := self._current(name, remotes)) is not None:
            return cached
        generation = self._generation
        document = await run_if_large(LARGE_BYTES, lambda: with_etag(make()))
        if self._generation == generation == self._registry.generation:
            self._documents[name] = remotes, document
        return document

    def _cached(self, name: str, make: Callable[[], Object | bytes], remotes: Remotes) -> Document:
        self._drop_stale()
        if (cached := self._current(name, remotes)) is not None:
            return cached
        document = with_etag(make())
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
            served = self._registry.groups()
            self._groups = {
                key: entry for key, entry in self._groups.copy().items() if key[1] in served.get(key[0], ())
            }

    def _group(self, group: str, version: str, rows: list[ResourceInfo]) -> Document:
        """Build the document of a group. It is reused until the resources of the group change."""
        cached = self._groups.get((group, version))
        if cached is None or cached[0] != rows:
            cached = self._groups[group, version] = rows, with_etag(openapi_v3.document_of(rows, self._described))
        return cached[1]

    def _index(self, remotes: tuple[RemoteOpenApi, ...]) -> Object:
        paths = {}
        for group, versions in self._registry.groups().items():
            for version, rows in versions.items():
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                tag = self._group(group, version, rows).etag
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={tag}"}
        for remote in remotes:
            if remote.v3_hash is not None:
                path, query = (
                    f"apis/{remote.group}/{remote.version}",
                    f"?hash={remote.v3_hash}" if remote.v3_hash else "",
                )
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}{query}"}
        return {"paths": paths}

    def _openapi_v2(self, remotes: tuple[RemoteOpenApi, ...]) -> Object:
        document = openapi_v2.document_of(self._registry, self._described, self._definitions)
        return merged_v2(document, remotes) if remotes else document

    def _openapi_v2_protobuf(self, remotes: tuple[RemoteOpenApi, ...]) -> bytes:
        try:
            return openapi_v2_protobuf.encode_document(self._openapi_v2(remotes))
        except (LookupError, TypeError, ValueError, AttributeError):
            if not remotes:
                raise
            log.warning(
                "OpenAPI v2 documents of aggregated APIs cannot be encoded", groups=[each.group for each in remotes]
            )
            return openapi_v2_protobuf.encode_document(self._openapi_v2(()))
