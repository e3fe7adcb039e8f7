"""What is read of the text of an object, and changed in it, without reading the rest: labels and resourceVersion."""

import msgspec

from tapestry.kube.objects import Object

FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
LABELS = msgspec.json.Decoder(dict[str, str] | None)
ENCODER = msgspec.json.Encoder()


def versioned(raw: bytes, revision: int) -> tuple[bytes, Object]:
    """The object as it is served, its apiVersion first, and its labels.  Raises msgspec.DecodeError."""
    fields, metadata = opened(raw)
    metadata["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
    labels = LABELS.decode(metadata["labels"]) if "labels" in metadata else None
    return closed(fields, metadata), labels or {}


def unversioned(raw: bytes) -> bytes:
    """The object as etcd keeps it: there, the revision is beside it."""
    fields, metadata = opened(raw)
    metadata.pop("resourceVersion", None)
    return closed(fields, metadata)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


LABELLED = msgspec.json.Decoder(_Object)


def labels_in(raw: bytes) -> Object:
    return LABELLED.decode(raw).metadata.labels or {}


def opened(raw: bytes) -> tuple[dict[str, msgspec.Raw], dict[str, msgspec.Raw]]:
    fields = FIELDS.decode(raw)
    return fields, FIELDS.decode(fields["metadata"]) if "metadata" in fields else {}


def closed(fields: dict[str, msgspec.Raw], metadata: dict[str, msgspec.Raw]) -> bytes:
    first = {"apiVersion": fields["apiVersion"]} if "apiVersion" in fields else {}
    return ENCODER.encode({**first, **fields, "metadata": metadata})
