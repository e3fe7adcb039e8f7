"""Labels and resourceVersion of an encoded object, read and changed without decoding the rest."""

from collections.abc import Mapping

import msgspec

from tapestry.kube.objects import EMPTY_MAPPING

FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
LABELS_DECODER = msgspec.json.Decoder(dict[str, str] | None)
ENCODER = msgspec.json.Encoder()


def with_revision(raw: bytes, revision: int) -> tuple[bytes, Mapping[str, str]]:
    """Return the object with its resourceVersion, apiVersion first, and its labels. Raises msgspec.DecodeError."""
    fields, metadata = split_metadata(raw)
    metadata["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
    labels = LABELS_DECODER.decode(metadata["labels"]) if "labels" in metadata else None
    return join_metadata(fields, metadata), labels or EMPTY_MAPPING


def without_revision(raw: bytes) -> bytes:
    """Return the object as etcd stores it, without a resourceVersion: etcd stores the revision separately."""
    fields, metadata = split_metadata(raw)
    metadata.pop("resourceVersion", None)
    return join_metadata(fields, metadata)


class _Metadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


METADATA_DECODER = msgspec.json.Decoder(_Object)


def raw_labels(raw: bytes) -> Mapping[str, str]:
    return METADATA_DECODER.decode(raw).metadata.labels or EMPTY_MAPPING


def split_metadata(raw: bytes) -> tuple[dict[str, msgspec.Raw], dict[str, msgspec.Raw]]:
    fields = FIELDS_DECODER.decode(raw)
    return fields, FIELDS_DECODER.decode(fields["metadata"]) if "metadata" in fields else {}


def join_metadata(fields: dict[str, msgspec.Raw], metadata: dict[str, msgspec.Raw]) -> bytes:
    first = {"apiVersion": fields["apiVersion"]} if "apiVersion" in fields else {}
    return ENCODER.encode({**first, **fields, "metadata": metadata})
