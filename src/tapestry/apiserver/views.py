"""Views: an object as a client wants to see it, which may be as a row of a table, or its metadata alone."""

from collections.abc import Sequence

import msgspec

from tapestry.apiserver.printing import tables, workloads
from tapestry.apiserver.rows import Row
from tapestry.apiserver.verbs import Listing, list_text, shown
from tapestry.apiserver.watches import AS_IS, Flavour
from tapestry.kube.objects import Object

TABLE, PARTIAL, PARTIALS = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
FORMS = frozenset({TABLE, PARTIAL, PARTIALS})


def one(row: Row, raw: bytes, form: str, include: str) -> bytes:
    """A single object."""
    if not form:
        return raw
    if form != TABLE:
        return partial_text(raw)
    obj: Object = msgspec.json.decode(raw)
    version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return msgspec.json.encode(tables.table(row, [obj], version, include))


def scale(obj: Object, form: str, include: str) -> Object:
    """How many replicas there are, and should be."""
    if form != TABLE:
        return tables.partial(obj) if form else obj
    version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return tables.table_of(workloads.SCALE, [obj], version, include)


def many(row: Row, listing: Listing, form: str, include: str) -> bytes:
    """A list."""
    if not form:
        return list_text(row, listing.metadata, listing.items)
    if form == TABLE:
        return msgspec.json.encode(tables.table(row, decoded(listing.items), listing.metadata, include))
    items = [msgspec.Raw(partial_text(raw)) for raw in listing.items]
    head = {"kind": PARTIALS, "apiVersion": "meta.k8s.io/v1", "metadata": listing.metadata, "items": items}
    return msgspec.json.encode(head)


class Partial(msgspec.Struct):
    """An object of which the metadata are of interest, and these are not read."""

    metadata: msgspec.Raw


PARTIAL_DECODER = msgspec.json.Decoder(Partial)
PARTIAL_HEAD = msgspec.json.encode(tables.partial({"metadata": None})).removesuffix(b"null}")


def partial_text(raw: bytes) -> bytes:
    """The metadata of an object, as an object."""
    return b"".join((PARTIAL_HEAD, PARTIAL_DECODER.decode(raw).metadata, b"}"))


def bookmark(row: Row, raw: bytes, form: str) -> bytes:
    """The object of a bookmark, of which no column can say anything."""
    obj: Object = msgspec.json.decode(raw)
    mark = tables.partial(obj)
    if form != TABLE:
        return msgspec.json.encode(mark)
    table = tables.table(row, [], {"resourceVersion": obj["metadata"]["resourceVersion"]}, "None")
    cells = [""] * len(table["columnDefinitions"])
    return msgspec.json.encode({**table, "rows": [{"cells": cells, "object": mark}]})


def decoded(items: Sequence[bytes]) -> list[Object]:
    return [msgspec.json.decode(raw) for raw in items]


def flavour(row: Row, form: str, include: str) -> Flavour:
    """What a watcher sees of each object; what is made for one is kept for the next that sees the same."""
    version = row.resource.api_version if row.is_custom or row.guise is not None else ""
    if not form:
        return Flavour(f"@{version}", lambda raw: shown(row, raw)) if version else AS_IS
    return Flavour(
        f"{form}{include}@{version}",
        lambda raw: one(row, shown(row, raw), form, include),
        lambda raw: bookmark(row, raw, form),
    )
