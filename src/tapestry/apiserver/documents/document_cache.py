"""Documents: what the server says of itself at length, made when it is first asked for after a change.

A reader that has a document already names its tag, and is told whether that is still the one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha512
from typing import Any

import msgspec

from tapestry.apiserver.documents import discovery, openapi_v2, openapi_v2_protobuf, openapi_v3
from tapestry.apiserver.resource_registry import ResourceInfo, ResourceRegistry, type_descriptions
from tapestry.apiserver.workers import LARGE_BYTES, run_if_large
from tapestry.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    etag: str
    """Another one for another body."""


def with_etag(value: Object | bytes) -> Document:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Document(body, sha512(body).hexdigest().upper())


class DocumentCache:
    """OpenAPI and discovery of what is served now."""

    def __init__(self, registry: ResourceRegistry, types: Mapping[str, Any]) -> None:
        self._rows = registry
        self._types = types
        self._groups: dict[tuple[str, str], tuple[list[ResourceInfo], Document]] = {}
        self._edition = -1
        self._documents: dict[str, Document] = {}

    @cached_property
    def _described(self) -> dict[str, Any]:
        return openapi_v3.with_descriptions(self._types, type_descriptions())

    @cached_property
    def _definitions(self) -> dict[str, Any]:
        return openapi_v2.built_in_definitions(self._described)

    async def openapi_v3_index(self) -> Document:
        """/openapi/v3"""
        return await self._cached_large("index", self._index)

    async def openapi_v3_group(self, group: str, version: str) -> Document:
        """/openapi/v3/apis/<group>/<version>; KeyError where it is not served."""
        rows = self._rows.groups()[group][version]
        known = self._groups.get((group, version))
        if known is not None and known[0] == rows:
            return known[1]
        return await run_if_large(LARGE_BYTES, self._group, group, version, rows)

    async def openapi_v2(self) -> Document:
        """/openapi/v2"""
        return await self._cached_large("swagger", self._openapi_v2)

    async def openapi_v2_protobuf(self) -> Document:
        """The same for Go clients."""
        return await self._cached_large(
            "swagger protobuf", lambda: openapi_v2_protobuf.encode_document(self._openapi_v2())
        )

    def aggregated_discovery(self, *, legacy: bool) -> Document:
        """/api and /apis, with all that is below."""
        if legacy:
            return self._cached("api", lambda: discovery.aggregated_discovery(self._rows, legacy=True))
        return self._cached("apis", lambda: discovery.aggregated_discovery(self._rows, legacy=False))

    async def _cached_large(self, name: str, make: Callable[[], Object | bytes]) -> Document:
        """The same of a document that takes long to make; one that is out of date by then is not kept."""
        self._drop_stale()
        known = self._documents.get(name)
        if known is not None:
            return known
        edition = self._edition
        made = await run_if_large(LARGE_BYTES, lambda: with_etag(make()))
        if self._edition == edition == self._rows.generation:
            self._documents[name] = made
        return made

    def _cached(self, name: str, make: Callable[[], Object | bytes]) -> Document:
        self._drop_stale()
        if name not in self._documents:
            self._documents[name] = with_etag(make())
        return self._documents[name]

    def _drop_stale(self) -> None:
        if self._edition != self._rows.generation:
            self._documents, self._edition = {}, self._rows.generation
            served = self._rows.groups()
            self._groups = {key: kept for key, kept in self._groups.copy().items() if key[1] in served.get(key[0], ())}

    def _group(self, group: str, version: str, rows: list[ResourceInfo]) -> Document:
        """Kept for as long as just these rows are the group: most never change."""
        known = self._groups.get((group, version))
        if known is None or known[0] != rows:
            known = self._groups[group, version] = rows, with_etag(openapi_v3.document_of(rows, self._described))
        return known[1]

    def _index(self) -> Object:
        paths = {}
        for group, versions in self._rows.groups().items():
            for version, rows in versions.items():
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                tag = self._group(group, version, rows).etag
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={tag}"}
        return {"paths": paths}

    def _openapi_v2(self) -> Object:
        return openapi_v2.document_of(self._rows, self._described, self._definitions)
