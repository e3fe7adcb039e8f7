"""Errors: each case of the specification has its code, HTTP status, reason and details."""

import grpc
import pytest

from tapestry.apis.vclusters import Phase
from tapestry.vclusters import errors
from tapestry.vclusters.errors import DOMAIN, MAX_MESSAGE, Code, ServiceError, Violation

CASES = [
    (errors.field_invalid(Violation("spec.replicas", "is negative")), "INVALID_ARGUMENT", 400, "FIELD_INVALID"),
    (errors.field_unsupported(Violation("spec.plugins", "no")), "FAILED_PRECONDITION", 400, "FIELD_UNSUPPORTED"),
    (
        errors.phase_not_allowed("v", "Scale", Phase.SUSPENDED, [Phase.RUNNING]),
        *("FAILED_PRECONDITION", 400, "PHASE_NOT_ALLOWED"),
    ),
    (errors.operation_in_progress("v", "op-1"), "ABORTED", 409, "OPERATION_IN_PROGRESS"),
    (errors.etag_mismatch("v", is_header=True), "ABORTED", 412, "ETAG_MISMATCH"),
    (errors.etag_mismatch("v", is_header=False), "ABORTED", 409, "ETAG_MISMATCH"),
    (errors.request_id_reused(), "INVALID_ARGUMENT", 400, "REQUEST_ID_REUSED"),
    (errors.quota_exceeded("p", [Violation("vclusters", "3")]), "RESOURCE_EXHAUSTED", 429, "QUOTA_EXCEEDED"),
    (errors.rate_limited(1.5), "RESOURCE_EXHAUSTED", 429, "RATE_LIMITED"),
    (errors.no_host_capacity("full"), "FAILED_PRECONDITION", 400, "NO_HOST_CAPACITY"),
    (errors.deletion_protected("v"), "FAILED_PRECONDITION", 400, "DELETION_PROTECTED"),
    (errors.host_unreachable("h", "timeout"), "UNAVAILABLE", 503, "HOST_UNREACHABLE"),
    (errors.unavailable("closing"), "UNAVAILABLE", 503, "UNAVAILABLE"),
    (errors.resource_version_expired(3), "OUT_OF_RANGE", 400, "RESOURCE_VERSION_EXPIRED"),
    (errors.not_found("VCluster", "v"), "NOT_FOUND", 404, "RESOURCE_NOT_FOUND"),
    (errors.already_exists("VCluster", "v"), "ALREADY_EXISTS", 409, "RESOURCE_EXISTS"),
    (errors.permission_denied("delete", "v"), "PERMISSION_DENIED", 403, "PERMISSION_DENIED"),
    (errors.unauthenticated(), "UNAUTHENTICATED", 401, "UNAUTHENTICATED"),
    (errors.internal(), "INTERNAL", 500, "INTERNAL"),
]


@pytest.mark.parametrize(("error", "code", "http", "reason"), CASES, ids=lambda value: str(value)[:30])
def test_body_has_code_and_details(error: ServiceError, code: str, http: int, reason: str) -> None:
    body = error.body()["error"]
    assert (body["code"], body["status"], body["message"]) == (http, code, str(error))
    info = body["details"][0]
    assert (info["@type"], info["reason"], info["domain"]) == (
        "type.googleapis.com/google.rpc.ErrorInfo",
        reason,
        DOMAIN,
    )


def test_codes_are_those_of_grpc() -> None:
    numbers = {each.name: each.value[0] for each in grpc.StatusCode}
    assert {code.name: code.number for code in Code} == {each.name: numbers[each.name] for each in Code}


def test_only_rate_limit_says_when_to_retry() -> None:
    assert errors.rate_limited(1.5).details[0]["retryDelay"] == "1.500s"
    assert all("RetryInfo" not in each["@type"] for each in errors.quota_exceeded("p", []).details)


def test_unsupported_field_is_named() -> None:
    error = errors.field_unsupported(Violation("spec.plugins", "are not possible"))
    assert error.metadata == {"fields": "spec.plugins"}
    assert str(error) == "spec.plugins: are not possible"


def test_long_message_is_cut() -> None:
    error = errors.unavailable("a" * 100_000)
    assert len(error.body()["error"]["message"]) == MAX_MESSAGE
