"""Plain REST API at `/apiext` of our API server, in `tapestry apiserver` and `tapestry cluster`."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tapestry.apiext.interfaces import Routes, routes_of
from tapestry.apiext.requests import ROOT, RestRequest
from tapestry.apiext.resource_mapper import ResourceMapper
from tapestry.apiext.rest_api import RestApi
from tapestry.apiserver.core.codec import JSON
from tapestry.apiserver.core.request_bodies import read_body
from tapestry.apiserver.core.requests import Call
from tapestry.apiserver.core.responses import ApiResponse
from tapestry.apiserver.handlers.server import CallHandler
from tapestry.apiserver.serving.request_handler import MountedHandler
from tapestry.cli.controllers import load_registry
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.process.logs import logger

log = logger(__name__)


def installed_apiext_handlers() -> dict[str, MountedHandler]:
    """Return the handler at /apiext, with the HTTP interfaces of installed packages."""
    return {ROOT.strip("/"): apiext_handler(installed_routes())}


def installed_routes() -> Routes:
    """Return the HTTP interfaces of the kinds of installed packages."""
    try:
        return routes_of(load_registry().kinds)
    except Exception:  # the code of other packages; the API server must start without them
        log.exception("installed controllers failed to load; their HTTP interfaces are not served")
        return {}


def apiext_handler(routes: Routes | None = None) -> MountedHandler:
    """Return the plain REST handler at /apiext; it acts as the calling user."""
    plain = RestApi(ResourceMapper(), routes)

    async def handle(api: CallHandler, call: Call) -> ApiResponse:
        headers = call.headers

        async def read() -> bytes:
            return (await read_body(call)).body

        request = RestRequest(
            call.method,
            call.path.removeprefix(ROOT),
            call.query,
            headers.get("content-type", ""),
            read,
            headers.get("last-event-id", ""),
        )
        found = await plain.handle(request, InProcessTransport(api, call.user))
        content_type = found.headers.get("Content-Type", JSON)
        rest = {name: value for name, value in found.headers.items() if name != "Content-Type"}
        return ApiResponse(
            found.status, found.body, content_type, rest, stream=EventStream(found.stream) if found.stream else None
        )

    return handle


@dataclass(frozen=True)
class EventStream:
    """Chunks of a watch, as the body of a response."""

    source: AsyncGenerator[bytes, None]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self.source

    def end(self) -> None:
        """Do nothing: the source is closed with its chunks."""
