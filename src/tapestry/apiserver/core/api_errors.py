"""Constructors for API errors, with the same reasons and messages as Kubernetes."""

from typing import Any

from tapestry.apiserver.core.store import ObjectTooLarge, OutcomeUnknown, StorageError, StorageUnavailable
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
    """Return the `details` of a Status; `kind` defaults to the plural of the resource."""
    result = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in result.items() if value}


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
    """Return the error for a failed precondition of a deletion; `field` is UID or ResourceVersion."""
    change = "deleted and then recreated" if field == "UID" else "modified"
    message = (
        f'Operation cannot be fulfilled on {qualified_kind(resource)} "{name}": '
        f"the {field} in the precondition ({expected}) does not match the {field} in record ({actual}). "
        f"The object might have been {change}"
    )
    return Conflict(409, "Conflict", message, details=status_details(resource, name, resource.kind))


def resource_version_expired(requested: int, oldest: int) -> Gone:
    return Gone(410, "Expired", f"too old resource version: {requested} ({oldest})")


class ExpiredList(Gone):
    """A list at a compacted revision; with a token, the client can continue at the current revision."""

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
    """`why` starts with a key of CAUSE_REASONS and a colon."""
    causes = [{"reason": CAUSE_REASONS[why.partition(":")[0]], "message": why, "field": field}]
    message = f'{qualified_kind(resource)} "{name}" is invalid: {field}: {why}'
    return Invalid(422, "Invalid", message, details={**status_details(resource, name, resource.kind), "causes": causes})


def invalid_patch(why: str) -> Invalid:
    return Invalid(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")


def invalid_patch_result(why: str) -> Invalid:
    """Return the error for a patch whose result is not a valid object."""
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


def forbidden_path(user: str, verb: str, path: str) -> Forbidden:
    return Forbidden(403, "Forbidden", f'forbidden: User "{user}" cannot {verb} path "{path}"')


def unauthorized() -> Unauthorized:
    return Unauthorized(401, "Unauthorized", "Unauthorized")


class KubectlForbidden(Forbidden):
    """A rejection of kubectl.  It is sent as text: kubectl ignores a Status in the response to API discovery."""


def kubectl_disabled() -> KubectlForbidden:
    why = "this server does not serve kubectl (--kubectl-disabled); use `tapestry k` or another client"
    return KubectlForbidden(403, "Forbidden", why)


def ephemeral_token_required() -> KubectlForbidden:
    why = (
        "kubectl must use a token that expires (--kubectl-ephemeral-token): run `tapestry token create --user NAME` "
        "on the machine of the server, and pass its output to kubectl with --token"
    )
    return KubectlForbidden(403, "Forbidden", why)


def too_many_requests() -> TooManyRequests:
    message = "Too many requests, please try again later."
    return TooManyRequests(429, "TooManyRequests", message, details={"retryAfterSeconds": 1})


def share_exceeded() -> TooManyRequests:
    error = too_many_requests()
    message = "this server uses more than its share of the process, with the work of its controllers: try again later"
    return TooManyRequests(error.code, error.reason, message, details=error.details)


def work_limit_exceeded() -> TooLarge:
    why = "Request entity too large: it exceeds the work limit of one request"
    return TooLarge(413, "RequestEntityTooLarge", why)


def request_timed_out() -> Timeout:
    return Timeout(504, "Timeout", "Timeout: request did not complete within the allotted timeout")


def storage_failure(error: StorageError) -> ApiError:
    """Map a failed write to 413 or 503 for its size or an outage, 504 if its outcome is unknown, 500 otherwise."""
    match error:
        case ObjectTooLarge():
            return TooLarge(413, "RequestEntityTooLarge", f"Request entity too large: {error}")
        case StorageUnavailable():
            return Unavailable(503, "ServiceUnavailable", str(error), details={"retryAfterSeconds": 1})
        case OutcomeUnknown():
            return Timeout(504, "Timeout", str(error))
    return internal_error(str(error))


def internal_error(why: str) -> ServerError:
    details = {"causes": [{"message": why}]}
    return ServerError(500, "InternalError", f"Internal error occurred: {why}", details=details)


JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
"""JSON type names as in the messages of Go's JSON decoder."""


def unmarshal_message(value: Any, go_type: str) -> str:
    """Return the message of Go's JSON decoder for a value of the wrong type."""
    return f"json: cannot unmarshal {JSON_TYPES.get(type(value), 'value')} into {go_type}"


def not_an_object(kind: str, body: Any) -> BadRequest:
    """Return the error for a body that is not a JSON object."""
    result = "the body is empty" if body is None else unmarshal_message(body, "an object")
    return bad_request(f"the object provided is unrecognized (must be of type {kind}): {result}")


def invalid_metadata(resource: Resource, metadata: Any) -> BadRequest:
    kind = resource.kind
    why = unmarshal_message(metadata, f"Go struct field {kind}.metadata of type v1.ObjectMeta")
    return bad_request(f'{kind} in version "{resource.api_version}" cannot be handled as a {kind}: {why}')


def check_patch_type(patch: Any, expected: type, go_type: str) -> None:
    """Raise BadRequest if a patch, or a part of one, is not of the expected type."""
    if patch is None:
        raise bad_request("error decoding patch: unexpected end of JSON input")
    if not isinstance(patch, expected):
        raise bad_request(f"error decoding patch: {unmarshal_message(patch, f'Go value of type {go_type}')}")
