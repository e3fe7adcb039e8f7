"""Requests for exec, attach and port-forward: those that a kubelet gets, and those for the physical API server.

Nothing of a request reaches the physical API server unchanged except the method, the command and the headers that
negotiate the protocol.  The path, the container and the options are written anew.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from tapestry.kube.errors import BadRequest
from tapestry.kube.names import dns_label_error, dns_subdomain_error
from tapestry.streams.upgrade import Headers

FLAGS = {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
"""Options of the pod's subresource by the kubelet's parameter."""
MAX_PARAMETERS = 1000
MAX_PORTS = 100
METHODS = ("GET", "POST")
PROTOCOLS = ("spdy/3.1", "websocket")
REQUEST_HEADERS = frozenset(
    {
        *("upgrade", "x-stream-protocol-version"),
        *("sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol", "sec-websocket-extensions"),
    }
)
RESPONSE_HEADERS = (
    *("Upgrade", "X-Stream-Protocol-Version"),
    *("Sec-WebSocket-Accept", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions"),
)
TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
"""Prefix of a WebSocket subprotocol that contains the token of the caller."""


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Pod and container in the path of a request.  The names have a valid form, and need not exist."""

    subresource: str
    """`exec`, `attach` or `portforward`."""
    namespace: str
    pod: str
    container: str = ""
    """Empty for port-forward."""
    uid: str = ""
    """UID of the pod, if the path contains one."""


def stream_target(path: str) -> StreamTarget | None:
    """Return the target of an undecoded path, or None if it has another form.  Names are never percent-encoded."""
    match path.split("/")[1:]:
        case ["exec" | "attach" as verb, namespace, pod, container]:
            target = StreamTarget(verb, namespace, pod, container)
        case ["exec" | "attach" as verb, namespace, pod, uid, container]:
            target = StreamTarget(verb, namespace, pod, container, uid)
        case ["portForward", namespace, pod]:
            target = StreamTarget("portforward", namespace, pod)
        case ["portForward", namespace, pod, uid]:
            target = StreamTarget("portforward", namespace, pod, uid=uid)
        case _:
            return None
    return target if is_well_formed(target) else None


def is_well_formed(target: StreamTarget) -> bool:
    labels = (target.namespace, *((target.container,) if target.subresource != "portforward" else ()))
    return not any(map(dns_label_error, labels)) and not dns_subdomain_error(target.pod)


def physical_query(target: StreamTarget, query: str) -> list[tuple[str, str]]:
    """Return the query for the physical API server.  Raise BadRequest if that of the kubelet is not valid."""
    parameters = query_parameters(query)
    if target.subresource == "portforward":
        return [("ports", str(port)) for port in ports_in(parameters)]
    flags = [(name, "true") for parameter, name in FLAGS.items() if flag(parameters, parameter)]
    if not flags or flags == [("tty", "true")]:
        raise bad_request("at least one of stdin, stdout and stderr is required")
    if ("tty", "true") in flags:
        flags = [each for each in flags if each[0] != "stderr"]  # a terminal has no stderr
    command = [("command", part) for part in command_in(target, parameters)]
    return [("container", target.container), *flags, *command]


def command_in(target: StreamTarget, parameters: Mapping[str, Sequence[str]]) -> Sequence[str]:
    if target.subresource != "exec":
        return ()
    command = parameters.get("command", ())
    if not command:
        raise bad_request("a command is required")
    return command


def query_parameters(query: str) -> dict[str, list[str]]:
    """Return the values of each parameter in their order.  Bytes that are not UTF-8 become surrogates."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="surrogateescape")
    except ValueError:
        raise bad_request(f"the query has over {MAX_PARAMETERS} parameters") from None
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        parameters.setdefault(name, []).append(value)
    return parameters


def flag(parameters: Mapping[str, Sequence[str]], name: str) -> bool:
    values = parameters.get(name, ())
    if len(values) > 1:
        raise bad_request(f"the parameter {name} is given {len(values)} times")
    return values == ["1"]


def ports_in(parameters: Mapping[str, Sequence[str]]) -> list[int]:
    """Return the ports, which only WebSocket clients without a tunnel give: others name a port for each connection."""
    texts = [text for value in parameters.get("port", ()) for text in value.split(",")]
    if len(texts) > MAX_PORTS:
        raise bad_request(f"over {MAX_PORTS} ports are given")
    return [port_number(text) for text in texts]


def port_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise bad_request(f"port: {text[:20]!r} is not a port")
    return int(text)


# -- protocol negotiation


def requested_protocol(headers: Iterable[tuple[str, str]]) -> str:
    """Return the protocol of an upgrade request in lower case.  Raise BadRequest if there is not exactly one."""
    values = [value.strip().lower() for name, value in headers if name == "upgrade"]
    if len(values) != 1 or values[0] not in PROTOCOLS:
        raise bad_request("the request must be an upgrade to SPDY/3.1 or WebSocket")
    return values[0]


def upgrade_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers for the physical API server.  No credentials of the caller are among them."""
    result = [("Connection", "Upgrade")]
    for name, value in headers:
        text = without_token(value) if name == "sec-websocket-protocol" else value
        if name in REQUEST_HEADERS and text:
            result.append((name, text))
    return result


def without_token(subprotocols: str) -> str:
    offered = [each.strip() for each in subprotocols.split(",")]
    return ", ".join(each for each in offered if not each.lower().startswith(TOKEN_PROTOCOL))


def response_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the physical API server's response that the caller needs."""
    return {name: headers[name.lower()] for name in RESPONSE_HEADERS if name.lower() in headers}


def negotiated_protocol(headers: Mapping[str, str]) -> str:
    """Return the protocol and subprotocol of an accepted upgrade, as in `SPDY/3.1 v4.channel.k8s.io`."""
    names = (headers.get(name, "") for name in ("upgrade", "x-stream-protocol-version", "sec-websocket-protocol"))
    return " ".join(filter(None, names))


def bad_request(message: str) -> BadRequest:
    return BadRequest(400, "BadRequest", message)
