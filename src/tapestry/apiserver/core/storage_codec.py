"""Encoding of objects for the store, and of stored objects as a version of their resource is served."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apiserver.core.requests import Convert
from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.core.spec_cache import Interned, Variant, memoize, variant_text
from tapestry.apiserver.core.store import ObjectVersion, RevisionEncoder
from tapestry.apiserver.core.workers import run_if_large
from tapestry.kube.budget import checkpoint
from tapestry.kube.objects import Object, labels_of

ENCODER = msgspec.json.Encoder()
DECODER = msgspec.json.Decoder()


async def with_api_version(_: ResourceInfo, objects: Sequence[Object], api_version: str) -> Sequence[Object]:
    return [{**obj, "apiVersion": api_version} for obj in objects]


@dataclass(frozen=True)
class StorageCodec:
    """Convert objects between their stored and their served form."""

    convert: Convert = with_api_version
    """Convert custom resources whose definition has a conversion webhook."""

    async def from_storage(self, info: ResourceInfo, raw: bytes) -> bytes:
        """Return a stored object in the form in which this version is served."""
        raw = (await self.convert_stored(info, [raw]))[0] if info.conversion_webhook else raw
        if info.storage_version is None:
            return served_bytes(info, raw)
        return await run_if_large(max(len(raw), info.schema_size), served_bytes, info, raw)

    async def all_from_storage(self, info: ResourceInfo, versions: Sequence[ObjectVersion]) -> Sequence[bytes]:
        raws = [version.raw for version in versions]
        if not info.is_custom and info.storage_version is None:
            return raws
        raws = list(await self.convert_stored(info, raws)) if info.conversion_webhook else raws
        if info.storage_version is None:
            return [served_bytes(info, raw) for raw in raws]
        return await run_if_large(sum(map(len, raws)), all_served_bytes, info, raws)

    async def convert_stored(self, info: ResourceInfo, raws: Sequence[bytes]) -> Sequence[bytes]:
        """Convert stored objects to the version of a resource, in one call for all that differ."""
        version = info.resource.api_version
        if all(raw.startswith(api_version_prefix(version)) for raw in raws):
            return raws
        size = sum(map(len, raws))
        objects = await self.convert(info, await run_if_large(size, decode_all, raws), version)
        return await run_if_large(size, encode_all, objects)

    async def to_storage(self, info: ResourceInfo, obj: Object) -> RevisionEncoder:
        """Return the encoder that stores an object."""
        if info.conversion_webhook and info.storage_api_version:
            [obj] = await self.convert(info, [obj], info.storage_api_version)
        return encode_for_storage(info, obj)


def decode_all(raws: Iterable[bytes]) -> list[Object]:
    result: list[Object] = []
    for raw in raws:
        checkpoint()
        result.append(DECODER.decode(raw))
    return result


def encode_all(objects: Iterable[Object]) -> list[bytes]:
    result = []
    for obj in objects:
        checkpoint()
        result.append(ENCODER.encode(obj))
    return result


def all_served_bytes(info: ResourceInfo, raws: Iterable[bytes]) -> list[bytes]:
    result = []
    for raw in raws:
        checkpoint()
        result.append(served_bytes(info, raw))
    return result


def served_bytes(info: ResourceInfo, raw: bytes) -> bytes:
    """Return a stored object as this version is served; apiVersion is the first field of every stored text."""
    if info.storage_version is not None:
        version = {"apiVersion": info.resource.api_version}
        return ENCODER.encode({**version, **info.storage_version.from_storage(DECODER.decode(raw)), **version})
    if not info.is_custom or raw.startswith(prefix := api_version_prefix(info.resource.api_version)):
        return raw
    return prefix + raw[raw.index(b'"', len(b'{"apiVersion":"')) + 1 :]


def api_version_prefix(api_version: str) -> bytes:
    return b'{"apiVersion":"%b"' % api_version.encode()


def encode_for_storage(info: ResourceInfo, obj: Object) -> RevisionEncoder:
    """Return the function that encodes an object for storage at a revision; it also returns the labels."""
    version = {"apiVersion": info.storage_api_version or info.resource.api_version}
    if info.storage_version is not None:
        obj = info.storage_version.to_storage(obj)

    def encode(revision: int) -> tuple[bytes, Mapping[str, str]]:
        metadata = {**obj["metadata"], "resourceVersion": str(revision)}
        if "managedFields" in metadata:
            metadata["managedFields"] = [with_text_of_fields(each) for each in metadata["managedFields"]]
        stored = {**version, **obj, **version, "metadata": metadata}
        if "spec" in stored:
            stored["spec"] = encode_spec(stored["spec"])
        return ENCODER.encode(stored), labels_of(obj)

    return encode


def encode_spec(part: Any) -> Any:
    """Return a spec, or owned fields, for the encoder: interned values and variants as cached text."""
    if type(part) is Variant:
        return msgspec.Raw(variant_text(part, ENCODER.encode))
    return memoize(part, encode_spec, lambda: msgspec.Raw(ENCODER.encode(part))) if type(part) is Interned else part


def with_text_of_fields(entry: Object) -> Object:
    """Return an entry of `metadata.managedFields` for the encoder."""
    fields = entry.get("fieldsV1")
    return {**entry, "fieldsV1": encode_spec(fields)} if type(fields) is Interned else entry
