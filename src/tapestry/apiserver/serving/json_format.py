"""Formatting of JSON responses: one line, or indented for people.

As in kube-apiserver, `?pretty` decides, then the Accept header, then whether the client is a browser, curl or Wget.
JSON in one line ends with a line break; indented JSON does not. Long responses are never indented, because deep
nesting would multiply their size.
"""

import msgspec

from tapestry.apiserver.core.codec import JSON, accepted_types
from tapestry.apiserver.core.requests import Call

INTERACTIVE_AGENTS = ("curl", "Wget", "Mozilla/5.0")
"""Prefixes of the User-Agent of interactive programs."""
TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})
MAX_INDENTED_BYTES = 64 << 10
"""Maximum size in bytes of a response that is indented."""
UNFORMATTED_PATHS = ("/openapi/", "/.well-known/", "/openid/")
"""Paths of documents that are served unchanged."""


def formatted_body(body: bytes, content_type: str, call: Call) -> bytes:
    """Return the formatted body of a response; a body that ends with a line break is unchanged."""
    if not body or not content_type.startswith(JSON) or body.endswith(b"\n") or call.path.startswith(UNFORMATTED_PATHS):
        return body
    if len(body) <= MAX_INDENTED_BYTES and (call.path == "/version" or is_pretty(call)):
        return msgspec.json.format(body, indent=2)
    return body + b"\n"


def is_pretty(call: Call) -> bool:
    if pretty := call.query.get("pretty"):
        return pretty in TRUE_VALUES
    if call.headers.get("user-agent", "").startswith(INTERACTIVE_AGENTS):
        return True
    accept = call.headers.get("accept", "")
    return "pretty" in accept and any(each.parameters.get("pretty") == "1" for each in accepted_types(accept)[:1])
