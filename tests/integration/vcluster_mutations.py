"""Random requests to the service of virtual clusters, most of them malformed: HTTP as bytes, and RPCs as bytes."""

import json
from collections.abc import Callable
from random import Random

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
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
        "1e999999999",
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
NAMES = frozenset({"name", "namespace", "project"})
"""Fields that often have values which exist, so that the others matter."""
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


def random_fields(random: Random, descriptor: Descriptor, share: float) -> dict[str, object]:
    """Return values of the wrong types for a share of the fields of a message, also inside of its messages."""
    result: dict[str, object] = {}
    for each in descriptor.fields:
        if random.random() >= share:
            continue
        if each.name in NAMES and random.random() < 0.6:
            result[each.json_name] = random.choice(WORDS[:3])
            continue
        is_nested = each.message_type is not None and not each.is_repeated and random.random() < 0.7
        result[each.json_name] = random_fields(random, each.message_type, share) if is_nested else random.choice(VALUES)
    return result


def random_json(random: Random, method: str) -> bytes:
    """Return fields of a request with values of the wrong types, sometimes cut off."""
    body = random_fields(random, RPCS[method].input_type, 0.3) or random.choice(VALUES)
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


def parse(message: Message, fields: dict[str, object]) -> None:
    """Set those fields of a message that can have their values."""
    known = {each.json_name: each for each in message.DESCRIPTOR.fields}
    for name, value in fields.items():
        nested = known.get(name)
        if isinstance(value, dict) and nested and nested.message_type is not None and not nested.is_repeated:
            parse(getattr(message, nested.name), value)
            continue
        try:
            json_format.ParseDict({name: value}, message)
        except (json_format.ParseError, ValueError, TypeError, OverflowError):
            continue


def random_rpc(random: Random) -> tuple[str, bytes]:
    """Return the path of an RPC and a message for it, most of them broken."""
    rpc = random.choice(tuple(RPCS.values()))
    message = GetMessageClass(rpc.input_type)()
    parse(message, random_fields(random, rpc.input_type, 0.4))
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
