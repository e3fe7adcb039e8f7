"""The Python client of the lifecycle API: requests of the REST table by the names of the RPCs.

    async with ServiceClient(HttpTransport(access)) as client:
        created = await client.call("CreateVCluster", namespace="shop", name="blue", spec={"distro": "k8s"})
        await client.wait_for_operation(created["operationId"], timeout=60)

Messages are dicts in the JSON encoding of the contract; fields of a request have the names of the contract. A write has
a request id, so that a repeat of it has no further effect. Errors are ServiceErrors, or TransportErrors if there is no
response.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import msgspec

from tapestry.client.retries import MAX_RETRY_AFTER, backoff_seconds
from tapestry.client.transport import Request, Response, Transport
from tapestry.kube.errors import ResponseTooLarge, TransportError
from tapestry.kube.objects import Object, value_at
from tapestry.vclusters.errors import Code, ServiceError
from tapestry.vclusters.rest_routes import BODY_IS_MESSAGE, ROUTES, RPCS, Route

MAX_ATTEMPTS = 6
"""Attempts of one request, and of a watch to connect again: the last one about 3 seconds after the first."""
MAX_PAUSE = 10.0
IDLE_SECONDS = 60.0
"""Seconds without a byte after which a stream is considered broken. The service sends an empty line every 15."""
POLL_SECONDS = 1
"""Seconds between two reports about a running operation."""


@dataclass(frozen=True)
class ServiceClient:
    """Client of one service. As a context manager, it closes its transport."""

    transport: Transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()

    async def call(self, method: str, /, **fields: Any) -> Object:
        """Call an RPC, several times if the service is not available or postpones the request."""
        request = http_request(method, with_request_id(method, fields))
        attempt = 1
        while True:
            try:
                response = await self.transport.send(request)
                if response.status < 400:
                    decoded: Object = msgspec.json.decode(response.body)
                    return decoded
                pause = pause_before_retry(response, attempt)
                if not pause or attempt == MAX_ATTEMPTS:
                    raise error_of(response)
            except TransportError as error:
                if attempt == MAX_ATTEMPTS or isinstance(error, ResponseTooLarge):
                    raise
                pause = backoff_seconds(attempt)
            attempt += 1
            await asyncio.sleep(pause)

    async def items(self, method: str, /, **fields: Any) -> AsyncIterator[Object]:
        """Yield the items of all pages of a list."""
        name = next(each.json_name for each in RPCS[method].output_type.fields if each.is_repeated)
        token = None
        while token != "":
            page = await self.call(method, **fields, page_token=token)
            for item in page.get(name, ()):
                yield item
            token = page.get("nextPageToken", "")

    async def stream(self, method: str, /, **fields: Any) -> AsyncGenerator[Object, None]:
        """Yield the messages that answer a streaming RPC."""
        async with self.transport.stream(http_request(method, fields)) as stream:
            chunks, rest = aiter(stream.chunks()), b""
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        chunk = await anext(chunks, None)
                except TimeoutError:
                    raise TransportError(f"{method}: nothing in {IDLE_SECONDS:g} s", maybe_sent=True) from None
                if chunk is None:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                if stream.status >= 400:
                    rest = b"\n".join([*lines, rest])
                    continue
                for line in filter(None, lines):
                    yield decoded_event(line)
            if stream.status >= 400:
                raise error_of(Response(stream.status, {}, rest))

    async def watch(self, **fields: Any) -> AsyncGenerator[Object, None]:
        """Yield the changes of virtual clusters. After a disconnect, the watch continues where it was.

        Raises ServiceError with the code OUT_OF_RANGE if that is too long ago: list again then.
        """
        failures = 0
        while True:
            try:
                async with aclosing(self.stream("WatchVCluster", **fields)) as events:
                    async for event in events:
                        failures = 0
                        revision = value_at(event, "vcluster", "resourceVersion")
                        fields["resource_version"] = revision or fields.get("resource_version")
                        yield event
            except (TransportError, ServiceError) as error:
                failures += 1
                if failures == MAX_ATTEMPTS or not is_temporary(error):
                    raise
            await asyncio.sleep(backoff_seconds(failures + 1))

    async def wait_for_operation(
        self, id: str, timeout: float, report: Callable[[Object], None] = lambda _: None
    ) -> Object:
        """Return an operation when it has succeeded. Raises ServiceError if it fails, and TimeoutError.

        `report` gets the operation every second, and when it has ended.
        """
        async with asyncio.timeout(timeout):
            while True:
                operation = await self.call("WaitOperation", id=id, timeout_seconds=POLL_SECONDS)
                report(operation)
                if operation.get("done"):
                    break
        if "error" in operation:
            raise operation_error(operation["error"])
        return operation


# -- requests


def with_request_id(method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if value is not None}
    if "request_id" in RPCS[method].input_type.fields_by_name:
        given.setdefault("request_id", uuid4().hex)
    return given


@cache
def routes_of(method: str) -> tuple[Route, ...]:
    """Return the routes of an RPC, those with most parameters first."""
    found = [each for each in ROUTES if each.method == method]
    return tuple(sorted(found, key=lambda each: -len(each.parameters)))


def http_request(method: str, fields: Mapping[str, Any]) -> Request:
    """Return the HTTP request for the fields of a request message. None and nothing are the same."""
    rest = {name: value for name, value in fields.items() if value is not None}
    routes = routes_of(method)
    route = next((each for each in routes if all(parameter(rest, name) for name in each.parameters)), None)
    if route is None:
        raise ValueError(f"{method} needs {' and '.join(routes[-1].parameters)}")
    path = route.template
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", quote(parameter(rest, name), safe=""))
        rest.pop(name, None)
    body = None
    if route.body == BODY_IS_MESSAGE:
        body, rest = msgspec.json.encode(rest), {}
    elif route.body:
        body = msgspec.json.encode(rest.pop(route.body, {}))
    query = {name: query_text(value) for name, value in rest.items()}
    request = Request(route.http_method, path, query, body)
    return replace(request, timeout=request.timeout + fields.get("timeout_seconds", 0))


def parameter(fields: Mapping[str, Any], path: str) -> str:
    return str(value_at(fields, *path.split("."), default=""))


def query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- errors and retries


def pause_before_retry(response: Response, attempt: int) -> float:
    """Return the seconds until a request may be repeated, or 0 if the response is final.

    429 without Retry-After is a quota, which does not refill with time.
    """
    text = response.headers.get("retry-after")
    if response.status not in (429, 503) or (response.status == 429 and text is None):
        return 0.0
    try:
        seconds = float(text or "")
    except ValueError:
        return min(backoff_seconds(attempt), MAX_PAUSE)
    return max(seconds, 0.001) if seconds <= MAX_RETRY_AFTER else 0.0


def is_temporary(error: Exception) -> bool:
    return isinstance(error, TransportError) or (
        isinstance(error, ServiceError) and (error.code is Code.UNAVAILABLE or error.reason == "RATE_LIMITED")
    )


def decoded_event(line: bytes) -> Object:
    """Return a message of a stream. Raises the ServiceError that is the last one."""
    event: Object = msgspec.json.decode(line)
    if "error" in event:
        raise error_from_body(event["error"], None)
    return event


def error_of(response: Response) -> ServiceError:
    """Return the error in a response. A proxy may have answered in place of the service."""
    try:
        return error_from_body(msgspec.json.decode(response.body)["error"], response.status)
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        code = next((each for each in Code if each.http_status == response.status), Code.UNKNOWN)
        message = f"the server answered with the HTTP status {response.status}; is this the lifecycle service?"
        return ServiceError(code, "UNEXPECTED_RESPONSE", message, http_status=response.status)


def error_from_body(body: Mapping[str, Any], status: int | None) -> ServiceError:
    info, *details = body.get("details") or [{}]
    code = Code[body["status"]]
    return ServiceError(
        code, info.get("reason", ""), body.get("message", ""), info.get("metadata"), details, status or body.get("code")
    )


def operation_error(error: Mapping[str, Any]) -> ServiceError:
    code = next((each for each in Code if each.number == error.get("code")), Code.UNKNOWN)
    return ServiceError(code, error.get("reason", ""), error.get("message", ""))
