"""The refusals of an API server, in Kubernetes' own words: people and programs look for them."""

from typing import TYPE_CHECKING, Any

from tapestry.apiserver.storage.log import OutcomeUnknown, StorageError, StorageUnavailable
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
OBJECT_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
CAUSE_REASONS = {
    "Invalid value": "FieldValueInvalid",
    "Forbidden": "FieldValueForbidden",
    "Required value": "FieldValueRequired",
    "Unsupported value": "FieldValueNotSupported",
    "Too long": "FieldValueTooLong",
}


def status_details(resource: Resource, name: str, kind: str = "") -> Object:
    """What a Status says of the object; `kind` is the resource's plural unless given."""
    found = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in found.items() if value}


def qualified_kind(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def bad_request(message: str) -> BadRequest:
    return BadRequest(400, "BadRequest", message)


def path_not_found() -> NotFound:
    return NotFound(404, "NotFound", "the server could not find the requested resource")


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(404, "NotFound", f'{resource.name} "{name}" not found', details=status_details(resource, name))


def method_not_allowed() -> MethodNotAllowed:
    return MethodNotAllowed(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def crd_terminating() -> MethodNotAllowed:
    why = "create not allowed while custom resource definition is terminating"
    return MethodNotAllowed(405, "MethodNotAllowed", why)


def already_exists(resource: Resource, name: str, *, is_deleting: bool = False) -> AlreadyExists:
    message = f'{"object is being deleted: " if is_deleting else ""}{resource.name} "{name}" already exists'
    return AlreadyExists(409, "AlreadyExists", message, details=status_details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> Conflict:
    message = f'Operation cannot be fulfilled on {resource.name} "{name}": {why}'
    return Conflict(409, "Conflict", message, details=status_details(resource, name))


def uid_mismatch(resource: Resource, name: str, expected: str, actual: str) -> Conflict:
    return conflict(
        resource, name, f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
    )


def failed_precondition(resource: Resource, name: str, field: str, expected: str, actual: str) -> Conflict:
    """Of a deletion; `field` is UID or ResourceVersion."""
    fate = "deleted and then recreated" if field == "UID" else "modified"
    message = (
        f'Operation cannot be fulfilled on {qualified_kind(resource)} "{name}": '
        f"the {field} in the precondition ({expected}) does not match the {field} in record ({actual}). "
        f"The object might have been {fate}"
    )
    return Conflict(409, "Conflict", message, details=status_details(resource, name, resource.kind))


def resource_version_expired(requested: int, oldest: int) -> Gone:
    return Gone(410, "Expired", f"too old resource version: {requested} ({oldest})")


class ExpiredList(Gone):
    """A list of a moment that is no longer remembered; with a token it can go on, though not as of one moment."""

    def __init__(self, token: str) -> None:
        page = "The provided continue parameter is too old to display a consistent list result."
        message = page if token else "The resourceVersion for the provided list is too old."
        super().__init__(410, "Expired", message)
        self._token = token

    def status(self) -> Object:
        return {**super().status(), "metadata": {"continue": self._token} if self._token else {}}


def unsupported_media_type(content_type: str) -> UnsupportedMediaType:
    message = f"the body of the request was in an unknown format - {content_type}"
    return UnsupportedMediaType(415, "UnsupportedMediaType", message)


def unsupported_patch_type(accepted: str) -> UnsupportedMediaType:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return UnsupportedMediaType(415, "UnsupportedMediaType", message)


def invalid_field(resource: Resource, name: str, field: str, why: str) -> Invalid:
    """`why` begins with one of the words of CAUSES and a colon."""
    causes = [{"reason": CAUSE_REASONS[why.partition(":")[0]], "message": why, "field": field}]
    message = f'{qualified_kind(resource)} "{name}" is invalid: {field}: {why}'
    return Invalid(422, "Invalid", message, details={**status_details(resource, name, resource.kind), "causes": causes})


def invalid_patch(why: str) -> Invalid:
    return Invalid(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def invalid_patch_result(why: str) -> Invalid:
    """Of a patch that makes of the object what cannot be one."""
    causes = [{"reason": "FieldValueInvalid", "message": f"Invalid value: {why}", "field": "patch"}]
    return Invalid(422, "Invalid", f' "" is invalid: patch: Invalid value: {why}', details={"causes": causes})


def resource_version_too_large(requested: str, current: int) -> Timeout:
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return Timeout(504, "Timeout", message, details={"retryAfterSeconds": 1, "causes": causes})


def not_acceptable(accept: str) -> ApiError:
    message = "only the following media types are accepted: application/json, application/yaml"
    return ApiError(406, "NotAcceptable", f"{message}; asked for was {accept}" if accept else message)


def body_too_large(limit: int) -> TooLarge:
    return TooLarge(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def forbidden_resource(user: str, verb: str, target: "Target", why: str = "") -> Forbidden:
    resource = target.info.resource
    kind = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    named = f'{resource.name} "{target.name}"' if target.name else resource.name
    where = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    message = (
        f'{named} is forbidden: User "{user}" cannot {verb} resource "{kind}" in API group "{resource.group}" {where}'
    )
    return Forbidden(
        403, "Forbidden", f"{message}: {why}" if why else message, details=status_details(resource, target.name)
    )


def forbidden_path(user: str, verb: str, path: str) -> Forbidden:
    return Forbidden(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"')


def unauthorized() -> Unauthorized:
    return Unauthorized(401, "Unauthorized", "Unauthorized")


def kubectl_disabled() -> Forbidden:
    return Forbidden(403, "Forbidden", "this server does not serve kubectl (--kubectl-disabled)")


def ephemeral_token_required() -> Forbidden:
    why = "kubectl must show a token that expires (--kubectl-ephemeral-token); `tapestry token create` makes one"
    return Forbidden(403, "Forbidden", why)


def too_many_requests() -> TooManyRequests:
    message = "Too many requests, please try again later."
    return TooManyRequests(429, "TooManyRequests", message, details={"retryAfterSeconds": 1})


def work_limit_exceeded() -> TooLarge:
    why = "Request entity too large: it takes more work than the server does for one request"
    return TooLarge(413, "RequestEntityTooLarge", why)


def request_timed_out() -> Timeout:
    return Timeout(504, "Timeout", "Timeout: request did not complete within the allotted timeout")


def storage_failure(error: StorageError) -> ServerError:
    """A write that may be tried again, one of which nobody knows whether it was made, or one that was not."""
    match error:
        case StorageUnavailable():
            return Unavailable(503, "ServiceUnavailable", str(error), details={"retryAfterSeconds": 1})
        case OutcomeUnknown():
            return Timeout(504, "Timeout", str(error))
    return internal_error(str(error))


def internal_error(why: str) -> ServerError:
    details = {"causes": [{"message": why}]}
    return ServerError(500, "InternalError", f"Internal error occurred: {why}", details=details)


JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
"""As Go's decoder calls what it has found."""


def unmarshal_message(value: Any, go_type: str) -> str:
    """What Go's decoder says of a value of the wrong type."""
    return f"json: cannot unmarshal {JSON_TYPES.get(type(value), 'value')} into {go_type}"


def not_an_object(kind: str, body: Any) -> BadRequest:
    """A body that is no object at all."""
    found = "the body is empty" if body is None else unmarshal_message(body, "an object")
    return bad_request(f"the object provided is unrecognized (must be of type {kind}): {found}")


def invalid_metadata(resource: Resource, metadata: Any) -> BadRequest:
    kind = resource.kind
    why = unmarshal_message(metadata, f"Go struct field {kind}.metadata of type v1.ObjectMeta")
    return bad_request(f'{kind} in version "{resource.api_version}" cannot be handled as a {kind}: {why}')


def check_patch_type(patch: Any, expected: type, go_type: str) -> None:
    """Raises BadRequest where a patch, or a part of one, has another type than the one called `name`."""
    if patch is None:
        raise bad_request("error decoding patch: unexpected end of JSON input")
    if not isinstance(patch, expected):
        raise bad_request(f"error decoding patch: {unmarshal_message(patch, f'Go value of type {go_type}')}")
