"""Errors of the service in errors of the management API, whose admission raises them."""

import msgspec

from tapestry.kube.errors import ApiError
from tapestry.vclusters.errors import Code, ServiceError

CAUSE = "VClusterError"


def api_error(error: ServiceError) -> ApiError:
    """Return the error of the management API for an error of the service, which it contains."""
    cause = {"reason": CAUSE, "message": msgspec.json.encode(error.body()).decode()}
    code = {400: 422, 404: 404, 409: 409, 429: 403}.get(error.http_status, 403)
    reason = {422: "Invalid", 404: "NotFound", 409: "Conflict"}.get(code, "Forbidden")
    return ApiError(code, reason, f"{error.reason}: {error.message}", details={"causes": [cause]})


def service_error(error: ApiError) -> ServiceError | None:
    """Return the error with which the policy has rejected a write; None for any other error."""
    for cause in error.causes:
        if cause.get("reason") == CAUSE:
            fields = msgspec.json.decode(cause["message"])["error"]
            info, *details = fields["details"]
            code, metadata = Code[fields["status"]], info.get("metadata")
            return ServiceError(code, info["reason"], fields["message"], metadata, details, fields["code"])
    return None
