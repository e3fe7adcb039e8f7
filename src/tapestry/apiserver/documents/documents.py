"""Documents: what the server says of itself at length, made when it is first asked for after a change.

A reader that has a document already names its tag, and is told whether that is still the one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha512
from typing import Any

import msgspec

from tapestry.apiserver.documents import discovery, openapi, swagger, swagger_protobuf
from tapestry.apiserver.rows import Row, Rows, descriptions
from tapestry.apiserver.workers import LARGE, run_if_large
from tapestry.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    tag: str
    """Another one for another body."""


def document(value: Object | bytes) -> Document:
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Document(body, sha512(body).hexdigest().upper())


class Documents:
    """OpenAPI and discovery of what is served now."""

    def __init__(self, rows: Rows, types: Mapping[str, Any]) -> None:
        self._rows = rows
        self._types = types
        self._groups: dict[tuple[str, str], tuple[list[Row], Document]] = {}
        self._edition = -1
        self._made: dict[str, Document] = {}

    @cached_property
    def _described(self) -> dict[str, Any]:
        return openapi.described(self._types, descriptions())

    @cached_property
    def _definitions(self) -> dict[str, Any]:
        return swagger.built_in_definitions(self._described)

    async def index(self) -> Document:
        """/openapi/v3"""
        return await self._kept_large("index", self._index)

    async def group(self, group: str, version: str) -> Document:
        """/openapi/v3/apis/<group>/<version>; KeyError where it is not served."""
        rows = self._rows.groups()[group][version]
        known = self._groups.get((group, version))
        if known is not None and known[0] == rows:
            return known[1]
        return await run_if_large(LARGE, self._group, group, version, rows)

    async def swagger(self) -> Document:
        """/openapi/v2"""
        return await self._kept_large("swagger", self._swagger)

    async def swagger_protobuf(self) -> Document:
        """The same for Go clients."""
        return await self._kept_large("swagger protobuf", lambda: swagger_protobuf.document(self._swagger()))

    def discovery(self, *, legacy: bool) -> Document:
        """/api and /apis, with all that is below."""
        if legacy:
            return self._kept("api", lambda: discovery.aggregated(self._rows, legacy=True))
        return self._kept("apis", lambda: discovery.aggregated(self._rows, legacy=False))

    async def _kept_large(self, name: str, make: Callable[[], Object | bytes]) -> Document:
        """The same of a document that takes long to make; one that is out of date by then is not kept."""
        self._forget_old()
        known = self._made.get(name)
        if known is not None:
            return known
        edition = self._edition
        made = await run_if_large(LARGE, lambda: document(make()))
        if self._edition == edition == self._rows.edition:
            self._made[name] = made
        return made

    def _kept(self, name: str, make: Callable[[], Object | bytes]) -> Document:
        self._forget_old()
        if name not in self._made:
            self._made[name] = document(make())
        return self._made[name]

    def _forget_old(self) -> None:
        if self._edition != self._rows.edition:
            self._made, self._edition = {}, self._rows.edition
            served = self._rows.groups()
            self._groups = {key: kept for key, kept in self._groups.copy().items() if key[1] in served.get(key[0], ())}

    def _group(self, group: str, version: str, rows: list[Row]) -> Document:
        """Kept for as long as just these rows are the group: most never change."""
        known = self._groups.get((group, version))
        if known is None or known[0] != rows:
            known = self._groups[group, version] = rows, document(openapi.document_of(rows, self._described))
        return known[1]

    def _index(self) -> Object:
        paths = {}
        for group, versions in self._rows.groups().items():
            for version, rows in versions.items():
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                tag = self._group(group, version, rows).tag
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={tag}"}
        return {"paths": paths}

    def _swagger(self) -> Object:
        return swagger.document_of(self._rows, self._described, self._definitions)
