"""Custom kinds as Python values, and the CustomResourceDefinitions generated from them.

    AT = Kind(
        Resource("demo.wukong.com", "v1alpha1", "At", "ats"),
        spec=AtSpec,
        status=AtStatus,
        columns=(Column("Phase", ".status.phase"), AGE),
    )

`crd(AT)` is the CustomResourceDefinition, for real clusters and for our own API server. `decode_spec(AT, obj)` is the
spec of an object as its Struct. `tapestry.kube.api_types` explains how to write the Structs.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Struct

from tapestry.kube.api_types import decode_hook
from tapestry.kube.objects import Object, value_at
from tapestry.kube.resources import CRDS, Resource
from tapestry.kube.schemas import PRESERVE_UNKNOWN_FIELDS, SchemaError, schema_of

S = TypeVar("S", bound=Struct)
HttpMethod = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
HttpHandler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=HttpHandler)


@dataclass(frozen=True, slots=True)
class Column:
    """Column of `kubectl get`. `path` is a JSONPath. Columns with a priority above 0 appear only with `-o wide`."""

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    description: str = ""
    priority: int = 0


AGE = Column("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class Scale:
    """JSON paths of the scale subresource. Autoscalers also need the `label_selector`, a string in the status."""

    spec_replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    label_selector: str = ""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """HTTP interface of the objects of a kind, which APIExt serves at `/apiext/v1/PLURAL/NAME` and `path`."""

    method: HttpMethod
    path: str
    handler: HttpHandler
    arguments: type[Struct] | None
    """Type of the second argument of the handler; None if it has only one."""
    result: type[Struct] | None
    """Type of the result, if it is a Struct."""

    @property
    def name(self) -> str:
        """Name of the subresource that callers need rights for."""
        return self.path.strip("/")


def http_route(method: HttpMethod, path: str, handler: HttpHandler) -> HttpRoute:
    """Return the route of a handler with the types of its annotations. Raise TypeError if they are not supported."""
    where = f"{handler.__qualname__}: {method} {path}"
    if method not in get_args(HttpMethod) or not re.fullmatch("/[a-z][a-z0-9-]*", path):
        raise TypeError(f"{where}: use {', '.join(get_args(HttpMethod))} and a path of one segment, as in /retry")
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(f"{where}: the handler must be `async def`, because it shares its thread with other requests")
    parameters = list(inspect.signature(handler).parameters)
    hints = get_type_hints(handler)
    if len(parameters) not in (1, 2):
        raise TypeError(f"{where}: the handler takes the call and, optionally, a Struct of arguments")
    arguments = hints.get(parameters[1]) if len(parameters) == 2 else None
    if len(parameters) == 2 and not is_struct(arguments):
        raise TypeError(f"{where}: annotate {parameters[1]} with a Struct")
    result = hints.get("return")
    return HttpRoute(method, path, handler, arguments, result if is_struct(result) else None)


def is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One version of a custom kind. A status Struct adds a status subresource."""

    resource: Resource
    spec: type[S]
    status: type[Struct] | None = None
    description: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    scale: Scale | None = None
    served: bool = True
    storage: bool = True
    http_routes: list[HttpRoute] = field(default_factory=list, compare=False, repr=False)

    def http(self, method: HttpMethod, path: str) -> Callable[[H], H]:
        """Add an HTTP interface to the objects of this kind.

            class Retry(ApiStruct):
                reason: str = ""

            @AT.http("POST", "/retry")
            async def retry(call: HttpCall, arguments: Retry) -> AtStatus:
                \"""Run the command again.\"""

        `tapestry.apiext.interfaces.HttpCall` has the object and a client with the rights of the caller.
        """

        def register(handler: H) -> H:
            route = http_route(method, path, handler)
            if any((each.method, each.path) == (method, path) for each in self.http_routes):
                raise ValueError(f"{self.resource.kind}: {method} {path} has two handlers; use another path")
            self.http_routes.append(route)
            return handler

        return register


class InvalidSpec(ValueError):
    """The spec does not fit its Struct. The message starts with the path in the object."""


def crd(*versions: Kind[Any]) -> Object:
    """Return the CustomResourceDefinition of a kind with all its versions. Names are those of the storage version.

    Raise SchemaError if a Struct has no structural schema. Raise ValueError if the versions do not fit together.
    """
    stored = [kind for kind in versions if kind.storage]
    if len(stored) != 1:
        raise ValueError(f"{version_names(versions)}: exactly one version must have storage=True, not {len(stored)}")
    if len({replace(kind.resource, version="") for kind in versions}) != 1:
        raise ValueError(f"{version_names(versions)}: the versions of a kind must differ only in the version")
    resource = stored[0].resource
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": list(stored[0].short_names),
        "categories": list(stored[0].categories),
    }
    return {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": resource.name},
        "spec": {
            "group": resource.group,
            "names": {key: value for key, value in names.items() if value},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [crd_version(kind) for kind in versions],
        },
    }


def crd_version(kind: Kind[Any]) -> Object:
    schema: Object = {
        **({"description": kind.description} if kind.description else {}),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": schema_of(kind.spec),
            **({"status": schema_of(kind.status)} if kind.status else {}),
        },
    }
    for path in referenced_paths(kind):
        if not is_path_in_schema(path, schema):
            raise SchemaError(f"{kind.resource.kind}: {path} is in neither {kind.spec.__name__} nor the status")
    subresources = {
        **({"status": {}} if kind.status else {}),
        **({"scale": scale_subresource(kind.scale)} if kind.scale else {}),
    }
    return {
        "name": kind.resource.version,
        "served": kind.served,
        "storage": kind.storage,
        "schema": {"openAPIV3Schema": schema},
        **({"subresources": subresources} if subresources else {}),
        **({"additionalPrinterColumns": [printer_column(column) for column in kind.columns]} if kind.columns else {}),
    }


def scale_subresource(scale: Scale) -> Object:
    paths = {
        "specReplicasPath": scale.spec_replicas,
        "statusReplicasPath": scale.status_replicas,
        "labelSelectorPath": scale.label_selector,
    }
    return {key: path for key, path in paths.items() if path}


def printer_column(column: Column) -> Object:
    definition = {
        "name": column.name,
        "jsonPath": column.path,
        "type": column.type,
        "description": column.description,
        "priority": column.priority,
    }
    return {key: value for key, value in definition.items() if value}


def referenced_paths(kind: Kind[Any]) -> list[str]:
    columns = [column.path for column in kind.columns]
    return columns + (list(scale_subresource(kind.scale).values()) if kind.scale else [])


def is_path_in_schema(path: str, schema: Object) -> bool:
    """Return True if the schema allows a value at `path`. Metadata and paths with filters are not checked."""
    names = path.removeprefix(".").split(".")
    if names[0] == "metadata" or "[" in path:
        return True
    node: Object | None = schema
    for name in names:
        if node is None or node.get(PRESERVE_UNKNOWN_FIELDS):
            break
        node = node.get("properties", {}).get(name) or node.get("additionalProperties")
    return node is not None


def version_names(versions: tuple[Kind[Any], ...]) -> str:
    return ", ".join(f"{kind.resource.name}/{kind.resource.version}" for kind in versions) or "crd()"


def decode_spec(kind: Kind[S], obj: Object) -> S:
    """Return the spec of `obj` as its Struct, with defaults filled in. Unknown fields are ignored.

    Raise InvalidSpec: `spec.limits[2].percent: expected `int` <= 100, found 140`.
    """
    try:
        return msgspec.convert(obj.get("spec", {}), kind.spec, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        raise InvalidSpec(spec_error_message(str(error), obj)) from None


def spec_error_message(error: str, obj: Object) -> str:
    """Return msgspec's message about a spec, prefixed with the path and followed by the value."""
    message, _, location = error.partition(" - at `$")
    path = f"spec{location.removesuffix('`')}"
    if missing := re.fullmatch("Object missing required field `(.*)`", message):
        return f"{path}.{missing[1]}: is required"
    prefixed = f"{path}: {message[0].lower()}{message[1:]}"
    if "[...]" in path:  # a value in a dict: msgspec does not name the key
        return prefixed
    steps = [int(index) if index else name for name, index in re.findall(r"([^.[\]]+)|\[(\d+)\]", path)]
    return f"{prefixed}, found {value_at(obj, *steps)!r}"
