"""Logs of virtual pods, streamed from their twins.

The virtual API server requests logs from the kubelet of a virtual node.  Only the physical API server has them.  It
gets the same options, and its errors are translated to those of a kubelet: API servers show users the message of a 400
or 500, and replace the message of all other codes.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import Gauge

from tapestry.client.client import Client
from tapestry.client.logs import pod_log
from tapestry.kube.errors import ApiError, Forbidden, NotFound, ServerError, TransportError, Unauthorized
from tapestry.kube.objects import Object, key_of, name_of, namespace_of
from tapestry.kube.pods import CONTAINER_FIELDS, containers_of
from tapestry.process.logs import logger
from tapestry.process.metrics import NAMESPACE

log = logger(__name__)

OPTIONS = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")
MAX_CONCURRENT_LOGS = 64
"""Maximum number of concurrent logs.  Each may buffer a few MiB for a slow reader."""
MAX_MESSAGE_LENGTH = 4096
"""Maximum characters of a message from the physical cluster."""

LOGS_IN_PROGRESS = Gauge("logs_read", "Number of pod logs being streamed by this process.", namespace=NAMESPACE)


@dataclass(frozen=True)
class TwinLookup:
    """Lookup of pods on our virtual nodes and of their twins."""

    pod: Callable[[str], Object | None]
    """Returns the pod of a key, if it is bound to one of our virtual nodes."""
    twin: Callable[[Object], Object | None]
    """Returns the twin of a pod, if it is provably ours."""
    physical: Client


@dataclass(frozen=True)
class LogRelay:
    """Streams the logs of twins, with a limit on concurrent streams."""

    twins: TwinLookup
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_LOGS))

    async def relay(self, request: web.Request, pod: Object, container: str) -> web.StreamResponse:
        """Respond with the log of a container.  Raise the error of a kubelet if there is none."""
        if all(each["name"] != container for each in containers_of(pod, CONTAINER_FIELDS)):
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{name_of(pod)}"')
        twin = self.twins.twin(pod)
        if twin is None:
            raise web.HTTPBadRequest(text=no_twin_message(pod))
        if self.slots.locked():
            raise web.HTTPTooManyRequests(
                text=f"{MAX_CONCURRENT_LOGS} logs are already being streamed; try again later"
            )
        async with self.slots:
            with LOGS_IN_PROGRESS.track_inprogress():
                return await self.stream_log(request, pod, twin, container)

    async def stream_log(self, request: web.Request, pod: Object, twin: Object, container: str) -> web.StreamResponse:
        response, started = web.StreamResponse(headers={"Content-Type": "text/plain"}), time.monotonic()
        try:
            query = log_query(request.query, container)
            async with pod_log(self.twins.physical, name_of(twin), namespace_of(twin), query) as chunks:
                await response.prepare(request)
                await write_chunks(response, chunks)
        except ApiError as error:
            raise kubelet_error(error, pod, twin) from error
        except TransportError as error:
            log.warning("pod log stream interrupted", pod=key_of(pod), container=container, error=str(error))
            if not response.prepared:
                raise web.HTTPInternalServerError(text=unreachable_message(pod)) from error
            abort_response(request)
        finally:  # also if the client disconnected, the usual end of a followed log
            if response.prepared:
                seconds = round(time.monotonic() - started, 3)
                log.info("pod log stream finished", pod=key_of(pod), container=container, seconds=seconds)
        return response


async def write_chunks(response: web.StreamResponse, chunks: AsyncIterator[bytes]) -> None:
    """Write each chunk after the previous one was sent, until the stream ends or the client disconnects."""
    async for chunk in chunks:
        try:
            await response.write(chunk)
        except ConnectionError:  # caught here: the caller would take it for an error of the physical side
            return


def abort_response(request: web.Request) -> None:
    """Break the connection, so that the client does not take the response as complete."""
    if request.transport is not None:
        request.transport.abort()


def log_query(query: Mapping[str, str], container: str) -> dict[str, str]:
    """Return the query for the physical API server."""
    return {"container": container, **{name: query[name] for name in OPTIONS if query.get(name)}}


def no_twin_message(pod: Object) -> str:
    problem = f'pod "{name_of(pod)}" does not run in the physical cluster, not yet or not any more'
    return f"{problem}, so there is no log; `tapestry explain pod {key_of(pod)}` explains why"


def unreachable_message(pod: Object) -> str:
    node = pod["spec"]["nodeName"]
    return f"the physical cluster of node {node} is unreachable; its logs are not available until it is reachable again"


def kubelet_error(error: ApiError, pod: Object, twin: Object) -> web.HTTPException:
    """Translate an error of the physical API server to that of a kubelet for the virtual pod."""
    message = error.message.replace(name_of(twin), name_of(pod))[:MAX_MESSAGE_LENGTH]
    match error:
        case NotFound():
            return web.HTTPBadRequest(text=no_twin_message(pod))
        case Forbidden():
            problem = f"the syncer of node {pod['spec']['nodeName']} may not read logs in the physical cluster"
            remedy = f"grant it `get pods/log` in namespace {namespace_of(twin)} there, or join the cluster again"
            return web.HTTPInternalServerError(text=f"{problem}; {remedy}")
        case Unauthorized():
            problem = f"the physical cluster rejects the credentials of the syncer of node {pod['spec']['nodeName']}"
            return web.HTTPInternalServerError(text=f"{problem}; run `tapestry doctor`")
        case ServerError():
            return web.HTTPInternalServerError(text=f"the physical cluster reports: {message}")
        case _:
            return web.HTTPBadRequest(text=message)
