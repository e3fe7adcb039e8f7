"""Requests and responses of the plain REST API, and its requests to the API server."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.errors import bad_request, error_body
from tapestry.apiserver.core.requests import TRUE_VALUES
from tapestry.client.responses import OBJECT_DECODER, decode_response
from tapestry.client.transport import JSON, Request, Transport
from tapestry.kube.errors import ApiError, TransportError, UnsupportedMediaType, error_from_body
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

ROOT = "/apiext"


@dataclass(frozen=True, slots=True)
class RestRequest:
    """Request; `path` is relative to /apiext and unquoted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    body: bytes = b""
    last_event_id: str = ""
    """Last event that a watching client has received."""

    @property
    def is_watch(self) -> bool:
        return self.method == "GET" and self.query.get("watch") in TRUE_VALUES

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    def namespace(self, *others: str) -> str | None:
        """Return the parameter `namespace`; raise BadRequest for parameters other than this and `others`."""
        for name in self.query:
            if name != "namespace" and name not in others:
                raise bad_request(f"{name}: no such parameter; valid are {', '.join(('namespace', *others))}")
        return self.query.get("namespace") or None

    def object_namespace(self, resource: Resource, *others: str) -> str | None:
        """Return the namespace of a single object, by default `default`; None if it is not namespaced."""
        return flat_objects.namespace_for(None, self.namespace(*others), resource)


@dataclass(frozen=True, slots=True)
class RestResponse:
    """Response with a JSON body, or with a stream of chunks, which must be closed."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncGenerator[bytes, None] | None = None


def json_response(status: int, body: Any, headers: Mapping[str, str] | None = None) -> RestResponse:
    return RestResponse(status, msgspec.json.encode(body), headers or {})


def error_response(error: ApiError) -> RestResponse:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(int(error.retry_after))
    if error.code == 405 and "allowed" in error.details:
        headers["Allow"] = str(error.details["allowed"])
    if error.code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.code, error_body(error), headers)


def transport_error_body(error: TransportError, doing: str) -> Object:
    """Log the error, whose text contains the address of the server, and return a body without it."""
    log.warning("API server did not respond", request=doing, error=error)
    return {"code": 502, "reason": "BadGateway", "message": "the API server did not respond; try again"}


async def send_request(request: Request, api: Transport) -> Object:
    """Return the decoded response; raise the error that the API server returns."""
    response = await api.send(request)
    if response.status >= 300:
        raise error_from_body(response.status, response.body)
    return decode_response(OBJECT_DECODER, response.body, str(request))


def decode_body(rest_request: RestRequest, *media_types: str) -> Any:
    """Decode a JSON body; raise UnsupportedMediaType or BadRequest."""
    supported = media_types or (JSON,)
    if rest_request.media_type not in supported:
        message = (
            f"Content-Type: {rest_request.content_type or 'nothing'} is not supported; send {' or '.join(supported)}"
        )
        raise UnsupportedMediaType(415, "UnsupportedMediaType", message)
    try:
        return msgspec.json.decode(rest_request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from error


def resource_path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    try:
        return resource.path(namespace, name)
    except (ValueError, TypeError) as error:
        raise bad_request(str(error)) from error
