"""Logs of virtual pods, streamed from their twins.

The virtual API server requests logs from the kubelet of a virtual node.  Only the physical API server has them.  It
gets the same options.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Gauge

from tapestry.apiserver.serving.http_connection import Exchange
from tapestry.client.client import Client
from tapestry.client.logs import pod_log
from tapestry.kube.errors import ApiError, TooManyRequests, TransportError
from tapestry.kube.objects import Object, key_of, name_of, namespace_of
from tapestry.nodeproxy.physical_errors import LOG, translate_error, unreachable_error
from tapestry.nodeproxy.twins import TwinLookup, check_container
from tapestry.process.logs import logger
from tapestry.process.metrics import NAMESPACE

log = logger(__name__)

OPTIONS = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")
MAX_CONCURRENT_LOGS = 64
"""Maximum number of concurrent logs.  Each may buffer a few MiB for a slow reader."""

LOGS_IN_PROGRESS = Gauge("logs_read", "Number of pod logs being streamed by this process.", namespace=NAMESPACE)


@dataclass(frozen=True)
class LogRelay:
    """Stream the logs of twins, with a limit on concurrent streams."""

    twins: TwinLookup
    physical: Client
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_LOGS))

    async def relay(self, exchange: Exchange, query: Mapping[str, str], pod: Object, container: str) -> None:
        """Respond with the log of a container.  Raise the error of a kubelet if there is none."""
        twin = self._twin_with_log(pod, container)
        async with self.slots:
            with LOGS_IN_PROGRESS.track_inprogress():
                await self.stream_log(exchange, log_query(query, container), pod, twin)

    async def open(self, query: Mapping[str, str], pod: Object, container: str) -> AsyncGenerator[bytes, None]:
        """Return the log of a container in chunks.  Raise the error of a kubelet if there is none.

        An interrupted log ends with ConnectionError.  The caller closes the generator.
        """
        chunks = self._chunks(log_query(query, container), pod, self._twin_with_log(pod, container))
        await anext(chunks)
        return chunks

    def _twin_with_log(self, pod: Object, container: str) -> Object:
        check_container(pod, container)
        twin = self.twins.require_twin(pod, LOG.without_twin)
        if self.slots.locked():
            message = f"{MAX_CONCURRENT_LOGS} logs are already being streamed; try again later"
            raise TooManyRequests(429, "TooManyRequests", message, details={"retryAfterSeconds": 1})
        return twin

    async def _chunks(self, query: dict[str, str], pod: Object, twin: Object) -> AsyncGenerator[bytes, None]:
        """Yield an empty chunk when the log is open, and then its chunks."""
        is_open = False
        async with self.slots:
            try:
                with LOGS_IN_PROGRESS.track_inprogress():
                    async with pod_log(self.physical, name_of(twin), namespace_of(twin), query) as chunks:
                        is_open = True
                        yield b""
                        async for chunk in chunks:
                            yield chunk
            except ApiError as error:
                raise translate_error(error, LOG, pod, twin) from error
            except TransportError as error:
                if is_open:  # the client must not take the response as complete
                    raise ConnectionResetError(f"log of pod {key_of(pod)} interrupted: {error}") from error
                raise unreachable_error(LOG, pod) from error

    async def stream_log(self, exchange: Exchange, query: dict[str, str], pod: Object, twin: Object) -> None:
        started = time.monotonic()
        fields = {"pod": key_of(pod), "container": query["container"]}
        try:
            async with pod_log(self.physical, name_of(twin), namespace_of(twin), query) as chunks:
                await exchange.start_stream(200, {"Content-Type": "text/plain"})
                await send_chunks(exchange, chunks)
        except ApiError as error:
            raise translate_error(error, LOG, pod, twin) from error
        except TransportError as error:
            log.warning("pod log stream interrupted", **fields, error=str(error))
            if not exchange.is_response_started:
                raise unreachable_error(LOG, pod) from error
            exchange.abort()  # the client must not take the response as complete
        finally:  # also if the client disconnected, the usual end of a followed log
            if exchange.is_response_started:
                log.info("pod log stream finished", **fields, seconds=round(time.monotonic() - started, 3))


async def send_chunks(exchange: Exchange, chunks: AsyncIterator[bytes]) -> None:
    """Send each chunk after the previous one was sent, until the stream ends or the client disconnects."""
    async for chunk in chunks:
        try:
            await exchange.send_chunk(chunk)
        except ConnectionError:  # caught here: the caller would take it for an error of the physical side
            exchange.abort()
            return
    exchange.end_stream()


def log_query(query: Mapping[str, str], container: str) -> dict[str, str]:
    """Return the query for the physical API server."""
    return {"container": container, **{name: query[name] for name in OPTIONS if query.get(name)}}
