"""OpenAPI v2: the same as OpenAPI v3 in its older form, all groups in one document.

It says less than v3, and its readers take what it says for all there is: wherever a custom resource may have fields
that nobody declared, it says nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tapestry.apiserver.documents.openapi_v3 import (
    PATCH_TYPES,
    STRATEGIC_PATCH_TYPE,
    api_root,
    custom_type_name,
    group_version_kind,
    identity_properties,
)
from tapestry.apiserver.resource_registry import ResourceInfo
from tapestry.kube.objects import Object, without_field

SUBSCHEMA_KEYS = ("items", "additionalProperties")
INT_OR_STRING, PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
UNKNOWN_TO_V2 = frozenset({"allOf", "oneOf", "anyOf", "not", "nullable"})
PRODUCES, CONSUMES = ["application/json", "application/yaml"], ["*/*"]


def built_in_definitions(types: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the published table."""
    return {name: definition(schema) for name, schema in types.items()}


def document_of(rows: Iterable[ResourceInfo], types: Mapping[str, Any], built_in: Mapping[str, Any]) -> Object:
    """All that is served; `built_in` are the definitions of `types`."""
    definitions = dict(built_in)
    paths: dict[str, Any] = {}
    for row in rows:
        name = row.schema_name or custom_type_name(row)
        found = custom_definition(row, types) if row.is_custom else definitions[name]
        definitions[name] = {**found, "x-kubernetes-group-version-kind": [group_version_kind(row)]}
        paths |= v2_paths(row, name)
    about = {"title": "Kubernetes", "version": "v1.34.3"}
    return {"swagger": "2.0", "info": about, "paths": paths, "definitions": definitions}


def definition(schema: Object) -> Object:
    """A schema of the table as v2 writes it."""
    found = {key: value for key, value in schema.items() if key not in (INT_OR_STRING, "properties", *SUBSCHEMA_KEYS)}
    if "$ref" in schema:
        found["$ref"] = definition_reference(schema["$ref"])
    if schema.get(INT_OR_STRING):
        found["type"] = "string"
    if "properties" in schema:
        found["properties"] = {name: definition(each) for name, each in schema["properties"].items()}
    return found | {key: definition(schema[key]) for key in SUBSCHEMA_KEYS if key in schema}


def definition_reference(name: str) -> str:
    return f"#/definitions/{name}"


# -- custom resources


def custom_definition(info: ResourceInfo, types: Mapping[str, Any]) -> Object:
    schema = info.schema
    if not schema or schema.get(PRESERVE_UNKNOWN_FIELDS):
        return {"type": "object"}
    found = v2_structural_schema(schema)
    about = {name: definition(each) for name, each in identity_properties(types).items()}
    return {**found, "properties": {**found.get("properties", {}), **about}}


def v2_structural_schema(schema: Object) -> Object:
    """A structural schema, as far as v2 can say it without saying too much."""
    found = {key: value for key, value in schema.items() if key not in UNKNOWN_TO_V2}
    if schema.get("nullable"):
        found = without_field(without_field(found, "type"), "items")
    if schema.get("nullable") or schema.get(PRESERVE_UNKNOWN_FIELDS):
        found = without_field(without_field(found, "properties"), "items")
    if "properties" in found:
        found["properties"] = {name: v2_structural_schema(each) for name, each in found["properties"].items()}
        nullable = {name for name, each in schema["properties"].items() if each.get("nullable")}
        required = [name for name in found.get("required", ()) if name not in nullable]
        found = {**found, "required": required} if required else without_field(found, "required")
    for key in SUBSCHEMA_KEYS:
        if isinstance(found.get(key), dict):
            found[key] = v2_structural_schema(found[key])
    untyped = found.get("type") == "array" and "items" not in found
    if untyped or (schema.get(PRESERVE_UNKNOWN_FIELDS) and found.get("type") == "object"):
        found = without_field(found, "type")
    return found


# -- paths


def v2_paths(info: ResourceInfo, name: str) -> dict[str, Any]:
    place = "/namespaces/{namespace}" if info.resource.namespaced else ""
    collection = f"{api_root(info)}{place}/{info.resource.plural}"
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
