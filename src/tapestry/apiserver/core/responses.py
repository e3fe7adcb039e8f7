"""Responses of the API server, and the conversion of errors to responses."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.codec import JSON
from tapestry.apiserver.core.requests import Call, Target, WriteRequest
from tapestry.apiserver.core.store import StorageError
from tapestry.kube.budget import BudgetExceeded, DeadlineExceeded
from tapestry.kube.errors import ApiError
from tapestry.kube.objects import EMPTY_MAPPING
from tapestry.process.logs import logger
from tapestry.streams.connection import Connection

log = logger(__name__)
R = TypeVar("R")

MAX_UNCHUNKED_BYTES = 1 << 20
"""Maximum size in bytes of a list response that is sent in one piece."""
CHUNK_BYTES = 48 << 10
"""Size of the chunks in which long responses are sent. The allocator reuses blocks of less than 64 KiB; it maps larger
ones anew, and each page of them costs as much as encrypting it."""
CREATED_STATUS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
MAX_WARNING_LENGTH = 4096
BODYLESS_STATUSES = (204, 304)
CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that are not allowed in a header."""


class Stream(Protocol):
    """A response body in chunks. `end` must be called even if the body was not read."""

    def chunks(self) -> AsyncGenerator[bytes, None]: ...

    def end(self) -> None: ...


class ApiResponse(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = EMPTY_MAPPING
    stream: Stream | None = None
    """Sent after the body."""
    cookies: Sequence[str] = ()
    """Values of Set-Cookie headers; only sent with a stream."""


@dataclass(eq=False)
class SessionResponse:
    """A response 101. Afterwards the connection belongs to the session."""

    headers: Mapping[str, str]
    run: Callable[[Connection], Awaitable[None]]
    """Serve the connection of the client until either side closes it."""
    release: Callable[[], None]
    """Release what the session holds."""
    on_end: Callable[[], None] | None = None

    def end(self) -> None:
        """End the session. It must be called once, even if the session did not run."""
        self.release()
        if self.on_end is not None:
            self.on_end()


ResourceHandler = Callable[[Call, Target], Awaitable[ApiResponse]]
SpecialHandler = Callable[[Call, Target], Awaitable[ApiResponse | SessionResponse]]
PathHandler = Callable[[Call], Awaitable[ApiResponse]]


@dataclass(frozen=True)
class ChunkedBody:
    """A long response that is complete, sent in chunks without a copy of the whole. Other tasks run between chunks."""

    chunk_parts: Iterable[bytes | memoryview]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        pending: list[bytes | memoryview] = []
        size = 0
        for part in self.chunk_parts:
            pending.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
                await asyncio.sleep(0)  # a client that reads fast would let the response continue at once
        if pending:
            yield b"".join(pending)

    def end(self) -> None:
        """Do nothing: the body holds no resources."""


def list_response(parts: Iterable[bytes | memoryview]) -> ApiResponse:
    """Return a list response; a long one, or one whose parts are not known yet, is sent in chunks."""
    if isinstance(parts, Sequence) and sum(map(len, parts)) <= MAX_UNCHUNKED_BYTES:
        return ApiResponse(200, b"".join(parts))
    return ApiResponse(200, b"", stream=ChunkedBody(parts))


def json_response(status: int, body: Any, content_type: str = JSON) -> ApiResponse:
    return ApiResponse(status, msgspec.json.encode(body), content_type)


def response_with_warnings(request: WriteRequest, status: int, raw: bytes) -> ApiResponse:
    if not request.warnings:
        return ApiResponse(status, raw)
    texts = ", ".join(map(warning_header, request.warnings))
    if len(texts) > MAX_WARNING_LENGTH:  # clients reject longer headers: shorten the texts and send the first ones
        texts = ", ".join(warning_header(each[:256]) for each in request.warnings[:15])
    return ApiResponse(status, raw, headers={"Warning": texts})


def warning_header(text: str) -> str:
    """Return the value of a `Warning` header for one text."""
    escaped = CONTROL_CHARACTERS.sub(" ", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


async def response_or_status(call: Call, response: Awaitable[R]) -> R | ApiResponse:
    """Return the response, or the Status of its error. All errors of handlers are converted here."""
    try:
        return await response
    except ApiError as error:
        return status_response(error)
    except StorageError as error:
        log.warning("storage write failed", error=str(error))
        return status_response(api_errors.storage_failure(error))
    except RecursionError:  # from JSON within an annotation or a key; bodies are checked for depth
        return status_response(api_errors.bad_request("a text in the request is nested too deeply"))
    except BudgetExceeded:
        return status_response(api_errors.work_limit_exceeded())
    except DeadlineExceeded:
        return status_response(api_errors.request_timed_out())
    except Exception:
        log.exception("request failed with an internal error", method=call.method, path=call.path)
        return status_response(api_errors.internal_error("the server failed; see its log"))


def status_response(error: ApiError) -> ApiResponse:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(int(error.retry_after))
    if error.warning:
        headers["Warning"] = warning_header(error.warning)
    if isinstance(error, api_errors.KubectlForbidden):
        return ApiResponse(error.code, error.message.encode(), "text/plain", headers)
    return ApiResponse(error.code, msgspec.json.encode({"metadata": {}, **error.status()}), headers=headers)
