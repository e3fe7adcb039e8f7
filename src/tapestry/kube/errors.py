"""Errors of requests to an API server, one class per HTTP status.

    KubeError
    ├── TransportError            no response: the state of the object is unknown (never a lifecycle decision)
    └── ApiError                  the server responded with a Status
        ├── BadRequest 400        ├── Forbidden 403         ├── MethodNotAllowed 405
        ├── Unauthorized 401      ├── NotFound 404          ├── UnsupportedMediaType 415
        ├── Conflict 409 ── AlreadyExists
        ├── Gone 410              ├── TooLarge 413          ├── Invalid 422
        ├── TooManyRequests 429
        └── ServerError 5xx ── Unavailable 503, Timeout 504

Logs and metric labels contain the class name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class KubeError(Exception):
    """Base class of all errors of requests to an API server."""


class TransportError(KubeError):
    """No response was received. `maybe_sent` is True if the server may have processed the request."""

    def __init__(self, message: str, *, maybe_sent: bool) -> None:
        super().__init__(message)
        self.maybe_sent = maybe_sent


class ResponseTooLarge(TransportError):
    """The response is larger than the read limit."""


class ApiError(KubeError):
    """The server rejected the request. `reason`, `details` and `message` are those of its Status."""

    warning = ""
    """Text of the Warning header of the response."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Mapping[str, Any] | None = None, action: str = ""
    ) -> None:
        super().__init__(f"{action}: {code} {reason}: {message}" if action else f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details: Mapping[str, Any] = details or {}

    @property
    def causes(self) -> list[Mapping[str, Any]]:
        """Causes in the details of the Status."""
        causes = self.details.get("causes")
        return [each for each in causes if isinstance(each, dict)] if isinstance(causes, list) else []

    @property
    def retry_after(self) -> float | None:
        """Seconds that the server asks the client to wait, from the Status."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None

    def status(self) -> dict[str, Any]:
        """Return the equivalent Status object."""
        return {
            "apiVersion": "v1",
            "kind": "Status",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
            "details": dict(self.details),
        }


class BadRequest(ApiError): ...


class Unauthorized(ApiError): ...


class Forbidden(ApiError): ...


class NotFound(ApiError): ...


class MethodNotAllowed(ApiError): ...


class Conflict(ApiError):
    """The object changed since it was read, or a precondition failed."""


class AlreadyExists(Conflict): ...


class Gone(ApiError):
    """The resourceVersion or the continue token is too old. The client must list again."""


class TooLarge(ApiError): ...


class UnsupportedMediaType(ApiError): ...


class Invalid(ApiError):
    """The object is invalid. `details["causes"]` has a field and a message for each error."""


class TooManyRequests(ApiError): ...


class ServerError(ApiError): ...


class Unavailable(ServerError): ...


class Timeout(ServerError): ...


ERRORS_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    503: Unavailable,
    504: Timeout,
}


def error_from_status(status: Mapping[str, Any], *, code: int | None = None, action: str = "") -> ApiError:
    """Return the error for a Status object. `code` is the HTTP code, used if the Status has none."""
    status_code = status.get("code")
    error_code = status_code if isinstance(status_code, int) and status_code else code or 500
    reason = str(status.get("reason") or "Unknown")
    kind = (
        AlreadyExists
        if reason == "AlreadyExists"
        else ERRORS_BY_CODE.get(error_code, ServerError if error_code >= 500 else ApiError)
    )
    details = status.get("details")
    return kind(
        error_code,
        reason,
        str(status.get("message") or "the server sent no message"),
        details=details if isinstance(details, dict) else None,
        action=action,
    )


def error_from_body(code: int, body: bytes, *, action: str = "") -> ApiError:
    """Return the error for an HTTP response. A body that is not a Status, for example a proxy's page, is quoted."""
    try:
        status = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return error_from_status(status, code=code, action=action)
    text = body[:300].decode("utf-8", "replace").strip() or "the response has no body"
    return error_from_status({"message": text, "reason": "Unknown"}, code=code, action=action)


def is_namespace_terminating(error: ApiError) -> bool:
    return any(cause.get("reason") == "NamespaceTerminating" for cause in error.causes)


def is_create_unauthorized(error: ApiError) -> bool:
    """Return whether the authorizer rejected the creation of an object with a name.

    It does not know the name, which is in the body. Admission does, and webhooks send no details.
    """
    return isinstance(error, Forbidden) and "kind" in error.details and "name" not in error.details


def is_denied_by_policy(error: ApiError) -> bool:
    """Return whether a ValidatingAdmissionPolicy denied the request: only then a cause has nothing but a message."""
    return isinstance(error, Invalid | Forbidden) and any(cause.keys() == {"message"} for cause in error.causes)


# Kubernetes reports the following only in messages: the Status of a quota and that of a missing PriorityClass have the
# code, reason and details of any other rejection by admission, and an unschedulable pod has only one reason.


def is_over_quota(error: ApiError) -> bool:
    return isinstance(error, Forbidden) and "exceeded quota" in error.message


def is_priority_class_missing(error: ApiError) -> bool:
    return isinstance(error, Forbidden) and "no PriorityClass with name" in error.message


def reports_insufficient_resources(message: str) -> bool:
    """Return whether the message of a scheduler says that nodes have too little of a resource."""
    return "Insufficient" in message or "Too many pods" in message
