"""Errors of admission plugins."""

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import WriteRequest
from tapestry.kube.errors import Forbidden
from tapestry.kube.objects import Object


def admission_forbidden(request: WriteRequest, reason: str, causes: list[Object] | None = None) -> Forbidden:
    resource, name = request.target.info.resource, request.target.name or request.name
    details = api_errors.status_details(resource, name) | ({"causes": causes} if causes else {})
    return Forbidden(403, "Forbidden", f'{resource.name} "{name}" is forbidden: {reason}', details=details)
