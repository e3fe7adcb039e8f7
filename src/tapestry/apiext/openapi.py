"""OpenAPI document of the plain REST API: one set of paths for all kinds."""

from functools import cache

from tapestry import __version__
from tapestry.apiext.list_query import DEFAULT_LIMIT, MAX_LIMIT
from tapestry.kube.objects import Object

TEXT: Object = {"type": "string"}
NULLABLE_TEXT: Object = {"type": "string", "nullable": True}
NULLABLE_INTEGER: Object = {"type": "integer", "nullable": True}
ANY_OBJECT: Object = {"type": "object", "additionalProperties": True}
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
    "required": ["name", "kind", "group", "version", "namespaced", "verbs", "path"],
    "properties": {
        **dict.fromkeys(("name", "kind", "group", "version", "path"), TEXT),
        "namespaced": {"type": "boolean"},
        "verbs": {"type": "array", "items": TEXT},
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
        "filter", "Comma-separated terms that must all match, with = != ~ (contains) !~: `phase=Running,name~web`."
    ),
    parameter("sort", "Comma-separated fields; a minus sorts in descending order: `-created,name`."),
    parameter(
        "limit", "Objects per page.", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    ),
    parameter("page", "Number of the page, from 1.", {"type": "integer", "minimum": 1}),
    parameter("cursor", "`next` of the previous page; not with filter, sort or page."),
]


def json_content(name: str) -> Object:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def operation(summary: str, status: str, answer: str, *parameters: Object, body: str = "") -> Object:
    found: Object = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            status: {"description": summary, **json_content(answer)},
            "default": {"description": "Error with advice.", **json_content("Error")},
        },
    }
    return {**found, "requestBody": {"required": True, **json_content(body)}} if body else found


@cache
def openapi_document() -> Object:
    schemas = {"Kinds": KINDS, "Outline": OUTLINE, "Whole": WHOLE, "New": NEW, "Page": PAGE, "Deleted": DELETED}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Plain REST over Kubernetes objects", "version": __version__},
        "security": [{"token": []}],
        "paths": {
            "/apiext/v1": {"get": operation("Available kinds", "200", "Kinds")},
            "/apiext/v1/{kind}": {
                "get": operation("Objects of a kind", "200", "Page", KIND_IN_PATH, *LIST_PARAMETERS),
                "post": operation("Create an object", "201", "Whole", KIND_IN_PATH, NAMESPACE, body="New"),
            },
            "/apiext/v1/{kind}/{name}": {
                "get": operation("One object", "200", "Whole", KIND_IN_PATH, NAME_IN_PATH, NAMESPACE),
                "delete": operation("Delete an object", "200", "Deleted", KIND_IN_PATH, NAME_IN_PATH, NAMESPACE),
            },
        },
        "components": {
            "schemas": {**schemas, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
