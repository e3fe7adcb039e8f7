"""Options of connect requests, from their query: PodExecOptions and its siblings.

Admission sees the same options that are sent to the kubelet.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

from tapestry.apiserver.core import api_errors
from tapestry.apiserver.core.requests import Call, Target
from tapestry.kube.objects import Object

PORT = re.compile("[0-9]{1,5}")
MAX_PORT = 65_535
FALSE_VALUES = ("0", "false")
KUBELET_PARAMETERS = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
"""Names of the options in the query of a kubelet."""


@dataclass(frozen=True)
class ConnectOptions:
    """Options of exec, attach, portforward or proxy; the others are empty."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False
    container: str = ""
    command: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    path: str = ""
    """Path of a proxied request, without a leading slash."""

    def fields(self) -> Object:
        """Return the options that are set, as fields of the API object."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items() if value}

    def kubelet_query(self) -> str:
        parameters = [(short, "1") for name, short in KUBELET_PARAMETERS.items() if getattr(self, name)]
        parameters += [("command", each) for each in self.command]
        if self.ports:
            parameters.append(("port", ",".join(map(str, self.ports))))
        return urlencode(parameters)


def connect_options(call: Call, target: Target) -> ConnectOptions:
    """Return the options of a call. Raises BadRequest for an invalid port."""
    if target.subresource == "proxy":
        return ConnectOptions(path=proxy_path(call.path, target))
    values = parse_qs(urlsplit(call.uri).query if call.uri else urlencode(call.query), keep_blank_values=True)
    if target.subresource == "portforward":
        return ConnectOptions(
            ports=tuple(port_number(each) for text in values.get("ports", ()) for each in text.split(","))
        )
    stdin, stdout, stderr, tty = (
        values.get(name, FALSE_VALUES)[0].lower() not in FALSE_VALUES for name in KUBELET_PARAMETERS
    )
    command = tuple(values.get("command", ())) if target.subresource == "exec" else ()
    return ConnectOptions(stdin, stdout, stderr, tty, values.get("container", [""])[0], command)


def port_number(text: str) -> int:
    if not PORT.fullmatch(text) or int(text) > MAX_PORT:
        raise api_errors.bad_request(f'ports: Invalid value: "{text[:40]}": it is not a port')
    return int(text)


def proxy_path(path: str, target: Target) -> str:
    """Return what follows `proxy/` in a path: the path at the other server."""
    segments = 7 if target.namespace else 5  # api/v1/namespaces/default/pods/web/proxy, api/v1/nodes/n1/proxy
    parts = path.lstrip("/").split("/", segments)
    return parts[segments] if len(parts) > segments else ""
