"""Logs of virtual pods: those of their twins, passed on as they come.

A virtual cluster asks the kubelet of a virtual node; what that one knows, only the physical API server can tell.  It is
asked with the same options, and what it refuses is told in a kubelet's way: an API server shows people the words that
come with 400 and 500, and words of its own for all other codes.
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
"""Logs that are read at once: each may hold a few MiB that its reader is too slow for."""
MAX_MESSAGE_LENGTH = 4096
"""Characters of what a stranger says."""

LOGS_IN_PROGRESS = Gauge("logs_read", "Logs of pods that are being read through this process.", namespace=NAMESPACE)


@dataclass(frozen=True)
class TwinLookup:
    """The pods of our virtual nodes and what runs for them below."""

    pod: Callable[[str], Object | None]
    """The pod of that key, if it is bound to a virtual node of ours."""
    twin: Callable[[Object], Object | None]
    """The pod below that is provably ours and was made for this one."""
    physical: Client


@dataclass(frozen=True)
class LogRelay:
    """Reads the logs of twins, so many at once."""

    twins: TwinLookup
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_LOGS))

    async def relay(self, request: web.Request, pod: Object, container: str) -> web.StreamResponse:
        """Answer with the log of a container; raises what a kubelet would say where there is none."""
        if all(each["name"] != container for each in containers_of(pod, CONTAINER_FIELDS)):
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{name_of(pod)}"')
        twin = self.twins.twin(pod)
        if twin is None:
            raise web.HTTPBadRequest(text=no_twin_message(pod))
        if self.slots.locked():
            raise web.HTTPTooManyRequests(
                text=f"{MAX_CONCURRENT_LOGS} logs are being read already; try again when one has ended"
            )
        async with self.slots:
            with LOGS_IN_PROGRESS.track_inprogress():
                return await self.stream_log(request, pod, twin, container)

    async def stream_log(self, request: web.Request, pod: Object, twin: Object, container: str) -> web.StreamResponse:
        answer, begun = web.StreamResponse(headers={"Content-Type": "text/plain"}), time.monotonic()
        try:
            asked = log_query(request.query, container)
            async with pod_log(self.twins.physical, name_of(twin), namespace_of(twin), asked) as chunks:
                await answer.prepare(request)
                await write_chunks(answer, chunks)
        except ApiError as error:
            raise kubelet_error(error, pod, twin) from error
        except TransportError as error:
            log.warning("log cut short", pod=key_of(pod), container=container, error=str(error))
            if not answer.prepared:
                raise web.HTTPInternalServerError(text=unreachable_message(pod)) from error
            abort_response(request)
        finally:  # also where the reader left: of a log that is followed, that is the usual end
            if answer.prepared:
                log.info("log read", pod=key_of(pod), container=container, seconds=round(time.monotonic() - begun, 3))
        return answer


async def write_chunks(answer: web.StreamResponse, chunks: AsyncIterator[bytes]) -> None:
    """Pass chunks on, each when the one before it has left; until they end, or whoever reads them does."""
    async for chunk in chunks:
        try:
            await answer.write(chunk)
        except ConnectionError:  # caught here, for around us it would be the other side's
            return


def abort_response(request: web.Request) -> None:
    """End an answer so that nobody takes it for complete."""
    if request.transport is not None:
        request.transport.abort()


def log_query(query: Mapping[str, str], container: str) -> dict[str, str]:
    """What the physical API server is asked for."""
    return {"container": container, **{name: query[name] for name in OPTIONS if query.get(name)}}


def no_twin_message(pod: Object) -> str:
    what = f'nothing runs for pod "{name_of(pod)}" in the physical cluster, not yet or no more'
    return f"{what}, so there is no log; `tapestry explain pod {key_of(pod)}` says why"


def unreachable_message(pod: Object) -> str:
    node = pod["spec"]["nodeName"]
    return f"the physical cluster behind node {node} does not answer, and its logs cannot be had until it does"


def kubelet_error(error: ApiError, pod: Object, twin: Object) -> web.HTTPException:
    """What the physical API server refuses, as a kubelet would say it of the virtual pod."""
    said = error.message.replace(name_of(twin), name_of(pod))[:MAX_MESSAGE_LENGTH]
    match error:
        case NotFound():
            return web.HTTPBadRequest(text=no_twin_message(pod))
        case Forbidden():
            what = f"the syncer of node {pod['spec']['nodeName']} may not read logs in the physical cluster"
            todo = f"grant it `get pods/log` in namespace {namespace_of(twin)} there, or join the cluster again"
            return web.HTTPInternalServerError(text=f"{what}; {todo}")
        case Unauthorized():
            what = f"the physical cluster does not know the syncer of node {pod['spec']['nodeName']} any more"
            return web.HTTPInternalServerError(text=f"{what}; `tapestry doctor` says what to do")
        case ServerError():
            return web.HTTPInternalServerError(text=f"the physical cluster says: {said}")
        case _:
            return web.HTTPBadRequest(text=said)
