"""What plain REST says of itself, in OpenAPI: one set of paths for every kind."""

from functools import cache

from tapestry import __version__
from tapestry.apiext.questions import LIMIT, MOST
from tapestry.kube.objects import Object

TEXT: Object = {"type": "string"}
MAYBE_TEXT: Object = {"type": "string", "nullable": True}
MAYBE_NUMBER: Object = {"type": "integer", "nullable": True}
ANYTHING: Object = {"type": "object", "additionalProperties": True}
TEXTS: Object = {"type": "object", "additionalProperties": TEXT}

CONDITION: Object = {
    "type": "object",
    "properties": {"status": TEXT, "reason": MAYBE_TEXT, "message": MAYBE_TEXT, "since": MAYBE_TEXT},
}
OUTLINE: Object = {
    "type": "object",
    "description": "An object in a list: its spec is summed up, by dotted paths.",
    "required": ["kind", "name", "namespace", "created", "deleting", "labels", "phase", "conditions"],
    "properties": {
        "kind": TEXT,
        "name": TEXT,
        "namespace": MAYBE_TEXT,
        "uid": TEXT,
        "created": {"type": "string", "format": "date-time"},
        "deleting": {"type": "boolean"},
        "labels": TEXTS,
        "phase": MAYBE_TEXT,
        "conditions": {"type": "object", "additionalProperties": CONDITION},
        "spec": ANYTHING,
    },
    "additionalProperties": True,
}
WHOLE: Object = {
    **OUTLINE,
    "description": "An object with all of its spec and status.",
    "properties": {**OUTLINE["properties"], "annotations": TEXTS, "status": ANYTHING},
}
NEW: Object = {
    "type": "object",
    "description": "An object to create: flat, or as Kubernetes has it, with metadata.",
    "properties": {
        "name": TEXT,
        "namespace": TEXT,
        "labels": TEXTS,
        "annotations": TEXTS,
        "spec": ANYTHING,
        "metadata": ANYTHING,
    },
    "additionalProperties": True,
}
PAGE: Object = {
    "type": "object",
    "required": ["items", "total", "limit", "page", "pages", "next"],
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/components/schemas/Outline"}},
        "total": MAYBE_NUMBER,
        "limit": {"type": "integer"},
        "page": MAYBE_NUMBER,
        "pages": MAYBE_NUMBER,
        "next": {**MAYBE_TEXT, "description": "The cursor of what follows."},
    },
}
DELETED: Object = {
    "type": "object",
    "required": ["name", "namespace", "deleted"],
    "properties": {"name": TEXT, "namespace": MAYBE_TEXT, "deleted": {"type": "boolean"}},
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
            "items": {"type": "object", "properties": {"field": MAYBE_TEXT, "message": MAYBE_TEXT}},
        },
    },
}

KIND_IN_PATH: Object = {"name": "kind", "in": "path", "required": True, "schema": TEXT}
NAME_IN_PATH: Object = {"name": "name", "in": "path", "required": True, "schema": TEXT}


def parameter(name: str, description: str, schema: Object = TEXT) -> Object:
    return {"name": name, "in": "query", "description": description, "schema": schema}


NAMESPACE = parameter("namespace", "Of lists: none is all namespaces. Of one object: none is `default`.")
OF_LISTS = [
    NAMESPACE,
    parameter("filter", "`phase=Running,name~web`: = != ~ (contains) !~; all must hold."),
    parameter("sort", "`-created,name`: fields, descending with a minus."),
    parameter("limit", "Objects at a time.", {"type": "integer", "minimum": 1, "maximum": MOST, "default": LIMIT}),
    parameter("page", "Which page of all that match, from 1 on.", {"type": "integer", "minimum": 1}),
    parameter("cursor", "`next` of the page before; not with filter, sort or page."),
]


def carrying(name: str) -> Object:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def operation(summary: str, status: str, answer: str, *parameters: Object, body: str = "") -> Object:
    found: Object = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            status: {"description": summary, **carrying(answer)},
            "default": {"description": "A refusal that says what to do.", **carrying("Error")},
        },
    }
    return {**found, "requestBody": {"required": True, **carrying(body)}} if body else found


@cache
def document() -> Object:
    """The OpenAPI document."""
    schemas = {"Kinds": KINDS, "Outline": OUTLINE, "Whole": WHOLE, "New": NEW, "Page": PAGE, "Deleted": DELETED}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Plain REST over Kubernetes objects", "version": __version__},
        "security": [{"token": []}],
        "paths": {
            "/apiext/v1": {"get": operation("The kinds there are", "200", "Kinds")},
            "/apiext/v1/{kind}": {
                "get": operation("Objects of a kind", "200", "Page", KIND_IN_PATH, *OF_LISTS),
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
