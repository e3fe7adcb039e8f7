"""How the JSON of an answer is written: in one line that ends, or indented for people.

As kube-apiserver does it: `?pretty` decides, then the Accept header, and then whether the client is a browser, curl or
Wget.  What is not indented ends in a line break; what is indented does not.  A long answer is never indented: one of a
megabyte that is nested deeply would become one of hundreds.
"""

import msgspec

from tapestry.apiserver.codec import JSON, accepted_types
from tapestry.apiserver.requests import Call

INTERACTIVE_AGENTS = ("curl", "Wget", "Mozilla/5.0")
"""How the User-Agent of programs begins that people use."""
TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})
MAX_INDENTED_BYTES = 64 << 10
"""Bytes of JSON that are indented."""
UNFORMATTED_PATHS = ("/openapi/", "/.well-known/", "/openid/")
"""Documents that are served as they are."""


def formatted_body(body: bytes, content_type: str, call: Call) -> bytes:
    """The body of an answer as the client is to see it; lines that end already are left alone."""
    if not body or not content_type.startswith(JSON) or body.endswith(b"\n") or call.path.startswith(UNFORMATTED_PATHS):
        return body
    if len(body) <= MAX_INDENTED_BYTES and (call.path == "/version" or is_pretty(call)):
        return msgspec.json.format(body, indent=2)
    return body + b"\n"


def is_pretty(call: Call) -> bool:
    if asked := call.query.get("pretty"):
        return asked in TRUE_VALUES
    if call.headers.get("user-agent", "").startswith(INTERACTIVE_AGENTS):
        return True
    accept = call.headers.get("accept", "")
    return "pretty" in accept and any(each.parameters.get("pretty") == "1" for each in accepted_types(accept)[:1])
