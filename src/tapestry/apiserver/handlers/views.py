"""Encodings of objects and lists that a client can request: full, table rows, or metadata only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tapestry.apiserver.core.codec import negotiated_form
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.storage_codec import ENCODER, api_version_prefix, served_bytes
from tapestry.apiserver.core.workers import LARGE_LIST_BYTES, run_if_large
from tapestry.apiserver.handlers.watches import IDENTITY_ENCODER, WatchEncoder
from tapestry.apiserver.printing import tables, workloads
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object

TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
MAX_COPIED_BYTES = 1 << 20
"""Maximum total size of objects that are joined into one list body; longer lists are sent in chunks."""
FORMS = frozenset({TABLE, PARTIAL, PARTIAL_LIST})


@dataclass(frozen=True, slots=True)
class ListResult:
    """Metadata and encoded items of a list, or of one page."""

    metadata: Object
    items: Sequence[bytes]


def requested_form(call: Call) -> tuple[str, str]:
    """Return the negotiated form of objects, and the part of them that a table includes."""
    return negotiated_form(call.headers.get("accept", ""), FORMS), call.query.get("includeObject") or "Metadata"


def encode_object(info: ResourceInfo, raw: bytes, form: str, include: str) -> bytes:
    if not form:
        return raw
    if form != TABLE:
        return partial_metadata(raw)
    obj: Object = msgspec.json.decode(raw)
    version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return msgspec.json.encode(tables.table(info, [obj], version, include))


def scale_view(obj: Object, form: str, include: str) -> Object:
    """Return a Scale in the requested form."""
    if form != TABLE:
        return tables.partial_object_metadata(obj) if form else obj
    version = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
    return tables.table_from_columns(workloads.SCALE_COLUMNS, [obj], version, include)


async def encode_collection(
    info: ResourceInfo, listing: ListResult, form: str, include: str
) -> Iterable[bytes | memoryview]:
    """Return a list as consecutive parts."""
    size = sum(map(len, listing.items))
    if not form:
        if size > MAX_COPIED_BYTES:
            return encoded_list_parts(info, listing.metadata, listing.items)
        return [encode_list(info, listing.metadata, listing.items)]
    encode = table_chunks if form == TABLE else partial_list_chunks
    return await run_if_large(size if size >= LARGE_LIST_BYTES else 0, encode, info, listing, include)


def encode_list(info: ResourceInfo, metadata: Object, items: Sequence[bytes]) -> bytes:
    """Return a list in JSON; items of built-in kinds have no kind and apiVersion of their own."""
    begin, separator, parts, end = list_segments(info, metadata, items)
    if not parts:
        return begin + end
    if len(parts) == 1:
        return b"".join((begin, parts[0], end))
    # copy a long list only once
    return separator.join((b"".join((begin, parts[0])), *parts[1:-1], b"".join((parts[-1], end))))


def encoded_list_parts(info: ResourceInfo, metadata: Object, items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same text as `encode_list` in parts. Each is encoded when it is needed."""
    begin, separator, _, end = list_segments(info, metadata, ())
    kind = b"" if info.is_custom else item_prefix(info)
    yield begin
    before = b""
    for each in items:
        yield before + (b"{" + each[len(kind) :] if kind and each.startswith(kind) else each)
        before = separator
    yield end


def list_segments(
    info: ResourceInfo, metadata: Object, items: Sequence[bytes]
) -> tuple[bytes, bytes, Sequence[bytes | memoryview], bytes]:
    """Return the start of a list, the separator, the encoded items, and the end."""
    resource = info.resource
    head = {"kind": info.list_kind, "apiVersion": resource.api_version, "metadata": metadata}
    begin, separator, end = ENCODER.encode(head)[:-1] + b',"items":[', b",", b"]}"
    if not info.is_custom and items:
        kind = item_prefix(info)
        if all(each.startswith(kind) for each in items):
            return begin + b"{", b",{", [memoryview(each)[len(kind) :] for each in items], end
    return begin, separator, items, end


def item_prefix(info: ResourceInfo) -> bytes:
    """Return the start of a stored object that items of lists do not have."""
    resource = info.resource
    return api_version_prefix(resource.api_version) + b',"kind":"%b",' % resource.kind.encode()


def table_chunks(info: ResourceInfo, listing: ListResult, include: str) -> Sequence[bytes]:
    """Return a Table. Objects are decoded one row at a time, to limit memory."""
    items = listing.items
    if info.storage == tables.FLOW_SCHEMAS:  # these are not sorted by name
        items = [
            msgspec.json.encode(obj) for obj in sorted(map(msgspec.json.decode, items), key=tables.matching_precedence)
        ]
    encoder = tables.TableRowEncoder(info, include)
    head = msgspec.json.encode({**encoder.empty_table(listing.metadata), "rows": []}).removesuffix(b"]}")
    return [head, *comma_separated(encoder.encode_row(raw) for raw in items), b"]}"]


def partial_list_chunks(_: ResourceInfo, listing: ListResult, __: str) -> Sequence[bytes]:
    head = {"kind": PARTIAL_LIST, "apiVersion": "meta.k8s.io/v1", "metadata": listing.metadata, "items": []}
    begin = msgspec.json.encode(head).removesuffix(b"]}")
    return [begin, *comma_separated(map(partial_metadata, listing.items)), b"]}"]


def comma_separated(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the items with commas between them."""
    comma = b""
    for number, each in enumerate(items):
        if not number % 64:
            checkpoint()
        yield comma + each
        comma = b","


class PartialObject(msgspec.Struct):
    """An object whose metadata stays encoded."""

    metadata: msgspec.Raw


PARTIAL_DECODER = msgspec.json.Decoder(PartialObject)
PARTIAL_HEAD = msgspec.json.encode(tables.partial_object_metadata({"metadata": None})).removesuffix(b"null}")


def partial_metadata(raw: bytes) -> bytes:
    """Return a PartialObjectMetadata with the metadata of an object."""
    return b"".join((PARTIAL_HEAD, PARTIAL_DECODER.decode(raw).metadata, b"}"))


def encode_bookmark(info: ResourceInfo, raw: bytes, form: str) -> bytes:
    """Return the object of a bookmark; as a table, its cells are empty."""
    obj: Object = msgspec.json.decode(raw)
    partial = tables.partial_object_metadata(obj)
    if form != TABLE:
        return msgspec.json.encode(partial)
    table = tables.table(info, [], {"resourceVersion": obj["metadata"]["resourceVersion"]}, "None")
    cells = [""] * len(table["columnDefinitions"])
    return msgspec.json.encode({**table, "rows": [{"cells": cells, "object": partial}]})


def watch_encoder(info: ResourceInfo, form: str, include: str) -> WatchEncoder:
    """Return the encoder for the events of a watch; watchers with equal encoders share cached encodings."""
    version = info.resource.api_version if info.is_custom or info.storage_version is not None else ""
    if not form:
        is_slow = info.storage_version is not None
        return (
            WatchEncoder(f"@{version}", lambda raw: served_bytes(info, raw), decodes_objects=is_slow)
            if version
            else IDENTITY_ENCODER
        )
    return WatchEncoder(
        f"{form}{include}@{version}",
        lambda raw: encode_object(info, served_bytes(info, raw), form, include),
        lambda raw: encode_bookmark(info, raw, form),
        decodes_objects=True,
    )
