"""OpenAPI document of the plain REST API: one set of paths for all kinds, and the HTTP interfaces of some kinds."""

from collections.abc import Mapping, Sequence
from inspect import getdoc
from typing import Any

from tapestry import __version__
from tapestry.apiext.list_query import DEFAULT_LIMIT, MAX_LIMIT
from tapestry.kube.crds import HttpRoute
from tapestry.kube.objects import Object
from tapestry.kube.schemas import schema_of

TEXT: Object = {"type": "string"}
NULLABLE_TEXT: Object = {"type": "string", "nullable": True}
NULLABLE_INTEGER: Object = {"type": "integer", "nullable": True}
ANY_OBJECT: Object = {"type": "object", "additionalProperties": True}
TEXTS: Object = {"type": "array", "items": TEXT}
TEXT_MAP: Object = {"type": "object", "additionalProperties": TEXT}

CONDITION: Object = {
    "type": "object",
    "properties": {"status": TEXT, "reason": NULLABLE_TEXT, "message": NULLABLE_TEXT, "since": NULLABLE_TEXT},
}
OUTLINE: Object = {
    "type": "object",
    "description": "Object in a list; its spec is summarized by dotted paths.",
    "required": ["kind", "name", "namespace", "created", "deleting", "labels", "phase", "conditions"],
    "properties": {
        "kind": TEXT,
        "name": TEXT,
        "namespace": NULLABLE_TEXT,
        "uid": TEXT,
        "version": TEXT,
        "created": {"type": "string", "format": "date-time"},
        "deleting": {"type": "boolean"},
        "labels": TEXT_MAP,
        "phase": NULLABLE_TEXT,
        "conditions": {"type": "object", "additionalProperties": CONDITION},
        "spec": ANY_OBJECT,
    },
    "additionalProperties": True,
}
WHOLE: Object = {
    **OUTLINE,
    "description": "Object with its full spec and status.",
    "properties": {**OUTLINE["properties"], "annotations": TEXT_MAP, "status": ANY_OBJECT},
}
NEW: Object = {
    "type": "object",
    "description": "Object to create: flat, or with metadata as in Kubernetes.",
    "properties": {
        "name": TEXT,
        "namespace": TEXT,
        "labels": TEXT_MAP,
        "annotations": TEXT_MAP,
        "spec": ANY_OBJECT,
        "metadata": ANY_OBJECT,
    },
    "additionalProperties": True,
}
CHANGED: Object = {
    **NEW,
    "description": "Fields to replace or to change. With `version`, only if the object still has that version.",
    "properties": {**NEW["properties"], "version": TEXT},
}
PAGE: Object = {
    "type": "object",
    "required": ["items", "total", "limit", "page", "pages", "next"],
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/components/schemas/Outline"}},
        "total": NULLABLE_INTEGER,
        "limit": {"type": "integer"},
        "page": NULLABLE_INTEGER,
        "pages": NULLABLE_INTEGER,
        "next": {**NULLABLE_TEXT, "description": "Cursor of the next page."},
    },
}
DELETED: Object = {
    "type": "object",
    "required": ["name", "namespace", "deleted"],
    "properties": {"name": TEXT, "namespace": NULLABLE_TEXT, "deleted": {"type": "boolean"}},
}
KIND: Object = {
    "type": "object",
    "required": ["name", "kind", "group", "version", "namespaced", "shortNames", "verbs", "actions", "path"],
    "properties": {
        **dict.fromkeys(("name", "kind", "group", "version", "path"), TEXT),
        "namespaced": {"type": "boolean"},
        "shortNames": TEXTS,
        "verbs": TEXTS,
        "actions": TEXTS,
    },
}
KINDS: Object = {
    "type": "object",
    "required": ["kinds"],
    "properties": {"kinds": {"type": "array", "items": KIND}},
}
ERROR: Object = {
    "type": "object",
    "required": ["code", "reason", "message"],
    "properties": {
        "code": {"type": "integer"},
        "reason": TEXT,
        "message": TEXT,
        "fields": {
            "type": "array",
            "items": {"type": "object", "properties": {"field": NULLABLE_TEXT, "message": NULLABLE_TEXT}},
        },
    },
}

KIND_IN_PATH: Object = {"name": "kind", "in": "path", "required": True, "schema": TEXT}
NAME_IN_PATH: Object = {"name": "name", "in": "path", "required": True, "schema": TEXT}


def parameter(name: str, description: str, schema: Object = TEXT) -> Object:
    return {"name": name, "in": "query", "description": description, "schema": schema}


NAMESPACE = parameter("namespace", "Namespace. Default for lists: all namespaces. Default for one object: `default`.")
LIST_PARAMETERS = [
    NAMESPACE,
    parameter(
        "filter",
        "Up to 32 comma-separated terms that must all match, with = != ~ (contains) !~: `phase=Running,name~web`.",
    ),
    parameter("sort", "Up to 8 comma-separated fields; a minus sorts in descending order: `-created,name`."),
    parameter(
        "limit", "Objects per page.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    ),
    parameter("page", "Number of the page, from 1.", {"type": "integer", "minimum": 1}),
    parameter("cursor", "`next` of the previous page; not with filter, sort or page."),
]


WATCH = parameter(
    "watch",
    "Send the objects and their changes as server-sent events (text/event-stream); only with namespace and filter.",
    {"type": "boolean"},
)
LAST_EVENT_ID: Object = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event received, to resume a watch.",
    "schema": TEXT,
}
EVENTS: Object = {"text/event-stream": {"schema": TEXT}}


def json_content(name: str) -> Object:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def responses(summary: str, status: str, content: Object) -> Object:
    return {
        status: {"description": summary, **content},
        "default": {"description": "Error with advice.", **json_content("Error")},
    }


def operation(
    identity: str, summary: str, answer: str, *parameters: Object, body: str = "", status: str = "200"
) -> Object:
    found: Object = {
        "operationId": identity,
        "summary": summary,
        "parameters": list(parameters),
        "responses": responses(summary, status, json_content(answer)),
    }
    return {**found, "requestBody": {"required": True, **json_content(body)}} if body else found


def watchable(found: Object) -> Object:
    """Return the operation with the parameters and the response of a watch."""
    content = {**found["responses"]["200"]["content"], **EVENTS}
    answers = {**found["responses"], "200": {**found["responses"]["200"], "content": content}}
    return {**found, "parameters": [*found["parameters"], WATCH, LAST_EVENT_ID], "responses": answers}


def patch_operation(*parameters: Object) -> Object:
    found = operation("patchObject", "Change an object", "Whole", *parameters)
    merge = {"schema": {"$ref": "#/components/schemas/Changed"}}
    json_patch = {"schema": {"type": "array", "items": ANY_OBJECT}}
    content = {"application/merge-patch+json": merge, "application/json": merge}
    body = {"required": True, "content": {**content, "application/json-patch+json": json_patch}}
    return {**found, "requestBody": body}


def route_operation(name: str, route: HttpRoute) -> Object:
    """Return the operation of an HTTP interface of a kind; its arguments are described by their type."""
    summary = (getdoc(route.handler) or route.name).splitlines()[0]
    arguments: Any = schema_of(route.arguments) if route.arguments else {}
    content = {"application/json": {"schema": schema_of(route.result) if route.result else ANY_OBJECT}}
    found: Object = {
        "operationId": f"{route.method.lower()}_{name}_{route.name}".replace(".", "_").replace("-", "_"),
        "summary": summary,
        "parameters": [NAME_IN_PATH, NAMESPACE],
        "responses": {**responses(summary, "200", {"content": content}), "204": {"description": "Done."}},
    }
    if route.method == "GET":
        required = arguments.get("required", ())
        found["parameters"] += [
            {"name": field, "in": "query", "required": field in required, "schema": schema}
            for field, schema in arguments.get("properties", {}).items()
        ]
    elif arguments:
        found["requestBody"] = {
            "required": bool(arguments.get("required")),
            "content": {"application/json": {"schema": arguments}},
        }
    return found


def openapi_document(routes: Mapping[str, Sequence[HttpRoute]]) -> Object:
    """Return the document; `routes` has the HTTP interfaces by the full name of their resource."""
    schemas = {"Kinds": KINDS, "Outline": OUTLINE, "Whole": WHOLE, "New": NEW, "Changed": CHANGED, "Page": PAGE}
    one = (KIND_IN_PATH, NAME_IN_PATH, NAMESPACE)
    paths: Object = {
        "/apiext/v1": {"get": operation("listKinds", "Available kinds", "Kinds")},
        "/apiext/v1/{kind}": {
            "get": watchable(operation("listObjects", "Objects of a kind", "Page", KIND_IN_PATH, *LIST_PARAMETERS)),
            "post": operation(
                "createObject", "Create an object", "Whole", KIND_IN_PATH, NAMESPACE, body="New", status="201"
            ),
        },
        "/apiext/v1/{kind}/{name}": {
            "get": watchable(operation("getObject", "One object", "Whole", *one)),
            "put": operation("replaceObject", "Replace an object", "Whole", *one, body="Changed"),
            "patch": patch_operation(*one),
            "delete": operation("deleteObject", "Delete an object", "Deleted", *one),
        },
    }
    for name, several in routes.items():
        for route in several:
            path = paths.setdefault(f"/apiext/v1/{name}/{{name}}{route.path}", {})
            path[route.method.lower()] = route_operation(name, route)
    return {
        "openapi": "3.0.3",
        "info": {"title": "Plain REST over Kubernetes objects", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Deleted": DELETED, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
