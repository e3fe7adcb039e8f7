"""Errors of the management API as errors of the service."""

from collections.abc import Iterator
from contextlib import contextmanager

from tapestry.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    ServerError,
    TransportError,
    Unavailable,
)
from tapestry.process.logs import logger
from tapestry.vclusters.api_errors import service_error
from tapestry.vclusters.errors import (
    Code,
    ServiceError,
    Violation,
    already_exists,
    field_invalid,
    internal,
    not_found,
    precondition_failed,
    unavailable,
)

log = logger(__name__)


@contextmanager
def reported(kind: str, name: str) -> Iterator[None]:
    """Raise errors of the management API as those of the service."""
    try:
        yield
    except ApiError as error:
        raise service_error(error) or translated(error, kind, name) from error
    except TransportError as error:
        raise unavailable("the management API does not answer") from error


def translated(error: ApiError, kind: str, name: str) -> ServiceError:
    match error:
        case NotFound():
            return not_found(kind, name)
        case AlreadyExists():
            return already_exists(kind, name)
        case Conflict():
            return ServiceError(Code.ABORTED, "CONCURRENT_WRITES", f"{kind} {name} is being changed by others")
        case Invalid() | BadRequest():
            causes = [Violation(str(each.get("field", name)), str(each.get("message", ""))) for each in error.causes]
            return field_invalid(*(causes or [Violation("body", error.message)]))
        case Unavailable():
            return unavailable(error.message)
        case ServerError():
            log.error("management API failed", kind=kind, name=name, error=str(error))
            return internal()
    return precondition_failed("REJECTED", name, error.message)
