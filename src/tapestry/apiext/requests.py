"""Requests and responses of the plain REST API, and its requests to the API server.

The body of a request is received after its caller is authorized. Functions that convert large objects run in the worker
thread (`run_if_large`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tapestry.apiext import flat_objects
from tapestry.apiext.errors import bad_request, error_body
from tapestry.apiserver.core.codec import decode_json
from tapestry.apiserver.core.requests import TRUE_VALUES
from tapestry.apiserver.core.workers import reserve_memory, run_if_large
from tapestry.client import responses
from tapestry.client.responses import Fields, decoding_errors
from tapestry.client.transport import Request, Transport
from tapestry.kube.errors import ApiError, BadRequest, TransportError, UnsupportedMediaType, error_from_body
from tapestry.kube.objects import Object
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger

log = logger(__name__)

ROOT = "/apiext"
FIELDS_DECODER = msgspec.json.Decoder(Fields)


async def no_body() -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """Request; `path` is relative to /apiext and unquoted."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    read_body: Callable[[], Awaitable[bytes]] = no_body
    """Receive the body."""
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


async def send(request: Request, api: Transport) -> bytes:
    """Return the body of the response; raise the error that the API server returns."""
    response = await api.send(request)
    if response.status >= 300:
        raise error_from_body(response.status, response.body)
    return response.body


async def send_request(request: Request, api: Transport) -> Object:
    """Return the decoded response; raise the error that the API server returns."""
    body = await send(request, api)
    return await run_if_large(len(body), decode_object, body, str(request))


def decode_object(body: bytes | msgspec.Raw, doing: str) -> Object:
    """Decode an object without its managed fields, which can be larger than the rest."""
    with decoding_errors(doing):
        return responses.decode_object(FIELDS_DECODER.decode(body), without_managed_fields=True)


def check_media_type(rest_request: RestRequest, *supported: str) -> None:
    if rest_request.media_type not in supported:
        message = (
            f"Content-Type: {rest_request.content_type or 'nothing'} is not supported; send {' or '.join(supported)}"
        )
        raise UnsupportedMediaType(415, "UnsupportedMediaType", message)


async def receive_body(rest_request: RestRequest) -> bytes:
    """Return the body of an authorized request, once it may be decoded."""
    body = await rest_request.read_body()
    await reserve_memory(len(body))
    return body


def decode_body(body: bytes) -> Any:
    """Decode a JSON body; raise BadRequest."""
    try:
        return decode_json(body)
    except BadRequest as error:
        if error.__cause__ is None:  # too many objects and lists
            raise
        raise bad_request(f"the body is not JSON: {error.__cause__}") from error


def resource_path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    try:
        return resource.path(namespace, name)
    except (ValueError, TypeError) as error:
        raise bad_request(str(error)) from error
