"""OpenAPI v3 documents, one per group and version."""

from collections.abc import Mapping, Sequence
from typing import Any

from tapestry.apiserver.core.resource_registry import ResourceInfo
from tapestry.kube.objects import Object

META_PREFIX = "io.k8s.apimachinery.pkg.apis.meta.v1."
CRD_TYPE = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
PATCH_TYPES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
STRATEGIC_PATCH_TYPE = "application/strategic-merge-patch+json"
QUERY_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "pretty")


def with_descriptions(types: Mapping[str, Any], texts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The types with descriptions of them and of their fields."""
    return {name: type_with_descriptions(schema, texts.get(name, {})) for name, schema in types.items()}


def type_with_descriptions(schema: Object, texts: Mapping[str, str]) -> Object:
    described = {**schema, "description": texts[""]} if "" in texts else schema
    if "properties" not in schema:
        return described
    fields = {
        name: {**each, "description": texts[name]} if name in texts else each
        for name, each in schema["properties"].items()
    }
    return {**described, "properties": fields}


def document_of(rows: Sequence[ResourceInfo], types: Mapping[str, Any]) -> Object:
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for info in rows:
        name = info.schema_name or custom_type_name(info)
        if info.is_custom:
            schemas[name] = custom_schema(info, types)
            add_types([f"{META_PREFIX}ObjectMeta"], types, schemas)
        else:
            add_types([name], types, schemas)
        schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [group_version_kind(info)]}
        paths |= v3_paths(info, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.3"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def group_version_kind(info: ResourceInfo) -> Object:
    resource = info.resource
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def custom_type_name(info: ResourceInfo) -> str:
    """The reversed group, version and kind, as in `com.example.v1.Widget`."""
    resource = info.resource
    return ".".join([*reversed(resource.group.split(".")), resource.version, resource.kind])


def custom_schema(info: ResourceInfo, types: Mapping[str, Any]) -> Object:
    schema = info.schema or {"type": "object"}
    identity = {name: openapi_schema(each, []) for name, each in identity_properties(types).items()}
    return {**schema, "properties": {**(schema.get("properties") or {}), **identity}}


def identity_properties(types: Mapping[str, Any]) -> Object:
    """The fields that every custom resource has, taken from the type of CustomResourceDefinitions."""
    return {name: types[CRD_TYPE]["properties"][name] for name in ("apiVersion", "kind", "metadata")}


def add_types(names: Sequence[str], types: Mapping[str, Any], schemas: dict[str, Any]) -> None:
    """Add these types and all types that they reference."""
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in schemas and name in types:
            schemas[name] = openapi_schema(types[name], pending)


def openapi_schema(schema: Object, referenced: list[str]) -> Object:
    """The OpenAPI form of a built-in schema. Adds the types that it references to `referenced`."""
    result = {
        key: value
        for key, value in schema.items()
        if key not in ("$ref", "properties", "items", "additionalProperties")
    }
    if "$ref" in schema:
        referenced.append(schema["$ref"])
        if not result:
            return {"allOf": [schema_reference(schema["$ref"])]}
        result["allOf"] = [schema_reference(schema["$ref"])]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("x-kubernetes-int-or-string")
        result |= {"oneOf": [{"type": "string"}, {"type": "number"}]}
    if "properties" in schema:
        result["properties"] = {name: openapi_schema(each, referenced) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            result[key] = openapi_schema(schema[key], referenced)
    return result


def schema_reference(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}


def api_root(info: ResourceInfo) -> str:
    resource = info.resource
    return f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"


def v3_paths(info: ResourceInfo, name: str) -> dict[str, Any]:
    scope = "/namespaces/{namespace}" if info.resource.namespaced else ""
    collection = f"{api_root(info)}{scope}/{info.resource.plural}"
    body = {"content": {"*/*": {"schema": schema_reference(name)}}}
    return {
        collection: {
            "get": operation(info, "list", name),
            "post": {**operation(info, "post", name), "requestBody": body},
        },
        f"{collection}/{{name}}": {
            "get": operation(info, "get", name),
            "put": {**operation(info, "put", name), "requestBody": body},
            "patch": {**operation(info, "patch", name), "requestBody": patch_body(info)},
            "delete": operation(info, "delete", name),
        },
    }


def patch_body(info: ResourceInfo) -> Object:
    schema = {"schema": {"type": "object"}}
    kinds = PATCH_TYPES if info.is_custom else (*PATCH_TYPES, STRATEGIC_PATCH_TYPE)
    return {"content": dict.fromkeys(kinds, schema)}


def operation(info: ResourceInfo, action: str, name: str) -> Object:
    parameters = [{"name": each, "in": "query", "schema": {"type": "string"}} for each in QUERY_PARAMETERS]
    return {
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": schema_reference(name)}}}
        },
        "parameters": parameters,
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(info),
    }
