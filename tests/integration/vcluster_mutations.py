"""Random requests to the service of virtual clusters, most of them malformed: HTTP as bytes, and RPCs as bytes."""

import json
from collections.abc import Callable
from random import Random

from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from tapestry.vclusters.rest_routes import ROUTES, RPCS

METHODS = ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS", "TRACE", "get", "BREW", "")
WORDS = (
    *("blue", "shop", "default", "../..", "%2e%2e%2f", "%00", "%ff%fe", "a" * 300, "", "-1", "0", "*", "{}", "null"),
    *("\u00e4\u65e5", "%F0%9F%92%A9", "op-1", "snap-1", "kube-system", "a.b", "a:b", "true", "1e309", "9" * 40),
)
VALUES: tuple[object, ...] = (
    *(
        None,
        True,
        -1,
        2**31,
        2**63,
        2**64,
        1e308,
        "",
        "x" * 2000,
        "\ud7ff",
        "\u0000",
        "1Gi",
        "-5",
        "2031-13-45T00:00:00Z",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"a": {"b": {}}},
        {"": ""},
        "shop",
        "blue",
        ["spec.resources", "", "."],
        "0001-01-01T00:00:00Z",
    ),
)
HEADERS = (
    *("If-Match", "If-None-Match", "Idempotency-Key", "Last-Event-ID", "Accept", "Content-Type", "Content-Encoding"),
    *("Expect", "Range", "X-Forwarded-For", "Upgrade", "Connection", "Transfer-Encoding", "Content-Length", "Host"),
    "User-Agent",
)
HEADER_VALUES = (
    "",
    "*",
    '"',
    "W/",
    "x" * 5000,
    "\x01",
    "gzip",
    "chunked",
    "-1",
    "99999999999",
    "\u00ff",
    "\udcff",
    "text/event-stream",
)


def random_path(random: Random) -> str:
    """Return the path of a route with random parameters, and sometimes another path."""
    if random.random() < 0.1:
        return "/" + "/".join(random.choice(WORDS) for _ in range(random.randrange(6)))
    route = random.choice(ROUTES)
    path = route.template
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", random.choice(WORDS[:2] if random.random() < 0.6 else WORDS))
    if random.random() < 0.3:
        fields = [each.json_name for each in RPCS[route.method].input_type.fields]
        pairs = (f"{random.choice([*fields, 'x'])}={random.choice(WORDS)}" for _ in range(random.randrange(1, 4)))
        path += "?" + "&".join(pairs)
    return path


def random_json(random: Random, method: str) -> bytes:
    """Return fields of a request with values of the wrong types, sometimes cut off."""
    descriptor = RPCS[method].input_type
    body = {
        each.json_name: random.choice(VALUES) for each in descriptor.fields if random.random() < 0.3
    } or random.choice(VALUES)
    text = json_text(body)
    roll = random.random()
    if roll < 0.1:
        return text[: random.randrange(len(text) + 1)]
    if roll < 0.2:
        return random.randbytes(random.randrange(200))
    if roll < 0.23:
        return b"[" * 20_000
    return text


def json_text(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def random_http(random: Random, authorization: str) -> bytes:
    """Return an HTTP request, whose lines are broken sometimes."""
    route = random.choice(ROUTES)
    method = random.choice(METHODS) if random.random() < 0.3 else route.http_method
    path = random_path(random)
    body = b"" if random.random() < 0.3 else random_json(random, route.method)
    credentials = (
        authorization if random.random() < 0.9 else random.choice(("", "Bearer", "Bearer tap_x", "Basic \xff"))
    )
    headers = {
        "Host": "localhost",
        "Authorization": credentials,
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    while random.random() < 0.3:
        headers[random.choice(HEADERS)] = random.choice(HEADER_VALUES)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    content = "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body
    if random.random() < 0.1:
        return mutated(random, content)
    return content


def random_rpc(random: Random) -> tuple[str, bytes]:
    """Return the path of an RPC and a message for it, most of them broken."""
    rpc = random.choice(tuple(RPCS.values()))
    message = GetMessageClass(rpc.input_type)()
    for each in rpc.input_type.fields:
        if random.random() < 0.4:
            try:
                json_format.ParseDict({each.json_name: random.choice(VALUES)}, message)
            except (json_format.ParseError, ValueError, TypeError, OverflowError):
                continue
    content = message.SerializeToString()
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    make: Callable[[], bytes] = random.choice(
        (
            lambda: content,
            lambda: mutated(random, content),
            lambda: random.randbytes(random.randrange(1, 100)),
        )
    )
    return (path if random.random() < 0.95 else path + "x"), make()


def mutated(random: Random, content: bytes) -> bytes:
    """Return content of which bytes are changed, removed or repeated."""
    result = bytearray(content)
    for _ in range(random.randrange(1, 8)):
        at = random.randrange(len(result) + 1)
        match random.randrange(3):
            case 0:
                result[at : at + 1] = random.randbytes(1)
            case 1:
                del result[at : at + random.randrange(20)]
            case _:
                result[at:at] = result[at : at + random.randrange(20)]
    return bytes(result)
