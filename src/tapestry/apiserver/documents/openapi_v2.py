"""OpenAPI v2 document of all groups.

It is less expressive than v3, and clients assume that its schemas are complete. Therefore, it has no schema where a
custom resource may have undeclared fields.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.apiserver.documents.openapi_v3 import (
    PATCH_TYPES,
    STRATEGIC_PATCH_TYPE,
    api_root,
    custom_type_name,
    group_version_kind,
    identity_properties,
)
from tapestry.kube.objects import Object, without_field

SUBSCHEMA_KEYS = ("items", "additionalProperties")
INT_OR_STRING, PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
UNKNOWN_TO_V2 = frozenset({"allOf", "oneOf", "anyOf", "not", "nullable"})
PRODUCES, CONSUMES = ["application/json", "application/yaml"], ["*/*"]


def built_in_definitions(types: Mapping[str, Any]) -> dict[str, Any]:
    return {name: definition(schema) for name, schema in types.items()}


def document_of(rows: Iterable[ResourceInfo], types: Mapping[str, Any], built_in: Mapping[str, Any]) -> Object:
    """The document of all served resources. `built_in` has the definitions of `types`."""
    definitions = dict(built_in)
    paths: dict[str, Any] = {}
    for info in rows:
        name = info.schema_name or custom_type_name(info)
        schema = custom_definition(info, types) if info.is_custom else definitions[name]
        definitions[name] = {**schema, "x-kubernetes-group-version-kind": [group_version_kind(info)]}
        paths |= v2_paths(info, name)
    document_info = {"title": "Kubernetes", "version": "v1.34.3"}
    return {"swagger": "2.0", "info": document_info, "paths": paths, "definitions": definitions}


def definition(schema: Object) -> Object:
    """The OpenAPI v2 form of a built-in schema."""
    converted = {
        key: value for key, value in schema.items() if key not in (INT_OR_STRING, "properties", *SUBSCHEMA_KEYS)
    }
    if "$ref" in schema:
        converted["$ref"] = definition_reference(schema["$ref"])
    if schema.get(INT_OR_STRING):
        converted["type"] = "string"
    if "properties" in schema:
        converted["properties"] = {name: definition(each) for name, each in schema["properties"].items()}
    return converted | {key: definition(schema[key]) for key in SUBSCHEMA_KEYS if key in schema}


def definition_reference(name: str) -> str:
    return f"#/definitions/{name}"


# -- custom resources


def custom_definition(info: ResourceInfo, types: Mapping[str, Any]) -> Object:
    schema = info.schema
    if not schema or schema.get(PRESERVE_UNKNOWN_FIELDS):
        return {"type": "object"}
    converted = v2_structural_schema(schema)
    identity = {name: definition(each) for name, each in identity_properties(types).items()}
    return {**converted, "properties": {**converted.get("properties", {}), **identity}}


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


# -- paths


def v2_paths(info: ResourceInfo, name: str) -> dict[str, Any]:
    scope = "/namespaces/{namespace}" if info.resource.namespaced else ""
    collection = f"{api_root(info)}{scope}/{info.resource.plural}"
    body = [{"name": "body", "in": "body", "required": True, "schema": {"$ref": definition_reference(name)}}]
    patch = [{"name": "body", "in": "body", "required": True, "schema": {"type": "object"}}]
    patches = list(PATCH_TYPES if info.is_custom else (*PATCH_TYPES, STRATEGIC_PATCH_TYPE))
    return {
        collection: {
            "get": operation(info, "list", name),
            "post": {**operation(info, "post", name), "parameters": body},
        },
        f"{collection}/{{name}}": {
            "get": operation(info, "get", name),
            "put": {**operation(info, "put", name), "parameters": body},
            "patch": {**operation(info, "patch", name), "parameters": patch, "consumes": patches},
            "delete": operation(info, "delete", name),
        },
    }


def operation(info: ResourceInfo, action: str, name: str) -> Object:
    return {
        "consumes": CONSUMES,
        "produces": PRODUCES,
        "responses": {"200": {"description": "OK", "schema": {"$ref": definition_reference(name)}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(info),
    }
