"""OpenAPI v2 document of all groups.

It is less expressive than v3, and clients assume that its schemas are complete. Therefore, it has no schema where a
custom resource may have undeclared fields.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from gzip import decompress
from typing import Any

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_archive import (
    CustomPart,
    custom_part,
    custom_type_name,
    recorded_document,
)
from tapestry.kube.objects import Object, without_field
from tapestry.kube.resources import Resource

SUBSCHEMA_KEYS = ("items", "additionalProperties")
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
UNKNOWN_TO_V2 = frozenset({"allOf", "oneOf", "anyOf", "not", "nullable"})


class EncodedPart(msgspec.Struct):
    """The part of the document about one custom resource."""

    paths: dict[str, msgspec.Raw]
    definitions: dict[str, msgspec.Raw]


class CustomParts:
    """Parts of custom resources in several encodings, compressed. A part is built again when its resource changes."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, Resource], tuple[ResourceInfo, bytes]] = {}

    def part(self, encoding: str, info: ResourceInfo, encode: Callable[[ResourceInfo], bytes]) -> bytes:
        cached = self._parts.get((encoding, info.resource))
        if cached is None or cached[0] != info:
            cached = self._parts[encoding, info.resource] = info, zlib.compress(encode(info), 1)
        return zlib.decompress(cached[1])

    def retain(self, infos: Iterable[ResourceInfo]) -> None:
        """Drop the parts of all other resources."""
        served = {info.resource for info in infos}
        self._parts = {key: part for key, part in self._parts.copy().items() if key[1] in served}


def document_of(custom: Sequence[ResourceInfo], parts: CustomParts) -> Object:
    """The document with all built-in resources and the custom ones."""
    document: dict[str, Any] = msgspec.json.decode(decompress(recorded_document("v2")), type=dict[str, msgspec.Raw])
    # built-in parts are not decoded, because that would take much more memory
    paths: Object = msgspec.json.decode(document["paths"], type=dict[str, msgspec.Raw])
    definitions: Object = msgspec.json.decode(document["definitions"], type=dict[str, msgspec.Raw])
    for info in custom:
        part = msgspec.json.decode(parts.part("JSON", info, encoded_part), type=EncodedPart)
        paths |= part.paths
        definitions |= part.definitions
    return {**document, "paths": paths, "definitions": definitions}


def encoded_part(info: ResourceInfo) -> bytes:
    part, _ = custom_part("v2", info)
    return msgspec.json.encode({"paths": part.paths, "definitions": custom_definitions(info, part)})


def custom_definitions(info: ResourceInfo, part: CustomPart) -> Object:
    type_name = custom_type_name(info)
    return {**part.types, type_name: custom_definition(info, part.types[type_name])}


def custom_definition(info: ResourceInfo, common: Object) -> Object:
    group_version_kind = {key: each for key, each in common.items() if key.startswith("x-kubernetes-group")}
    if not info.schema or info.schema.get(PRESERVE_UNKNOWN_FIELDS):
        return {"type": "object", **group_version_kind}
    converted = v2_structural_schema(info.schema)
    properties = {name: each for name, each in common["properties"].items() if name != "spec"}
    return {**converted, "properties": {**converted.get("properties", {}), **properties}, **group_version_kind}


def v2_structural_schema(schema: Object) -> Object:
    """The OpenAPI v2 form of a structural schema, without constraints that v2 cannot express."""
    converted = {key: value for key, value in schema.items() if key not in UNKNOWN_TO_V2}
    if schema.get("nullable"):
        converted = without_field(without_field(converted, "type"), "items")
    if schema.get("nullable") or schema.get(PRESERVE_UNKNOWN_FIELDS):
        converted = without_field(without_field(converted, "properties"), "items")
    if "properties" in converted:
        converted["properties"] = {name: v2_structural_schema(each) for name, each in converted["properties"].items()}
        nullable = {name for name, each in schema["properties"].items() if each.get("nullable")}
        required = [name for name in converted.get("required", ()) if name not in nullable]
        converted = {**converted, "required": required} if required else without_field(converted, "required")
    for key in SUBSCHEMA_KEYS:
        if isinstance(converted.get(key), dict):
            converted[key] = v2_structural_schema(converted[key])
    is_untyped_list = converted.get("type") == "array" and "items" not in converted
    if is_untyped_list or (schema.get(PRESERVE_UNKNOWN_FIELDS) and converted.get("type") == "object"):
        converted = without_field(converted, "type")
    return converted
