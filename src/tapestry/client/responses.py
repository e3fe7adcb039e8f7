"""Answers: from the bytes of an API server to objects.

Lists and watches are where most objects come from, many at a time.  They are decoded a few at once, with the cyclic
collector kept away, and where nobody reads managed fields those are passed over undecoded.
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
"""An object whose fields are not decoded yet."""


class ListMeta(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """A part of a list.  All pages of one list show the same `metadata.resource_version`."""

    metadata: ListMeta
    items: list[Object]


class ListResponse(msgspec.Struct):
    """What a server answers to a list, its objects not decoded yet."""

    metadata: ListMeta
    items: list[Fields] | None


DECODE_BATCH_SIZE = 20
"""Objects decoded at a time: few enough to be still in the processor's cache when the reader works on them, and to
leave no holes in the heap when it keeps little of them."""


class Metadata(TypedDict, total=False):
    """All that there is to metadata but the managed fields."""

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


COMMON_FIELDS = frozenset({"apiVersion", "kind", "metadata"})

LIST_DECODER = msgspec.json.Decoder(ListResponse)
METADATA_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Metadata)
VALUE_DECODER = msgspec.json.Decoder()
OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])
ENCODER = msgspec.json.Encoder()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the cyclic collector away while many objects are born at once: it would walk them all again and again."""
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
    """An answer that is not of an API server (a proxy's page) tells nothing about any object."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise TransportError(f"{doing}: the answer is not Kubernetes' own: {error}", maybe_sent=True) from error


def decode_object(fields: Fields, *, without_managed_fields: bool, only_metadata: bool = False) -> Object:
    """An object with all its fields, or with all but the managed ones, or with what is beside spec, status and data.

    Raises what the decoder raises.
    """
    return {
        name: decode_metadata(raw) if without_managed_fields and name == "metadata" else VALUE_DECODER.decode(raw)
        for name, raw in fields.items()
        if not only_metadata or name in COMMON_FIELDS
    }


def check_identity(obj: Object) -> None:
    """Raises ValueError for what is no object: it has no name, or a name or a version that is no text."""
    metadata = obj.get("metadata")
    if type(metadata) is not dict or type(metadata.get("name")) is not str:
        raise ValueError("an object without a name")
    if type(metadata.get("namespace", "")) is not str or type(metadata.get("resourceVersion", "")) is not str:
        raise ValueError("an object whose namespace or version is no text")
    if type(metadata.get("labels", EMPTY_MAPPING)) is not dict and metadata["labels"] is not None:
        raise ValueError("an object whose labels are no object")
    if type(metadata.get("annotations", EMPTY_MAPPING)) is not dict and metadata["annotations"] is not None:
        raise ValueError("an object whose annotations are no object")


def decode_metadata(raw: msgspec.Raw) -> Object:
    found: Object = METADATA_DECODER.decode(raw)
    return found
