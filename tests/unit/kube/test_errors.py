from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.errors import (
    ERRORS_BY_CODE,
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    MethodNotAllowed,
    NotFound,
    ServerError,
    Timeout,
    TooLarge,
    TooManyRequests,
    TransportError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    error_from_body,
    error_from_status,
    is_create_unauthorized,
    is_denied_by_policy,
    is_namespace_terminating,
    is_over_quota,
    is_priority_class_missing,
    reports_insufficient_resources,
)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", MethodNotAllowed),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", TooLarge),
        (415, "UnsupportedMediaType", UnsupportedMediaType),
        (418, "Teapot", ApiError),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (502, "Unknown", ServerError),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Timeout),
    ],
)
def test_status_code_selects_error_class(code: int, reason: str, kind: type[ApiError]) -> None:
    error = error_from_status({"code": code, "reason": reason, "message": "no"})
    assert type(error) is kind
    assert (error.code, error.reason, error.message) == (code, reason, "no")


def test_transport_errors_are_not_api_errors() -> None:
    assert all(issubclass(kind, ApiError) for kind in ERRORS_BY_CODE.values())
    assert issubclass(ApiError, KubeError)
    assert issubclass(TransportError, KubeError)
    assert not issubclass(TransportError, ApiError)


@pytest.mark.parametrize("maybe_sent", [True, False])
def test_transport_error_reports_maybe_sent(maybe_sent: bool) -> None:
    assert TransportError("reset", maybe_sent=maybe_sent).maybe_sent is maybe_sent


def test_message_contains_action_and_status() -> None:
    status = {"code": 404, "reason": "NotFound", "message": "pods 'web' not found"}
    assert str(error_from_status(status, action="GET /x")) == "GET /x: 404 NotFound: pods 'web' not found"
    assert str(error_from_status(status)) == "404 NotFound: pods 'web' not found"


@pytest.mark.parametrize("status", [{}, {"code": 0}, {"code": None}, {"code": "404"}, {"code": {}}])
def test_http_code_is_used_without_status_code(status: dict[str, Any]) -> None:
    assert isinstance(error_from_status(status, code=403), ERRORS_BY_CODE[403])
    assert error_from_status(status).code == 500


def test_status_code_overrides_http_code() -> None:
    assert isinstance(error_from_status({"code": 410}, code=200), Gone)


def test_status_without_message_gets_default_message() -> None:
    assert str(error_from_status({})) == "500 Unknown: the server sent no message"


@pytest.mark.parametrize(
    ("details", "seconds"),
    [({"retryAfterSeconds": 3}, 3.0), ({"retryAfterSeconds": 0}, None), ({"retryAfterSeconds": "3"}, None), ({}, None)],
)
def test_retry_after_is_read_from_details(details: dict[str, Any], seconds: float | None) -> None:
    assert error_from_status({"code": 429, "details": details}).retry_after == seconds


@pytest.mark.parametrize("details", [None, [], "x"])
def test_malformed_details_are_ignored(details: object) -> None:
    assert error_from_status({"code": 422, "details": details}).details == {}


def test_error_converts_back_to_its_status() -> None:
    status = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": "spec.x: no",
        "details": {"causes": [{"field": "spec.x", "message": "no"}]},
    }
    error = error_from_body(200, msgspec.json.encode(status))
    assert isinstance(error, Invalid)
    assert error.status() == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>Bad gateway</html>\n", "<html>Bad gateway</html>"),
        (b"", "the response has no body"),
        (b'{"kind": "Pod"}', '{"kind": "Pod"}'),
        (b'{"a": "\xff"}', '{"a": "\ufffd"}'),
        (b"[" * 100_000, "[" * 300),
        (b"x" * 5000, "x" * 300),
    ],
)
def test_other_body_is_quoted_and_shortened(body: bytes, message: str) -> None:
    error = error_from_body(502, body, action="GET /x")
    assert isinstance(error, ServerError)
    assert error.message == message


@given(st.binary(max_size=400) | st.recursive(st.none() | st.text(), st.lists).map(msgspec.json.encode))
def test_any_body_becomes_an_error(body: bytes) -> None:
    assert type(error_from_body(404, body)) is NotFound


@given(
    st.dictionaries(
        st.sampled_from(["code", "reason", "message", "details"]), st.none() | st.text() | st.integers(400, 599)
    )
)
def test_any_status_becomes_error_with_message(status: dict[str, Any]) -> None:
    error = error_from_status({"kind": "Status", **status}, code=500)
    assert error.code >= 400
    assert error.message


@pytest.mark.parametrize("causes", [None, "text", 1, ["text"], {"reason": "NamespaceTerminating"}])
def test_malformed_causes_count_as_none(causes: object) -> None:
    error = Forbidden(403, "Forbidden", "no", details={"kind": "pods", "name": "x", "causes": causes})
    assert error.causes == []
    assert not any(check(error) for check in (is_namespace_terminating, is_denied_by_policy, is_create_unauthorized))


def test_message_distinguishes_quota_from_priority_class() -> None:
    quota = 'pods "x" is forbidden: exceeded quota: all, requested: cpu=1, used: cpu=4, limited: cpu=4'
    missing = 'pods "x" is forbidden: no PriorityClass with name leased was found'
    errors = [Forbidden(403, "Forbidden", quota), Forbidden(403, "Forbidden", missing), Invalid(422, "Invalid", quota)]
    assert list(map(is_over_quota, errors)) == [True, False, False]
    assert list(map(is_priority_class_missing, errors)) == [False, True, False]


@pytest.mark.parametrize(
    ("message", "is_short"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu.", True),
        ("0/1 nodes are available: 1 Too many pods.", True),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.", False),
    ],
)
def test_scheduler_reports_insufficient_resources(message: str, is_short: bool) -> None:
    assert reports_insufficient_resources(message) is is_short
