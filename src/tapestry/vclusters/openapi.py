"""The OpenAPI document of REST, made from the contract and the REST table."""

from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tapestry.kube.objects import Object
from tapestry.vclusters.rest_routes import BODY_IS_MESSAGE, ROUTES, RPCS, Route
from tapestry.vclusters.transcoding import PLAIN_MESSAGES

SCALARS: dict[int, Object] = {
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
}
PLAIN_SCHEMAS: dict[str, Object] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.FieldMask": {"type": "string", "description": "Names of fields, separated by commas."},
}
ERROR: Object = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer", "description": "HTTP status."},
                "status": {"type": "string", "description": "Name of a gRPC status code."},
                "message": {"type": "string"},
                "details": {"type": "array", "items": {"type": "object"}},
            },
        }
    },
}


def openapi_document() -> Object:
    """Return the document, with a path for each route and a schema for each message."""
    schemas: dict[str, Object] = {}
    paths: dict[str, Object] = {}
    for route in ROUTES:
        paths.setdefault(path_of(route), {})[route.http_method.lower()] = operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Virtual clusters", "version": "v1", "description": "Lifecycle of virtual clusters."},
        "security": [{"accessKey": []}, {"certificate": []}],
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.items())), "Error": ERROR},
            "responses": {"Error": {"description": "The request failed.", "content": json_of(reference("Error"))}},
            "securitySchemes": {
                "accessKey": {"type": "http", "scheme": "bearer", "description": "Access key."},
                "certificate": {"type": "mutualTLS", "description": "Client certificate of the management API."},
            },
        },
    }


def path_of(route: Route) -> str:
    path = route.template
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", f"{{{parameter_name(name)}}}")
    return path


def parameter_name(path: str) -> str:
    """Return the name of a path parameter in JSON: `quotaProject` for `quota.project`, so that it is unique."""
    first, *rest = path.replace(".", "_").split("_")
    return first + "".join(map(str.capitalize, rest))


def operation(route: Route, schemas: dict[str, Object]) -> Object:
    rpc = RPCS[route.method]
    number = [each for each in ROUTES if each.method == route.method].index(route)
    found: Object = {
        "operationId": f"{route.method}{number + 1 if number else ''}",
        "parameters": [*path_parameters(route), *query_parameters(route, rpc.input_type, schemas)],
        "responses": {
            str(route.status): {
                "description": "Messages of a stream, one in each line." if rpc.server_streaming else "The answer.",
                "content": content(rpc.output_type, schemas, is_stream=rpc.server_streaming),
            },
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    if route.body == BODY_IS_MESSAGE:
        found["requestBody"] = {"content": json_of(message_schema(rpc.input_type, schemas))}
    elif route.body:
        field = rpc.input_type.fields_by_name[route.body]
        found["requestBody"] = {"required": True, "content": json_of(field_schema(field, schemas))}
    return found


def content(message: Descriptor, schemas: dict[str, Object], *, is_stream: bool) -> Object:
    schema = message_schema(message, schemas)
    if not is_stream:
        return json_of(schema)
    return {"application/x-ndjson": {"schema": schema}, "text/event-stream": {"schema": schema}}


def json_of(schema: Object) -> Object:
    return {"application/json": {"schema": schema}}


def path_parameters(route: Route) -> list[Object]:
    return [
        {"name": parameter_name(each), "in": "path", "required": True, "schema": {"type": "string"}}
        for each in route.parameters
    ]


def query_parameters(route: Route, message: Descriptor, schemas: dict[str, Object]) -> list[Object]:
    """Return the fields of a request that are neither in its path nor in its body."""
    if route.body == BODY_IS_MESSAGE:
        return []
    in_path = {each.split(".")[0] for each in route.parameters}
    return [
        {"name": field.json_name, "in": "query", "schema": field_schema(field, schemas)}
        for field in message.fields
        if field.name not in in_path and field.name != route.body and is_plain(field)
    ]


def is_plain(field: FieldDescriptor) -> bool:
    return field.message_type is None or field.message_type.full_name in PLAIN_MESSAGES


def message_schema(message: Descriptor, schemas: dict[str, Object]) -> Object:
    if message.full_name in PLAIN_SCHEMAS:
        return PLAIN_SCHEMAS[message.full_name]
    if message.name not in schemas:
        schemas[message.name] = {}  # known from here on, in case the message contains itself
        properties = {field.json_name: field_schema(field, schemas) for field in message.fields}
        schemas[message.name] = {"type": "object", "properties": properties, "additionalProperties": False}
    return reference(message.name)


def field_schema(field: FieldDescriptor, schemas: dict[str, Object]) -> Object:
    if is_map(field):
        return {"type": "object", "additionalProperties": field_schema(field.message_type.fields_by_name["value"], {})}
    schema = value_schema(field, schemas)
    return {"type": "array", "items": schema} if field.is_repeated else schema


def value_schema(field: FieldDescriptor, schemas: dict[str, Object]) -> Object:
    if field.message_type is not None:
        return message_schema(field.message_type, schemas)
    if field.enum_type is not None:
        return enum_schema(field.enum_type, schemas)
    return SCALARS[field.type]


def enum_schema(enum: EnumDescriptor, schemas: dict[str, Object]) -> Object:
    schemas.setdefault(enum.name, {"type": "string", "enum": [value.name for value in enum.values]})
    return reference(enum.name)


def is_map(field: FieldDescriptor) -> bool:
    options: Any = field.message_type.GetOptions() if field.message_type is not None else None
    return options is not None and options.map_entry


def reference(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{name}"}
