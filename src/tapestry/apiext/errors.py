"""Refusals, as flat as everything else: a code, a word and a sentence."""

from tapestry.kube.errors import ApiError, BadRequest, MethodNotAllowed, NotFound
from tapestry.kube.objects import Object


def bad_request(message: str) -> BadRequest:
    return BadRequest(400, "BadRequest", message)


def not_found(message: str) -> NotFound:
    return NotFound(404, "NotFound", message)


def method_not_allowed(method: str, allowed: str) -> MethodNotAllowed:
    why = f"{method} is not done here, only {allowed} are; objects are changed through the Kubernetes API"
    return MethodNotAllowed(405, "MethodNotAllowed", why, details={"allowed": allowed})


def error_body(error: ApiError) -> Object:
    """`{"code": 422, "reason": "Invalid", "message": ...}`, and the fields that are wrong where the server says so."""
    found: Object = {"code": error.code, "reason": error.reason, "message": error.message}
    causes = error.details.get("causes")
    if isinstance(causes, list) and causes:
        found["fields"] = [{"field": each.get("field"), "message": each.get("message")} for each in causes]
    return found
