"""OpenAPI v3: what clients validate and explain objects by, one document for each group and version."""

from collections.abc import Mapping, Sequence
from typing import Any

from tapestry.apiserver.rows import Row
from tapestry.kube.objects import Object

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
DEFINITION = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
STRATEGIC = "application/strategic-merge-patch+json"
QUERY = ("dryRun", "fieldManager", "fieldValidation", "pretty")


def described(types: Mapping[str, Any], texts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The types with what is to be said of them and of their fields."""
    return {name: described_type(schema, texts.get(name, {})) for name, schema in types.items()}


def described_type(schema: Object, texts: Mapping[str, str]) -> Object:
    found = {**schema, "description": texts[""]} if "" in texts else schema
    if "properties" not in schema:
        return found
    fields = {
        name: {**each, "description": texts[name]} if name in texts else each
        for name, each in schema["properties"].items()
    }
    return {**found, "properties": fields}


def document_of(rows: Sequence[Row], types: Mapping[str, Any]) -> Object:
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for row in rows:
        name = row.type or custom_name(row)
        if row.is_custom:
            schemas[name] = custom_schema(row, types)
            add_types([f"{META}ObjectMeta"], types, schemas)
        else:
            add_types([name], types, schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [kind_of(row)]}
        paths |= paths_of(row, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.3"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def kind_of(row: Row) -> Object:
    resource = row.resource
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def custom_name(row: Row) -> str:
    """`com.example.v1.Widget`: the group backwards, as such names go."""
    resource = row.resource
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


def custom_schema(row: Row, types: Mapping[str, Any]) -> Object:
    schema = row.schema or {"type": "object"}
    about = {name: published(each, []) for name, each in custom_identity(types).items()}
    return {**schema, "properties": {**(schema.get("properties") or {}), **about}}


def custom_identity(types: Mapping[str, Any]) -> Object:
    """The fields that every custom resource has, as the definition of one has them itself."""
    return {name: types[DEFINITION]["properties"][name] for name in ("apiVersion", "kind", "metadata")}


def add_types(names: Sequence[str], types: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Add these types and all that they are made of."""
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and name in types:
            found[name] = published(types[name], waiting)


def published(schema: Object, met: list[str]) -> Object:
    """A type of the table as OpenAPI writes it; the types that it refers to are added to `met`."""
    found = {
        key: value
        for key, value in schema.items()
        if key not in ("$ref", "properties", "items", "additionalProperties")
    }
    if "$ref" in schema:
        met.append(schema["$ref"])
        if not found:
            return {"allOf": [reference(schema["$ref"])]}
        found["allOf"] = [reference(schema["$ref"])]
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("x-kubernetes-int-or-string")
        found |= {"oneOf": [{"type": "string"}, {"type": "number"}]}
    if "properties" in schema:
        found["properties"] = {name: published(each, met) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = published(schema[key], met)
    return found


def reference(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def root_of(row: Row) -> str:
    resource = row.resource
    return f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"


def paths_of(row: Row, name: str) -> dict[str, Any]:
    place = "/namespaces/{namespace}" if row.resource.namespaced else ""
    collection = f"{root_of(row)}{place}/{row.resource.plural}"
    body = {"content": {"*/*": {"schema": reference(name)}}}
    return {
        collection: {
            "get": operation(row, "list", name),
            "post": {**operation(row, "post", name), "requestBody": body},
        },
        f"{collection}/{{name}}": {
            "get": operation(row, "get", name),
            "put": {**operation(row, "put", name), "requestBody": body},
            "patch": {**operation(row, "patch", name), "requestBody": patch_body(row)},
            "delete": operation(row, "delete", name),
        },
    }


def patch_body(row: Row) -> Object:
    schema = {"schema": {"type": "object"}}
    kinds = PATCHES if row.is_custom else (*PATCHES, STRATEGIC)
    return {"content": dict.fromkeys(kinds, schema)}


def operation(row: Row, action: str, name: str) -> Object:
    parameters = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in QUERY]
    return {
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference(name)}}}},
        "parameters": parameters,
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind_of(row),
    }
