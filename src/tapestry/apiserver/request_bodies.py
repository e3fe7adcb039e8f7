"""Payloads: the body of a request, received once its sender is authorized, and decoded once.

A small body is decoded on the event loop.  A large one waits for room in memory and is decoded in the worker's thread,
so that other requests are answered meanwhile.
"""

from typing import Any

import msgspec
from msgspec import structs

from tapestry.apiserver.codec import YAML_TYPES, decode_body, decode_yaml, media_type
from tapestry.apiserver.requests import Call
from tapestry.apiserver.workers import LARGE_BYTES, reserve_memory, run_if_large


def has_pending_body(call: Call) -> bool:
    """Whether a call needs `received` before its handler: its body has not arrived, is large, or may not be JSON."""
    body = call.body
    return call.body_reader is not None or len(body) >= LARGE_BYTES or (body != b"" and body[:1] != b"{")


async def read_body(call: Call) -> Call:
    """The call with all of its body."""
    if call.body_reader is None:
        return call
    return structs.replace(call, body=await call.body_reader.read(), body_reader=None)


async def receive_body(call: Call) -> Call:
    """The call with all of its body, decoded if that is slow.  Raises BadRequest where it cannot be decoded."""
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
    """The body of a call that was received, as data; None where there is none.  Raises BadRequest."""
    found = call.decoded_body
    if found is msgspec.UNSET:
        found = decode_body(call.body, call.headers.get("content-type", ""))
    if call.audited_body is not None:
        call.audited_body.fill(found, len(call.body))
    return found
