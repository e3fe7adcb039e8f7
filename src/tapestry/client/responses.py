"""Decoding of API server responses into objects.

Most objects arrive in lists and watches.  They are decoded in small batches, with the garbage collector paused.
Managed fields are skipped without decoding if they are not needed.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar

import msgspec

from tapestry.kube.errors import TransportError
from tapestry.kube.objects import EMPTY_MAPPING, Object

T = TypeVar("T")

Fields = dict[str, msgspec.Raw]
"""An object whose fields are not yet decoded."""


class ListMeta(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """A page of a list.  All pages of one list have the same `metadata.resource_version`."""

    metadata: ListMeta
    items: list[Object]


class ListResponse(msgspec.Struct):
    """Response to a list request, its objects not yet decoded."""

    metadata: ListMeta
    items: list[Fields] | None


DECODE_BATCH_SIZE = 20
"""Objects decoded per batch: few enough to stay in the processor's cache until the reader uses them, and to avoid heap
fragmentation when it drops most of them."""


class Metadata(TypedDict, total=False):
    """All fields of metadata except the managed fields."""

    name: Any
    generateName: Any
    namespace: Any
    selfLink: Any
    uid: Any
    resourceVersion: Any
    generation: Any
    creationTimestamp: Any
    deletionTimestamp: Any
    deletionGracePeriodSeconds: Any
    labels: Any
    annotations: Any
    ownerReferences: Any
    finalizers: Any


class PartialObject(TypedDict, total=False):
    """An object without its own fields and its managed fields."""

    apiVersion: Any
    kind: Any
    metadata: Metadata


COMMON_FIELDS = frozenset({"apiVersion", "kind", "metadata"})

LIST_DECODER = msgspec.json.Decoder(ListResponse)
METADATA_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Metadata)
VALUE_DECODER = msgspec.json.Decoder()
OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])
ENCODER = msgspec.json.Encoder()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while many objects are created: it would traverse all of them repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def decode_response(decoder: msgspec.json.Decoder[T], body: bytes, doing: str) -> T:
    with decoding_errors(doing):
        return decoder.decode(body)


@contextmanager
def decoding_errors(doing: str) -> Iterator[None]:
    """Raise TransportError for a response that is not from an API server (a proxy's page)."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise TransportError(f"{doing}: the response is not from an API server: {error}", maybe_sent=True) from error


def decode_object(fields: Fields, *, without_managed_fields: bool, only_metadata: bool = False) -> Object:
    """Decode an object: all fields, all but managed fields, or only apiVersion, kind and metadata.

    Errors of the decoder pass through.
    """
    return {
        name: decode_metadata(raw) if without_managed_fields and name == "metadata" else VALUE_DECODER.decode(raw)
        for name, raw in fields.items()
        if not only_metadata or name in COMMON_FIELDS
    }


def check_identity(obj: Object) -> None:
    """Raise ValueError if `obj` has no name, or if an identifying field has the wrong type."""
    metadata = obj.get("metadata")
    if type(metadata) is not dict or type(metadata.get("name")) is not str:
        raise ValueError("an object without a name")
    if type(metadata.get("namespace", "")) is not str or type(metadata.get("resourceVersion", "")) is not str:
        raise ValueError("an object whose namespace or resourceVersion is not a string")
    if type(metadata.get("labels", EMPTY_MAPPING)) is not dict and metadata["labels"] is not None:
        raise ValueError("an object whose labels are not an object")
    if type(metadata.get("annotations", EMPTY_MAPPING)) is not dict and metadata["annotations"] is not None:
        raise ValueError("an object whose annotations are not an object")


def decode_metadata(raw: msgspec.Raw) -> Object:
    metadata: Object = METADATA_DECODER.decode(raw)
    return metadata
