"""Payloads: the body of a request, received once its sender is authorized, and decoded once.

A small body is decoded on the event loop.  A large one waits for room in memory and is decoded in the worker's thread,
so that other requests are answered meanwhile.
"""

from typing import Any

import msgspec
from msgspec import structs

from tapestry.apiserver.codec import YAML_TYPES, decoded, from_yaml, media_type
from tapestry.apiserver.requests import Call
from tapestry.apiserver.workers import LARGE, make_room, run_if_large


def is_pending(call: Call) -> bool:
    """Whether a call needs `received` before its handler: its body has not arrived, is large, or may not be JSON."""
    body = call.body
    return call.incoming is not None or len(body) >= LARGE or (body != b"" and body[:1] != b"{")


async def arrived(call: Call) -> Call:
    """The call with all of its body."""
    if call.incoming is None:
        return call
    return structs.replace(call, body=await call.incoming.read(), incoming=None)


async def received(call: Call) -> Call:
    """The call with all of its body, decoded if that is slow.  Raises BadRequest where it cannot be decoded."""
    call = await arrived(call)
    content_type, body = call.headers.get("content-type", ""), call.body
    await make_room(len(body))
    if media_type(content_type) in YAML_TYPES and body and body[:1] != b"{":
        document = await run_if_large(len(body), from_yaml, body)
        return structs.replace(call, sent=document.value, repeated=document.repeated)
    if len(body) < LARGE:
        return call
    return structs.replace(call, sent=await run_if_large(len(body), decoded, body, content_type))


def sent_in(call: Call) -> Any:
    """The body of a call that was received, as data; None where there is none.  Raises BadRequest."""
    found = call.sent
    if found is msgspec.UNSET:
        found = decoded(call.body, call.headers.get("content-type", ""))
    if call.record is not None:
        call.record.fill(found, len(call.body))
    return found
