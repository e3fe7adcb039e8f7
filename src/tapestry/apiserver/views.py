"""Views: an object as a client wants to see it, which may be as a row of a table, or its metadata alone."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tapestry.apiserver.printing import tables, workloads
from tapestry.apiserver.rows import Row
from tapestry.apiserver.verbs import Listing, list_parts, list_text, shown
from tapestry.apiserver.watches import AS_IS, Flavour
from tapestry.apiserver.workers import LARGE_LIST, run_if_large
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object

TABLE, PARTIAL, PARTIALS = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
LONGEST_COPY = 8 << 20
"""Bytes of the objects of a list that is copied together; those of a longer one go out as they are."""
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


async def many(row: Row, listing: Listing, form: str, include: str) -> Sequence[bytes | memoryview]:
    """A list, in pieces that follow each other."""
    size = sum(map(len, listing.items))
    if not form:
        if size > LONGEST_COPY:
            return list_parts(row, listing.metadata, listing.items)
        return [list_text(row, listing.metadata, listing.items)]
    made = table_parts if form == TABLE else partial_parts
    return await run_if_large(size if size >= LARGE_LIST else 0, made, row, listing, include)


def table_parts(row: Row, listing: Listing, include: str) -> Sequence[bytes]:
    """A Table.  Each object is read when its row is made, so that not all of them are in memory at once."""
    items = listing.items
    if row.storage == tables.FLOW_SCHEMAS:  # which are not in the order of their names
        items = [msgspec.json.encode(obj) for obj in sorted(decoded(items), key=tables.precedence)]
    made = tables.Rows(row, include)
    head = msgspec.json.encode({**made.head(listing.metadata), "rows": []}).removesuffix(b"]}")
    return [head, *separated(made.row_text(raw) for raw in items), b"]}"]


def partial_parts(_: Row, listing: Listing, __: str) -> Sequence[bytes]:
    head = {"kind": PARTIALS, "apiVersion": "meta.k8s.io/v1", "metadata": listing.metadata, "items": []}
    begin = msgspec.json.encode(head).removesuffix(b"]}")
    return [begin, *separated(map(partial_text, listing.items)), b"]}"]


def separated(items: Iterable[bytes]) -> Iterator[bytes]:
    """Texts with commas between them."""
    comma = b""
    for number, each in enumerate(items):
        if not number % 64:
            checkpoint()
        yield comma + each
        comma = b","


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
        is_slow = row.guise is not None
        return Flavour(f"@{version}", lambda raw: shown(row, raw), is_slow=is_slow) if version else AS_IS
    return Flavour(
        f"{form}{include}@{version}",
        lambda raw: one(row, shown(row, raw), form, include),
        lambda raw: bookmark(row, raw, form),
        is_slow=True,
    )
