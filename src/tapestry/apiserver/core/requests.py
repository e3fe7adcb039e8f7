"""API requests: the call, its target, its attributes for authorization, and the write that it asks for."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.resource_registry import ResourceInfo, ResourceRegistry
from tapestry.apiserver.core.store import Key, Precondition, Store
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

Query = Mapping[str, str]
TRUE_VALUES = ("1", "true")
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


MASTERS_GROUP = "system:masters"
"""Group that may do everything and has no limits."""
APISERVER_USER = User("system:apiserver", (MASTERS_GROUP,))
BOOTSTRAP_USER = User("system:apiserver", (MASTERS_GROUP,))
"""The same user during startup. Admission webhooks are not called for its writes, since they may not run yet."""


def user_info(user: User) -> Object:
    result: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        result["uid"] = user.uid
    if user.extra:
        result["extra"] = {key: list(values) for key, values in user.extra.items()}
    return result


class BodyReader(Protocol):
    """A request body that is still arriving."""

    async def read(self) -> bytes:
        """Return the complete body. Raises TooLarge, Timeout or TooManyRequests if it is rejected."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without a limit on its size."""
        ...


@dataclass(slots=True)
class AuditedBody:
    """The decoded body for the audit log; filled only when the server decodes it."""

    is_filled: bool = False
    body: Any = None
    size: int = 0
    """Size of the encoded body in bytes."""

    def fill(self, body: Any, size: int) -> None:
        if not self.is_filled:
            self.is_filled, self.body, self.size = True, body, size


class CallOrigin(Enum):
    """Sender of a request. Nothing in a request sets it: all requests of listeners have the origin CLIENT."""

    CLIENT = "client"
    CONTROLLER = "controller"
    """A built-in controller in this process."""
    SYNCER = "syncer"
    """The syncer of a tenant in this process, which writes what the host cluster decides."""
    SERVICE = "service"
    """A service in this process, for a user. Its dry runs may create objects in a namespace that does not exist yet."""


class Call(msgspec.Struct, frozen=True):
    """One API request. Header names are in lower case."""

    method: str
    path: str
    query: Query
    headers: Mapping[str, str]
    body: bytes
    user: User
    impersonation_headers: tuple[tuple[str, str], ...] = ()
    """Impersonation headers, including repeated ones."""
    uri: str = ""
    """Path and query as sent by the client."""
    source_ip: str = ""
    """IP address of the client."""
    audit_annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """Additional annotations for the audit event; handlers and admission steps may add some."""
    body_reader: BodyReader | None = None
    """Source of the body until it is received, which happens after authorization."""
    decoded_body: Any = msgspec.UNSET
    """Decoded body, once it is decoded."""
    duplicate_keys: tuple[str, ...] = ()
    """Messages about keys that a YAML body sets twice, as in Kubernetes."""
    audited_body: AuditedBody | None = None
    """Set if the request is audited."""
    header_pairs: Sequence[tuple[str, str]] = ()
    """All headers in the order of arrival, including repeated ones."""
    is_upgrade: bool = False
    """True if the client requests an upgrade that can be accepted: nothing follows the head."""
    base_path: str = ""
    """Path under which clients reach this server; empty for the root. It is not part of `path` and `uri`."""
    origin: CallOrigin = CallOrigin.CLIENT
    """Sender of the request. Only `InProcessTransport` sets it."""


class Target(NamedTuple):
    """Object or collection that a path names: a collection if `name` is empty."""

    info: ResourceInfo
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return Key(self.info.storage, self.namespace, self.name)


class Attributes(msgspec.Struct, frozen=True):
    """Attributes of a request for authorization: a resource target, or a non-resource path."""

    user: User
    verb: str
    target: Target | None = None
    path: str = ""
    field_selector: str = ""
    """Field selector of a list, a watch or a collection deletion."""


Authorize = Callable[[Attributes], bool]


def forbidden_resource(user: str, verb: str, target: Target, why: str = "") -> Forbidden:
    resource = target.info.resource
    kind = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    named = f'{resource.name} "{target.name}"' if target.name else resource.name
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    message = (
        f'{named} is forbidden: User "{user}" cannot {verb} resource "{kind}" in API group "{resource.group}" {where}'
    )
    return Forbidden(
        403,
        "Forbidden",
        f"{message}: {why}" if why else message,
        details=api_errors.status_details(resource, target.name),
    )


Verb = Literal["create", "update", "patch", "delete"]


@dataclass(slots=True)
class WriteRequest:
    """A write request, as the steps of the pipeline see it."""

    verb: Verb
    target: Target
    user: User
    query: Query
    content_type: str = ""
    body: bytes = b""
    decoded_body: Any = None
    user_agent: str = ""
    duplicate_keys: tuple[str, ...] = ()
    """Messages about keys that a YAML body sets twice."""
    name: str = ""
    """Name of the object that is created."""
    warnings: list[str] = field(default_factory=list)
    audit_annotations: dict[str, str] = field(default_factory=dict)
    """Additional annotations for the audit event."""
    claim: Precondition | None = None
    """Precondition that the store checks with the write, and that reserves allocated values."""
    size: int = 0
    """Bytes of JSON to process: the largest of the body, the changed object and its schema."""
    origin: CallOrigin = CallOrigin.CLIENT

    @property
    def is_dry_run(self) -> bool:
        return "dryRun" in self.query


Step = Callable[[WriteRequest, Object | None, Object], Awaitable[Object]]
"""A step of a create or an update: (old, new) to the changed new object."""


DeleteStep = Callable[[WriteRequest, Object], Awaitable[None]]
"""A step of a deletion: rejects it, or adds warnings."""


@dataclass(frozen=True)
class AdmissionPlugin:
    """Admission of custom resources by the program that the server is part of.

    The steps run for every write, whether it comes from a listener or from this process. They see the object as it is
    to be stored, after webhooks have changed it and before its schema is checked. A step that counts objects checks the
    result again in `WriteRequest.claim`.
    """

    resources: frozenset[str]
    """Resources as in `Key.resource`, for example `planes.tapestry.io`."""
    admit: Step
    """Changes or rejects a create or an update, also of a subresource."""
    admit_delete: DeleteStep

    async def validate_delete(self, request: WriteRequest, current: Object) -> None:
        if request.target.info.storage in self.resources:
            await self.admit_delete(request, current)


BuildAdmission = Callable[[Store], AdmissionPlugin]
"""Build the plugin of a server for its store, before the store is loaded."""


Convert = Callable[[ResourceInfo, Sequence[Object], str], Awaitable[Sequence[Object]]]
"""Convert objects of a resource to another apiVersion."""


MAX_CACHED_PATHS, MAX_CACHED_PATH_LENGTH = 1024, 256
"""Limits of the cached targets of collections."""


def target_of(path: str, registry: ResourceRegistry) -> Target:
    """Return the target of `path`. Raises NotFound if no resource is served there."""
    known: Target | None = registry.collections.get(path)
    if known is not None:
        return known
    group, version, namespace, rest = split_path(path)
    if len(rest) > 3 and rest[2] == "proxy":
        rest = rest[:3]  # the proxied server gets the rest of the path
    info = registry.get(group, version, rest[0]) if rest else None
    if info is None or len(rest) > 3 or not is_valid_target(info, namespace, rest[1:]):
        raise api_errors.path_not_found()
    target = Target(info, namespace, *rest[1:])
    if not target.name and len(path) <= MAX_CACHED_PATH_LENGTH:
        if len(registry.collections) >= MAX_CACHED_PATHS:
            registry.collections.clear()
        registry.collections[path] = target
    return target


def unserved_target(path: str) -> Target | None:
    """Return the target of a path that is not served, or None if it is no resource path.

    The caller authorizes it before it reports NotFound.
    """
    group, version, namespace, rest = split_path(path)
    if not rest:
        return None
    return Target(ResourceInfo(Resource(group, version, rest[0], rest[0]), rest[0], ()), namespace, *rest[1:3])


def unserved_resource_info(group: str, plural: str) -> ResourceInfo:
    """Return the info of a resource that is not served, since access to it can be reviewed too."""
    return ResourceInfo(Resource(group, "v1", plural, plural), plural, ())


def split_path(path: str) -> tuple[str, str, str, list[str]]:
    """Return group, version, namespace and remaining segments; all are empty for other paths."""
    segments = path.strip("/").split("/")
    if "%" in path:
        segments = [unquote(each) for each in segments]
    if not INVALID_SEGMENTS.isdisjoint(segments):
        return "", "", "", []
    if segments[0] == "api" and len(segments) > 1:
        group, version, rest = "", segments[1], segments[2:]
    elif segments[0] == "apis" and len(segments) > 2:
        group, version, rest = segments[1], segments[2], segments[3:]
    else:
        return "", "", "", []
    if len(rest) > 2 and rest[0] == "namespaces" and (group, rest[2]) not in NAMESPACE_SUBRESOURCES:
        return group, version, rest[1], rest[2:]
    return group, version, "", rest


INVALID_SEGMENTS = frozenset({"", ".", ".."})
NAMESPACE_SUBRESOURCES = {("", "status"), ("", "finalize")}


def is_valid_target(info: ResourceInfo, namespace: str, rest: list[str]) -> bool:
    if namespace and not info.resource.namespaced:
        return False
    if rest and info.resource.namespaced and not namespace:
        return False
    return len(rest) < 2 or rest[1] in info.subresources


def first_segment(path: str) -> str:
    return path.partition("/")[2].partition("/")[0]


def verb_of(call: Call, target: Target) -> str:
    """Return the verb for authorization.

    Streams into a pod require `create`, whatever the method is. A kubelet serves such streams too.
    """
    if is_connect(target):
        is_stream = target.subresource != "proxy" or (call.is_upgrade and target.info.resource.name == "nodes")
        return "create" if is_stream else METHOD_VERBS.get(call.method, call.method.lower())
    if call.method in ("GET", "HEAD") and (not target.name or call.query.get("watch") in TRUE_VALUES):
        return "watch" if call.query.get("watch") in TRUE_VALUES else "list"
    if call.method == "DELETE" and not target.name:
        return "deletecollection"
    return METHOD_VERBS.get(call.method, call.method.lower())


def is_verb_supported(target: Target, verb: str) -> bool:
    """Return whether a resource supports a verb. Custom resources report unsupported verbs themselves."""
    info = target.info
    return info.is_custom or verb in (info.subresources[target.subresource] if target.subresource else info).verbs


STREAM_SUBRESOURCES = frozenset({"exec", "attach", "portforward"})
"""Subresources of pods whose requests are upgraded to a stream."""
CONNECT_SUBRESOURCES = STREAM_SUBRESOURCES | {"proxy"}
"""Subresources that connect the client to another server."""
PROXY_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


def is_connect(target: Target) -> bool:
    """Return whether a request connects the client to a pod, a service or a node."""
    return target.subresource in CONNECT_SUBRESOURCES and not target.info.is_remote


WRITE_VERBS: Mapping[str, Verb] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
METHOD_VERBS: Mapping[str, str] = {**WRITE_VERBS, "GET": "get", "HEAD": "get"}


def parse_number(text: str, field: str) -> int:
    """Parse a non-negative 64-bit integer parameter. Raises BadRequest for any other text."""
    if not DIGITS.fullmatch(text):
        raise api_errors.bad_request(f'{field}: Invalid value: "{text[:40]}": it is not a number')
    if int(text) > MAX_INT64:
        raise api_errors.bad_request(f'{field}: Invalid value: "{text}": it is out of range')
    return int(text)


DIGITS = re.compile("[0-9]{1,19}")
MAX_INT64 = 2**63 - 1


def allow_all(_: Attributes) -> bool:
    return True


def no_denial_reason(_: Attributes) -> str:
    return ""


def object_from_body(target: Target, body: Any) -> Object:
    """Return the body of a write as an object at its target. Raises BadRequest if they do not match."""
    resource = target.info.resource
    if not isinstance(body, dict):
        raise api_errors.not_an_object(resource.kind, body)
    if not isinstance(body.get("metadata"), dict | None):
        raise api_errors.invalid_metadata(resource, body["metadata"])
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = body.get("metadata") or {}
    if (version := body.get("apiVersion")) not in (None, "", resource.api_version):
        raise api_errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if body.get("kind") not in (None, "", resource.kind):
        raise api_errors.bad_request(
            f"the kind in the data ({body['kind']}) does not match the expected kind ({resource.kind})"
        )
    if metadata.get("namespace") not in (None, "", target.namespace):
        raise api_errors.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.name and metadata.get("name") not in (None, "", target.name):
        raise api_errors.bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    identity = {"namespace": target.namespace or None, "name": target.name or metadata.get("name")}
    # an empty list of managed fields is significant: it clears all entries
    result = without_empty_fields({**metadata, **identity}, keep=("managedFields",))
    # unchanged metadata stays the same value, so that later steps can skip it
    return {**kind, **body, **kind, "metadata": metadata if result == metadata else result}


def without_empty_fields(metadata: Object, keep: tuple[str, ...] = ()) -> Object:
    return {key: value for key, value in metadata.items() if value or key in keep or isinstance(value, int)}


def admission_forbidden(request: WriteRequest, reason: str, causes: list[Object] | None = None) -> Forbidden:
    """Return the error of an admission plugin that rejects a write."""
    resource, name = request.target.info.resource, request.target.name or request.name
    details = api_errors.status_details(resource, name) | ({"causes": causes} if causes else {})
    return Forbidden(403, "Forbidden", f'{resource.name} "{name}" is forbidden: {reason}', details=details)
