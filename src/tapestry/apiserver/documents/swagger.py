"""OpenAPI v2: the same as OpenAPI v3 in its older form, all groups in one document.

It says less than v3, and its readers take what it says for all there is: wherever a custom resource may have fields
that nobody declared, it says nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tapestry.apiserver.documents.openapi import PATCHES, STRATEGIC, custom_identity, custom_name, kind_of, root_of
from tapestry.apiserver.rows import Row
from tapestry.kube.objects import Object, without

SCHEMAS = ("items", "additionalProperties")
INT_OR_STRING, PRESERVE = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
UNKNOWN_TO_V2 = frozenset({"allOf", "oneOf", "anyOf", "not", "nullable"})
READS, WRITES = ["application/json", "application/yaml"], ["*/*"]


def built_in_definitions(types: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the published table."""
    return {name: definition(schema) for name, schema in types.items()}


def document_of(rows: Iterable[Row], types: Mapping[str, Any], built_in: Mapping[str, Any]) -> Object:
    """All that is served; `built_in` are the definitions of `types`."""
    definitions = dict(built_in)
    paths: dict[str, Any] = {}
    for row in rows:
        name = row.type or custom_name(row)
        found = custom_definition(row, types) if row.is_custom else definitions[name]
        definitions[name] = {**found, "x-kubernetes-group-version-kind": [kind_of(row)]}
        paths |= paths_of(row, name)
    about = {"title": "Kubernetes", "version": "v1.34.3"}
    return {"swagger": "2.0", "info": about, "paths": paths, "definitions": definitions}


def definition(schema: Object) -> Object:
    """A schema of the table as v2 writes it."""
    found = {key: value for key, value in schema.items() if key not in (INT_OR_STRING, "properties", *SCHEMAS)}
    if "$ref" in schema:
        found["$ref"] = reference(schema["$ref"])
    if schema.get(INT_OR_STRING):
        found["type"] = "string"
    if "properties" in schema:
        found["properties"] = {name: definition(each) for name, each in schema["properties"].items()}
    return found | {key: definition(schema[key]) for key in SCHEMAS if key in schema}


def reference(name: str) -> str:
    return f"#/definitions/{name}"


# -- custom resources


def custom_definition(row: Row, types: Mapping[str, Any]) -> Object:
    schema = row.schema
    if not schema or schema.get(PRESERVE):
        return {"type": "object"}
    found = structural(schema)
    about = {name: definition(each) for name, each in custom_identity(types).items()}
    return {**found, "properties": {**found.get("properties", {}), **about}}


def structural(schema: Object) -> Object:
    """A structural schema, as far as v2 can say it without saying too much."""
    found = {key: value for key, value in schema.items() if key not in UNKNOWN_TO_V2}
    if schema.get("nullable"):
        found = without(without(found, "type"), "items")
    if schema.get("nullable") or schema.get(PRESERVE):
        found = without(without(found, "properties"), "items")
    if "properties" in found:
        found["properties"] = {name: structural(each) for name, each in found["properties"].items()}
        nullable = {name for name, each in schema["properties"].items() if each.get("nullable")}
        required = [name for name in found.get("required", ()) if name not in nullable]
        found = {**found, "required": required} if required else without(found, "required")
    for key in SCHEMAS:
        if isinstance(found.get(key), dict):
            found[key] = structural(found[key])
    untyped = found.get("type") == "array" and "items" not in found
    if untyped or (schema.get(PRESERVE) and found.get("type") == "object"):
        found = without(found, "type")
    return found


# -- paths


def paths_of(row: Row, name: str) -> dict[str, Any]:
    place = "/namespaces/{namespace}" if row.resource.namespaced else ""
    collection = f"{root_of(row)}{place}/{row.resource.plural}"
    body = [{"name": "body", "in": "body", "required": True, "schema": {"$ref": reference(name)}}]
    patch = [{"name": "body", "in": "body", "required": True, "schema": {"type": "object"}}]
    patches = list(PATCHES if row.is_custom else (*PATCHES, STRATEGIC))
    return {
        collection: {
            "get": operation(row, "list", name),
            "post": {**operation(row, "post", name), "parameters": body},
        },
        f"{collection}/{{name}}": {
            "get": operation(row, "get", name),
            "put": {**operation(row, "put", name), "parameters": body},
            "patch": {**operation(row, "patch", name), "parameters": patch, "consumes": patches},
            "delete": operation(row, "delete", name),
        },
    }


def operation(row: Row, action: str, name: str) -> Object:
    return {
        "consumes": WRITES,
        "produces": READS,
        "responses": {"200": {"description": "OK", "schema": {"$ref": reference(name)}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind_of(row),
    }
