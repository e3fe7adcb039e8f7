"""Translation between the JSON of REST and the messages of the contract."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tapestry.kube.objects import Object
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Violation, field_invalid
from tapestry.vclusters.rest_routes import BODY_IS_MESSAGE, RPCS, Match

VCLUSTER = api.VCluster.DESCRIPTOR
MAX_BODY_BYTES = 1 << 20
MAX_DEPTH = 32
"""Maximum depth of a body. The deepest message of the contract has 6 levels."""
MAX_ENCODED = 10_000
"""Virtual clusters whose JSON is cached, about 1 KiB each."""


def request_message(match: Match, query: Iterable[tuple[str, str]], body: bytes) -> Message:
    """Return the request message of an HTTP request. Raises ServiceError."""
    descriptor = RPCS[match.route.method].input_type
    fields = body_fields(match, descriptor, body)
    for name, text in query:
        set_parameter(fields, descriptor, name, text)
    for name, text in match.parameters.items():
        set_path_parameter(fields, descriptor, name, text)
    message: Message = GetMessageClass(descriptor)()
    try:
        json_format.ParseDict(fields, message, max_recursion_depth=MAX_DEPTH)
    except (json_format.ParseError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise field_invalid(Violation(field_in(str(error)), str(error)[:500])) from error
    return message


def field_in(error: str) -> str:
    """Return the path of the field that an error of the JSON parser names."""
    _, _, rest = error.partition("Failed to parse ")
    return rest.partition(" field:")[0][:200] or "body"


def body_fields(match: Match, descriptor: Descriptor, body: bytes) -> Object:
    route = match.route
    if not route.body:
        if body.strip():
            raise field_invalid(Violation("body", f"{route.http_method} {route.template} has no body"))
        return {}
    try:
        value = msgspec.json.decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise field_invalid(Violation("body", f"is not JSON: {error}")) from error
    if not isinstance(value, dict):
        raise field_invalid(Violation("body", "must be a JSON object"))
    if route.body == BODY_IS_MESSAGE:
        return value
    return {descriptor.fields_by_name[route.body].json_name: value}


def field_of(descriptor: Descriptor, name: str) -> FieldDescriptor | None:
    """Return a field by its name in the contract or in JSON."""
    field: FieldDescriptor | None = descriptor.fields_by_name.get(name) or descriptor.fields_by_camelcase_name.get(name)
    return field


def set_parameter(fields: Object, descriptor: Descriptor, name: str, text: str) -> None:
    """Set the field of a query parameter. The JSON parser converts it, except what JSON does not write as a string."""
    field = field_of(descriptor, name)
    if field is None:
        raise field_invalid(Violation(name[:200], "is not a parameter of this request"))
    if field.message_type is not None and field.message_type.full_name not in PLAIN_MESSAGES:
        raise field_invalid(Violation(name, "must be in the body"))
    value = boolean(name, text) if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else text
    if field.is_repeated:
        parts = [part for part in text.split(",") if part]
        fields.setdefault(field.json_name, []).extend(parts)
        return
    fields.pop(field.name, None)
    fields[field.json_name] = value


PLAIN_MESSAGES = frozenset({"google.protobuf.Timestamp", "google.protobuf.FieldMask"})
"""Messages that are strings in JSON."""


def boolean(name: str, text: str) -> bool:
    if text not in ("", "true", "false"):
        raise field_invalid(Violation(name, f"must be true or false, not {text[:50]}"))
    return text != "false"


def set_path_parameter(fields: Object, descriptor: Descriptor, path: str, text: str) -> None:
    """Set the field of a path parameter. The body may repeat it, but not contradict it."""
    *parents, last = path.split(".")
    for parent in parents:
        field = descriptor.fields_by_name[parent]
        nested = fields.get(field.json_name, fields.pop(field.name, {}))
        if not isinstance(nested, dict):
            raise field_invalid(Violation(parent, "must be a JSON object"))
        fields[field.json_name] = fields = nested
        descriptor = field.message_type
    field = descriptor.fields_by_name[last]
    for name in {field.name, field.json_name}:
        given = fields.pop(name, None)
        if given not in (None, "", text):
            raise field_invalid(Violation(path, f"is {text} in the path, and another value in the request"))
    fields[field.json_name] = text


def response_fields(message: Message) -> Object:
    """Return the fields of a message in JSON. Virtual clusters are encoded already: most were before."""
    descriptor = message.DESCRIPTOR
    if not any(each.message_type is VCLUSTER for each in descriptor.fields):
        fields: Object = json_format.MessageToDict(message)
        return fields
    given = message.ListFields()
    others = {each.name: value for each, value in given if each.message_type is not VCLUSTER}
    fields = json_format.MessageToDict(type(message)(**others))
    for each, value in given:
        if each.message_type is VCLUSTER:
            is_list = each.is_repeated
            fields[each.json_name] = [ENCODED.of(item) for item in value] if is_list else ENCODED.of(value)
    return fields


def encoded(fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(fields)


@dataclass(frozen=True)
class EncodedVClusters:
    """JSON of virtual clusters by what identifies their content. No kubeconfig is cached."""

    _known: OrderedDict[tuple[str, str, str], msgspec.Raw] = field(default_factory=OrderedDict)

    def of(self, vcluster: Any) -> msgspec.Raw:
        key = (vcluster.id, vcluster.resource_version, vcluster.etag)
        if not all(key) or vcluster.status.kubeconfig:
            return encode_vcluster(vcluster)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = encode_vcluster(vcluster)
            if len(self._known) > MAX_ENCODED:
                self._known.popitem(last=False)
        return found


def encode_vcluster(vcluster: Message) -> msgspec.Raw:
    return msgspec.Raw(encoded(json_format.MessageToDict(vcluster)))


ENCODED = EncodedVClusters()
