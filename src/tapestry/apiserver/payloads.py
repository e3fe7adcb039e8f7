"""Payloads: the body of a request, received once its sender is authorized, and decoded once.

JSON is decoded in C, on the event loop.  YAML and protobuf are decoded in Python: a large one keeps a thread busy, and
never more than one, so that other requests are answered meanwhile.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from tapestry.apiserver.codec import PROTOBUF, YAML_TYPES, decoded, from_protobuf, from_yaml, media_type
from tapestry.apiserver.requests import Call

INLINE = 1 << 15
"""Bytes of a body that is decoded on the event loop, whatever its format."""
Result = TypeVar("Result")
DECODER = ThreadPoolExecutor(1, "decoder")


def is_pending(call: Call) -> bool:
    """Whether a call needs `received` before its handler: its body has not arrived, or is perhaps not JSON."""
    return call.incoming is not None or (call.body != b"" and call.body[:1] != b"{")


async def arrived(call: Call) -> Call:
    """The call with all of its body."""
    if call.incoming is None:
        return call
    return structs.replace(call, body=await call.incoming.read(), incoming=None)


async def received(call: Call) -> Call:
    """The call with all of its body, decoded if that is slow.  Raises BadRequest where it cannot be decoded."""
    call = await arrived(call)
    kind, body = media_type(call.headers.get("content-type", "")), call.body
    if kind in YAML_TYPES and body and body[:1] != b"{":
        document = from_yaml(body) if len(body) <= INLINE else await elsewhere(from_yaml, body)
        return structs.replace(call, sent=document.value, repeated=document.repeated)
    if kind == PROTOBUF and len(body) > INLINE:
        return structs.replace(call, sent=await elsewhere(from_protobuf, body))
    return call


async def elsewhere(function: Callable[[bytes], Result], body: bytes) -> Result:
    """The result of a function that takes long, called in a thread; one after the other."""
    return await asyncio.get_running_loop().run_in_executor(DECODER, function, body)


def sent_in(call: Call) -> Any:
    """The body of a call that was received, as data; None where there is none.  Raises BadRequest."""
    found = call.sent
    if found is msgspec.UNSET:
        found = decoded(call.body, call.headers.get("content-type", ""))
    if call.record is not None:
        call.record.fill(found, len(call.body))
    return found
