"""OpenAPI v2 document of all groups.

It is less expressive than v3, and clients assume that its schemas are complete. Therefore, it has no schema where a
custom resource may have undeclared fields.
"""

from collections.abc import Sequence
from gzip import decompress
from typing import Any

import msgspec

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_archive import custom_part, custom_type_name, recorded_document
from tapestry.kube.objects import Object, without_field

SUBSCHEMA_KEYS = ("items", "additionalProperties")
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
UNKNOWN_TO_V2 = frozenset({"allOf", "oneOf", "anyOf", "not", "nullable"})


def document_of(custom: Sequence[ResourceInfo]) -> Object:
    """The document with all built-in resources and the custom ones."""
    document: dict[str, Any] = msgspec.json.decode(decompress(recorded_document("v2")), type=dict[str, msgspec.Raw])
    # built-in parts are not decoded, because that would take much more memory
    paths: Object = msgspec.json.decode(document["paths"], type=dict[str, msgspec.Raw])
    definitions: Object = msgspec.json.decode(document["definitions"], type=dict[str, msgspec.Raw])
    for info in custom:
        part, _ = custom_part("v2", info)
        type_name = custom_type_name(info)
        paths |= part.paths
        definitions |= {**part.types, type_name: custom_definition(info, part.types[type_name])}
    return {**document, "paths": paths, "definitions": definitions}


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
