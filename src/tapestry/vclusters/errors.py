"""Errors of the lifecycle API: one code, one reason and details for programs, the same by REST and by gRPC."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from tapestry.apis.vclusters import Phase
from tapestry.kube.objects import Object

DOMAIN = "vcluster.tapestry.io"
MAX_MESSAGE = 4096
TYPE_PREFIX = "type.googleapis.com/google.rpc."


class Code(Enum):
    """gRPC status codes with their HTTP statuses."""

    CANCELLED = (1, 499)
    UNKNOWN = (2, 500)
    INVALID_ARGUMENT = (3, 400)
    DEADLINE_EXCEEDED = (4, 504)
    NOT_FOUND = (5, 404)
    ALREADY_EXISTS = (6, 409)
    PERMISSION_DENIED = (7, 403)
    RESOURCE_EXHAUSTED = (8, 429)
    FAILED_PRECONDITION = (9, 400)
    ABORTED = (10, 409)
    OUT_OF_RANGE = (11, 400)
    UNIMPLEMENTED = (12, 501)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)
    UNAUTHENTICATED = (16, 401)

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def http_status(self) -> int:
        return self.value[1]


class Violation(NamedTuple):
    """Fault of one field, or excess of one limit."""

    subject: str
    description: str


class ServiceError(Exception):
    """Error that a client of the lifecycle API gets."""

    def __init__(
        self,
        code: Code,
        reason: str,
        message: str,
        metadata: Mapping[str, str] | None = None,
        details: Sequence[Object] = (),
        http_status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message[:MAX_MESSAGE]
        self.metadata, self.details = dict(metadata or {}), tuple(details)
        self.http_status = http_status or code.http_status

    @property
    def all_details(self) -> list[Object]:
        """The details in the JSON encoding of google.protobuf.Any; the first one is the ErrorInfo."""
        info = {"reason": self.reason, "domain": DOMAIN, "metadata": self.metadata}
        return [detail("ErrorInfo", info), *self.details]

    def body(self) -> Object:
        """Return the error as the body of an HTTP response."""
        error = {"code": self.http_status, "status": self.code.name, "message": self.message}
        return {"error": {**error, "details": self.all_details}}


def detail(type: str, fields: Mapping[str, Any]) -> Object:
    """Return a detail without empty fields, as JSON encodes messages."""
    return {"@type": TYPE_PREFIX + type, **{name: value for name, value in fields.items() if value}}


def field_violations(violations: Iterable[Violation]) -> Object:
    return detail(
        "BadRequest", {"fieldViolations": [{"field": each[0], "description": each[1]} for each in violations]}
    )


def retry_info(seconds: float) -> Object:
    return detail("RetryInfo", {"retryDelay": f"{max(seconds, 0):.3f}s"})


def described(violations: Iterable[Violation]) -> str:
    return "; ".join(f"{subject}: {description}" for subject, description in violations)


# -- invalid requests


def field_invalid(*violations: Violation) -> ServiceError:
    return ServiceError(
        Code.INVALID_ARGUMENT, "FIELD_INVALID", described(violations), details=[field_violations(violations)]
    )


def field_unsupported(*violations: Violation) -> ServiceError:
    """Return the error for fields that the engine can neither honor nor map."""
    metadata = {"fields": ",".join(subject for subject, _ in violations)}
    failures = [{"type": "FIELD", "subject": subject, "description": text} for subject, text in violations]
    details = [detail("PreconditionFailure", {"violations": failures}), field_violations(violations)]
    return ServiceError(Code.FAILED_PRECONDITION, "FIELD_UNSUPPORTED", described(violations), metadata, details)


def request_id_reused() -> ServiceError:
    message = "requestId: another request had this id; repeat a request unchanged, or use a new id"
    violation = Violation("requestId", "was used for another request")
    return ServiceError(Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED", message, details=[field_violations([violation])])


def resource_version_expired(oldest: int) -> ServiceError:
    message = f"resourceVersion: the history begins at {oldest}; list again, and watch from the list"
    return ServiceError(Code.OUT_OF_RANGE, "RESOURCE_VERSION_EXPIRED", message, {"oldest": str(oldest)})


# -- state of the resource


def not_found(kind: str, name: str) -> ServiceError:
    """Return the error for a resource that does not exist, or that the caller may not know of."""
    info = detail("ResourceInfo", {"resourceType": kind, "resourceName": name})
    return ServiceError(Code.NOT_FOUND, "RESOURCE_NOT_FOUND", f"{kind} {name} was not found", details=[info])


def already_exists(kind: str, name: str) -> ServiceError:
    info = detail("ResourceInfo", {"resourceType": kind, "resourceName": name})
    return ServiceError(Code.ALREADY_EXISTS, "RESOURCE_EXISTS", f"{kind} {name} already exists", details=[info])


def phase_not_allowed(name: str, verb: str, phase: Phase, allowed: Iterable[Phase]) -> ServiceError:
    names = ", ".join(each.name for each in allowed)
    message = f"{verb} of virtual cluster {name} is not possible in the phase {phase.name}, only in {names}"
    failure = {"type": "PHASE", "subject": name, "description": message}
    details = [detail("PreconditionFailure", {"violations": [failure]})]
    metadata = {"phase": phase.name, "allowed": names}
    return ServiceError(Code.FAILED_PRECONDITION, "PHASE_NOT_ALLOWED", message, metadata, details)


def precondition_failed(reason: str, subject: str, message: str) -> ServiceError:
    failure = {"type": reason, "subject": subject, "description": message}
    details = [detail("PreconditionFailure", {"violations": [failure]})]
    return ServiceError(Code.FAILED_PRECONDITION, reason, message, details=details)


def no_host_capacity(message: str) -> ServiceError:
    return precondition_failed("NO_HOST_CAPACITY", "host_cluster", message)


def deletion_protected(name: str) -> ServiceError:
    message = f"virtual cluster {name} is protected from deletion; set deletion_protection to false first"
    return precondition_failed("DELETION_PROTECTED", name, message)


def operation_in_progress(name: str, operation: str) -> ServiceError:
    message = f"operation {operation} runs on virtual cluster {name}; wait for it, or cancel it"
    return ServiceError(Code.ABORTED, "OPERATION_IN_PROGRESS", message, {"operation": operation})


def etag_mismatch(name: str, *, is_header: bool) -> ServiceError:
    """Return the error for a resource that has changed. The etag was in the header If-Match, or in the request."""
    message = f"{name} has changed since it was read; read it again"
    return ServiceError(Code.ABORTED, "ETAG_MISMATCH", message, http_status=412 if is_header else None)


# -- limits and access


def quota_exceeded(project: str, violations: Sequence[Violation]) -> ServiceError:
    failures = [{"subject": subject, "description": text} for subject, text in violations]
    details = [detail("QuotaFailure", {"violations": failures})]
    message = f"quota of project {project} exceeded: {described(violations)}"
    return ServiceError(Code.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED", message, {"project": project}, details)


def rate_limited(seconds: float) -> ServiceError:
    message = f"too many requests; try again in {seconds:.1f} s"
    return ServiceError(Code.RESOURCE_EXHAUSTED, "RATE_LIMITED", message, details=[retry_info(seconds)])


def unauthenticated(message: str = "the request has no valid credentials") -> ServiceError:
    return ServiceError(Code.UNAUTHENTICATED, "UNAUTHENTICATED", message)


def permission_denied(verb: str, resource: str) -> ServiceError:
    message = f"you may not {verb} {resource}"
    return ServiceError(Code.PERMISSION_DENIED, "PERMISSION_DENIED", message, {"verb": verb, "resource": resource})


# -- failures of the service


def host_unreachable(host: str, message: str) -> ServiceError:
    text = f"host cluster {host} does not answer: {message}"
    return ServiceError(Code.UNAVAILABLE, "HOST_UNREACHABLE", text, {"host": host}, [retry_info(5)])


def unavailable(message: str) -> ServiceError:
    return ServiceError(Code.UNAVAILABLE, "UNAVAILABLE", message, details=[retry_info(1)])


def internal() -> ServiceError:
    """Return the error for an unexpected exception. It has no details, because they may be secret."""
    return ServiceError(Code.INTERNAL, "INTERNAL", "the request failed; the log of the service says why")
