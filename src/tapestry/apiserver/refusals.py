"""The refusals of an API server, in Kubernetes' own words: people and programs look for them."""

from typing import TYPE_CHECKING, Any

from tapestry.apiserver.storage.log import LogError, OutcomeUnknown, Unreachable
from tapestry.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Timeout,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
)
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource

if TYPE_CHECKING:
    from tapestry.apiserver.requests import Target

LIST_OPTIONS = Resource("meta.k8s.io", "v1", "ListOptions", "listoptions")
PATCH_OPTIONS = Resource("meta.k8s.io", "v1", "PatchOptions", "patchoptions")
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
CAUSES = {
    "Invalid value": "FieldValueInvalid",
    "Forbidden": "FieldValueForbidden",
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Too long": "FieldValueTooLong",
}


def details(resource: Resource, name: str, kind: str = "") -> Object:
    """What a Status says of the object; `kind` is the resource's plural unless given."""
    found = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in found.items() if value}


def qualified_kind(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def bad_request(message: str) -> BadRequest:
    return BadRequest(400, "BadRequest", message)


def no_such_path() -> NotFound:
    return NotFound(404, "NotFound", "the server could not find the requested resource")


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(404, "NotFound", f'{resource.name} "{name}" not found', details=details(resource, name))


def not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def terminating() -> MethodNotAllowed:
    why = "create not allowed while custom resource definition is terminating"
    return MethodNotAllowed(405, "MethodNotAllowed", why)


def already_exists(resource: Resource, name: str, *, is_deleting: bool = False) -> AlreadyExists:
    message = f'{"object is being deleted: " if is_deleting else ""}{resource.name} "{name}" already exists'
    return AlreadyExists(409, "AlreadyExists", message, details=details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> Conflict:
    message = f'Operation cannot be fulfilled on {resource.name} "{name}": {why}'
    return Conflict(409, "Conflict", message, details=details(resource, name))


def other_uid(resource: Resource, name: str, wanted: str, found: str) -> Conflict:
    return conflict(resource, name, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}")


def failed_precondition(resource: Resource, name: str, field: str, wanted: str, found: str) -> Conflict:
    """Of a deletion; `field` is UID or ResourceVersion."""
    fate = "deleted and then recreated" if field == "UID" else "modified"
    message = (
        f'Operation cannot be fulfilled on {qualified_kind(resource)} "{name}": '
        f"the {field} in the precondition ({wanted}) does not match the {field} in record ({found}). "
        f"The object might have been {fate}"
    )
    return Conflict(409, "Conflict", message, details=details(resource, name, resource.kind))


def expired(asked: int, oldest: int) -> Gone:
    return Gone(410, "Expired", f"too old resource version: {asked} ({oldest})")


class ExpiredList(Gone):
    """A list of a moment that is no longer remembered; with a token it can go on, though not as of one moment."""

    def __init__(self, token: str) -> None:
        page = "The provided continue parameter is too old to display a consistent list result."
        message = page if token else "The resourceVersion for the provided list is too old."
        super().__init__(410, "Expired", message)
        self._token = token

    def status(self) -> Object:
        return {**super().status(), "metadata": {"continue": self._token} if self._token else {}}


def unknown_format(content_type: str) -> UnsupportedMediaType:
    message = f"the body of the request was in an unknown format - {content_type}"
    return UnsupportedMediaType(415, "UnsupportedMediaType", message)


def unknown_patch(accepted: str) -> UnsupportedMediaType:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return UnsupportedMediaType(415, "UnsupportedMediaType", message)


def invalid(resource: Resource, name: str, field: str, why: str) -> Invalid:
    """`why` begins with one of the words of CAUSES and a colon."""
    causes = [{"reason": CAUSES[why.partition(":")[0]], "message": why, "field": field}]
    message = f'{qualified_kind(resource)} "{name}" is invalid: {field}: {why}'
    return Invalid(422, "Invalid", message, details={**details(resource, name, resource.kind), "causes": causes})


def rejected_patch(why: str) -> Invalid:
    return Invalid(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def unfit_patch(why: str) -> Invalid:
    """Of a patch that makes of the object what cannot be one."""
    causes = [{"reason": "FieldValueInvalid", "message": f"Invalid value: {why}", "field": "patch"}]
    return Invalid(422, "Invalid", f' "" is invalid: patch: Invalid value: {why}', details={"causes": causes})


def too_new(asked: str, current: int) -> Timeout:
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return Timeout(504, "Timeout", message, details={"retryAfterSeconds": 1, "causes": causes})


def not_acceptable(accept: str) -> ApiError:
    message = "only the following media types are accepted: application/json, application/yaml"
    return ApiError(406, "NotAcceptable", f"{message}; asked for was {accept}" if accept else message)


def too_large(limit: int) -> TooLarge:
    return TooLarge(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def forbidden(user: str, verb: str, target: "Target", why: str = "") -> Forbidden:
    resource = target.row.resource
    kind = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    named = f'{resource.name} "{target.name}"' if target.name else resource.name
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    message = (
        f'{named} is forbidden: User "{user}" cannot {verb} resource "{kind}" in API group "{resource.group}" {where}'
    )
    return Forbidden(403, "Forbidden", f"{message}: {why}" if why else message, details=details(resource, target.name))


def forbidden_path(user: str, verb: str, path: str) -> Forbidden:
    return Forbidden(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"')


def unauthorized() -> Unauthorized:
    return Unauthorized(401, "Unauthorized", "Unauthorized")


def agent_refused() -> Forbidden:
    return Forbidden(403, "Forbidden", "this server does not serve kubectl (--kubectl-disabled)")


def lasting_token_refused() -> Forbidden:
    why = "kubectl must show a token that expires (--kubectl-ephemeral-token); `tapestry token create` makes one"
    return Forbidden(403, "Forbidden", why)


def too_many_requests() -> TooManyRequests:
    message = "Too many requests, please try again later."
    return TooManyRequests(429, "TooManyRequests", message, details={"retryAfterSeconds": 1})


def too_costly() -> TooLarge:
    why = "Request entity too large: it takes more work than the server does for one request"
    return TooLarge(413, "RequestEntityTooLarge", why)


def out_of_time() -> Timeout:
    return Timeout(504, "Timeout", "Timeout: request did not complete within the allotted timeout")


def not_kept(error: LogError) -> ServerError:
    """A write that may be tried again, one of which nobody knows whether it was made, or one that was not."""
    match error:
        case Unreachable():
            return Unavailable(503, "ServiceUnavailable", str(error), details={"retryAfterSeconds": 1})
        case OutcomeUnknown():
            return Timeout(504, "Timeout", str(error))
    return internal(str(error))


def internal(why: str) -> ServerError:
    details = {"causes": [{"message": why}]}
    return ServerError(500, "InternalError", f"Internal error occurred: {why}", details=details)


JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
"""As Go's decoder calls what it has found."""


def not_into(value: Any, wanted: str) -> str:
    """What Go's decoder says of a value of the wrong type."""
    return f"json: cannot unmarshal {JSON_TYPES.get(type(value), 'value')} into {wanted}"


def no_object(kind: str, body: Any) -> BadRequest:
    """A body that is no object at all."""
    found = "the body is empty" if body is None else not_into(body, "an object")
    return bad_request(f"the object provided is unrecognized (must be of type {kind}): {found}")


def no_metadata(resource: Resource, found: Any) -> BadRequest:
    kind = resource.kind
    why = not_into(found, f"Go struct field {kind}.metadata of type v1.ObjectMeta")
    return bad_request(f'{kind} in version "{resource.api_version}" cannot be handled as a {kind}: {why}')


def check_type(patch: Any, wanted: type, name: str) -> None:
    """Raises BadRequest where a patch, or a part of one, has another type than the one called `name`."""
    if patch is None:
        raise bad_request("error decoding patch: unexpected end of JSON input")
    if not isinstance(patch, wanted):
        raise bad_request(f"error decoding patch: {not_into(patch, f'Go value of type {name}')}")
