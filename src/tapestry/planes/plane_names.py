"""Names of planes, and the plane that a request is for. Pure.

A request names its plane by the server name of its TLS connection (SNI), or by the path `/planes/<id>/...`. All names
in a request must agree.
"""

import re
from dataclasses import dataclass

from tapestry.apiserver.core import api_errors
from tapestry.kube.errors import ApiError

PLANE_ID = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
PLANE_LABEL = re.compile(PLANE_ID)
PLANE_PATH = re.compile(rf"/planes/({PLANE_ID})(?=[/?]|\Z)".encode())
PORT = re.compile(r":[0-9]*\Z")
MISDIRECTED = 421
"""Status of a request on the wrong connection."""


@dataclass(frozen=True)
class PlaneNames:
    """The server names of planes."""

    domain: str = "tapestry.local"
    """Domain of the listener. It need not exist in DNS: kubeconfigs have `tls-server-name`."""
    extra_names: tuple[str, ...] = ()
    """Names and addresses of the listener in all serving certificates."""

    def server_name(self, plane_id: str) -> str:
        return f"{plane_id}.planes.{self.domain}"

    def plane_of(self, server_name: str) -> str:
        """Return the id of the plane with this server name; empty if it is not the name of a plane."""
        name = server_name.lower().removesuffix(".")
        label = name.removesuffix(f".planes.{self.domain}")
        return label if label != name and PLANE_LABEL.fullmatch(label) else ""


@dataclass(frozen=True)
class Route:
    """The plane that a request is for, and the request as that plane sees it."""

    plane_id: str
    target: bytes
    base_path: str
    """Path of the plane on its listener; empty if the path does not name the plane."""


def route_of(target: bytes, host: str, connection_plane: str, names: PlaneNames) -> Route:
    """Return the route of a request. `connection_plane` is the plane of its TLS connection, or empty.

    Raises an ApiError: 421 if the names in the request disagree, 404 if it names no plane, 400 if it has no path.
    """
    if not target.startswith(b"/"):
        raise api_errors.bad_request("the request target is not a path")
    prefix = PLANE_PATH.match(target)
    path_plane = prefix[1].decode() if prefix is not None else ""
    host_plane = names.plane_of(PORT.sub("", host))
    if len({connection_plane, path_plane, host_plane} - {""}) > 1 or (host_plane and not connection_plane + path_plane):
        raise misdirected_request()
    plane_id = connection_plane or path_plane
    if not plane_id:
        raise api_errors.path_not_found()
    if prefix is None:
        return Route(plane_id, target, "")
    rest = target[prefix.end() :]
    return Route(plane_id, rest if rest.startswith(b"/") else b"/" + rest, f"/planes/{plane_id}")


def misdirected_request() -> ApiError:
    why = "the request names another plane than its connection; use one TLS server name for each plane"
    return ApiError(MISDIRECTED, "MisdirectedRequest", why)
