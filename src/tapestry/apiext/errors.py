"""Error responses as flat JSON: code, reason and message."""

from tapestry.apiserver.core.api_errors import request_timed_out, work_limit_exceeded
from tapestry.kube.budget import BudgetExceeded, DeadlineExceeded
from tapestry.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound
from tapestry.kube.objects import Object


def bad_request(message: str) -> BadRequest:
    return BadRequest(400, "BadRequest", message)


def not_found(message: str) -> NotFound:
    return NotFound(404, "NotFound", message)


def method_not_allowed(method: str, allowed: str) -> MethodNotAllowed:
    message = f"{method} is not supported here, only {allowed}"
    return MethodNotAllowed(405, "MethodNotAllowed", message, details={"allowed": allowed})


def limit_error(error: BudgetExceeded | DeadlineExceeded) -> ApiError:
    return work_limit_exceeded() if isinstance(error, BudgetExceeded) else request_timed_out()


def error_body(error: ApiError) -> Object:
    """Return `{"code": 422, "reason": "Invalid", "message": ...}`, with the invalid fields if the server names them."""
    body: Object = {"code": error.code, "reason": error.reason, "message": error.message}
    causes = error.details.get("causes")
    if isinstance(causes, list) and causes:
        body["fields"] = [{"field": each.get("field"), "message": each.get("message")} for each in causes]
    return body
