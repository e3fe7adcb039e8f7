"""Reading and decoding of request bodies, after the request is authorized.

A small body is decoded on the event loop. A large one waits for a memory reservation and is decoded in the worker
thread, so that other requests are served meanwhile.
"""

from typing import Any

import msgspec
from msgspec import structs

from tapestry.apiserver.core.codec import YAML_TYPES, decode_body, decode_yaml, media_type
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.workers import LARGE_BYTES, reserve_memory, run_if_large


def has_pending_body(call: Call) -> bool:
    """Return whether a call needs `receive_body`: its body has not arrived, is large, or may not be JSON."""
    body = call.body
    return call.body_reader is not None or len(body) >= LARGE_BYTES or (body != b"" and body[:1] != b"{")


async def read_body(call: Call) -> Call:
    """Return the call with its complete body."""
    if call.body_reader is None:
        return call
    return structs.replace(call, body=await call.body_reader.read(), body_reader=None)


async def receive_body(call: Call) -> Call:
    """Return the call with its complete body, decoded if that is slow. Raises BadRequest for a malformed body."""
    call = await read_body(call)
    content_type, body = call.headers.get("content-type", ""), call.body
    await reserve_memory(len(body))
    if media_type(content_type) in YAML_TYPES and body and body[:1] != b"{":
        document = await run_if_large(len(body), decode_yaml, body)
        return structs.replace(call, decoded_body=document.value, duplicate_keys=document.duplicate_keys)
    if len(body) < LARGE_BYTES:
        return call
    return structs.replace(call, decoded_body=await run_if_large(len(body), decode_body, body, content_type))


def decoded_body(call: Call) -> Any:
    """Return the body of a received call as data, or None if it is empty. Raises BadRequest."""
    result = call.decoded_body
    if result is msgspec.UNSET:
        result = decode_body(call.body, call.headers.get("content-type", ""))
    if call.audited_body is not None:
        call.audited_body.fill(result, len(call.body))
    return result
