"""etcd over gRPC: the few calls that a store needs, and what it means when one fails.

There is a channel to each endpoint, which gRPC keeps up; all calls take the same one, until the store turns to the next
because its watch there has ended.  A call that reads may fail in one way, `Unreachable`.  A transaction has two more:
etcd has refused it (`LogError`), or nobody knows (`OutcomeUnknown`), in which case it is not sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import grpc
import grpc.aio

from tapestry.apiserver.storage.etcd.messages import (
    COMPARE_LESS,
    COMPARE_MOD_REVISION,
    COMPARE_VERSION,
    DELETE_EVENT,
    Message,
    rpc,
)
from tapestry.apiserver.storage.log import OutcomeUnknown, StorageError, StorageUnavailable

CALL_TIMEOUT = 10.0
"""How long a call may take; etcd itself gives up after seven seconds without a majority."""
PAGE_SIZE = 500
"""Objects that are asked for at a time."""
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # a page of large objects
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # so a member that is silent is noticed within 15 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
REJECTION_CODES = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""With these etcd says that it has done nothing."""


class KeyValue(NamedTuple):
    """What etcd has under a key since a revision; None is nothing."""

    path: bytes
    value: bytes | None
    revision: int


class RangeGuard(NamedTuple):
    """Where nothing may have been written after a revision."""

    start: bytes
    end: bytes
    revision: int


class HistoryCompacted(Exception):
    """etcd has forgotten what happened after the revision that a watch was to begin at."""


@dataclass(frozen=True)
class Certificates:
    """What TLS is made of, in PEM; without an authority, those are trusted that gRPC knows."""

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class Endpoint:
    """The calls to one member."""

    def __init__(self, url: str, certificates: Certificates) -> None:
        self.url = url
        where = urlsplit(url)
        if where.scheme not in ("http", "https") or not where.netloc or where.path.strip("/"):
            raise ValueError(f"etcd server {url!r}: not of the form https://host:2379")
        if where.scheme == "https":
            trust = grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.certificate)
            self.channel = grpc.aio.secure_channel(where.netloc, trust, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(where.netloc, options=CHANNEL_OPTIONS)
        self.range = self._call("KV/Range", "RangeRequest", "RangeResponse")
        self.txn = self._call("KV/Txn", "TxnRequest", "TxnResponse")
        self.compact = self._call("KV/Compact", "CompactionRequest", "CompactionResponse")
        self.grant = self._call("Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse")
        self.watch = self.channel.stream_stream(
            "/etcdserverpb.Watch/Watch", **serializers("WatchRequest", "WatchResponse")
        )

    def _call(self, method: str, request: str, response: str) -> Any:
        return self.channel.unary_unary(f"/etcdserverpb.{method}", **serializers(request, response))


def serializers(request: str, response: str) -> dict[str, Any]:
    return {
        "request_serializer": getattr(rpc, request).SerializeToString,
        "response_deserializer": getattr(rpc, response).FromString,
    }


class EtcdClient:
    """Use it as a context: that closes its channels."""

    def __init__(self, urls: Sequence[str], certificates: Certificates) -> None:
        if not urls:
            raise ValueError(
                "etcd.servers: there is none; name one or more, as in --etcd-servers=https://10.0.0.1:2379"
            )
        self._endpoints = [Endpoint(url, certificates) for url in urls]
        self._endpoint = self._endpoints[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    def switch_endpoint(self) -> None:
        """Ask the next endpoint from now on."""
        index = self._endpoints.index(self._endpoint) + 1
        self._endpoint = self._endpoints[index % len(self._endpoints)]

    # -- reading

    async def current_revision(self, path: bytes) -> int:
        """The revision of the last write that anybody was told of before this was called."""
        answer = await self._read(self._endpoint.range, rpc.RangeRequest(key=path, count_only=True))
        return int(answer.header.revision)

    async def list_pages(self, start: bytes, end: bytes) -> AsyncIterator[tuple[int, list[KeyValue]]]:
        """All that is there at one revision, which comes with each page."""
        revision, more = 0, True
        while more:
            request = rpc.RangeRequest(key=start, range_end=end, limit=PAGE_SIZE, revision=revision)
            answer = await self._read(self._endpoint.range, request)
            revision, more = revision or int(answer.header.revision), answer.more
            found = [KeyValue(each.key, each.value, each.mod_revision) for each in answer.kvs]
            yield revision, found
            if found:
                start = found[-1].path + b"\0"

    @asynccontextmanager
    async def watch(self, start: bytes, end: bytes, revision: int) -> AsyncIterator["EtcdWatch"]:
        """What happens from a revision on."""
        call = self._endpoint.watch(metadata=(("hasleader", "true"),))  # a member without a leader ends it
        create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=revision, progress_notify=True)
        watch = EtcdWatch(call, self._endpoint.url)
        try:
            await watch.send(rpc.WatchRequest(create_request=create))
            yield watch
        finally:
            call.cancel()

    # -- writing

    async def put(
        self, path: bytes, value: bytes, expected: int, lease: int, guard: RangeGuard | None = None
    ) -> tuple[bool, int]:
        """Have a value in the place of that of a revision; 0 is of none.  Whether it is so, and the revision then."""
        put = rpc.PutRequest(key=path, value=value, lease=lease)
        return await self._put_if_revision(path, expected, rpc.RequestOp(request_put=put), guard)

    async def delete(self, path: bytes, expected: int) -> tuple[bool, int]:
        """Have the value of a revision no more; answers as `put` does."""
        delete = rpc.DeleteRangeRequest(key=path)
        return await self._put_if_revision(path, expected, rpc.RequestOp(request_delete_range=delete))

    async def _put_if_revision(
        self, path: bytes, expected: int, operation: Message, guard: RangeGuard | None = None
    ) -> tuple[bool, int]:
        compare = [rpc.Compare(target=COMPARE_MOD_REVISION, key=path, mod_revision=expected)]
        if guard is not None:
            start, end, last = guard
            compare.append(
                rpc.Compare(
                    target=COMPARE_MOD_REVISION, result=COMPARE_LESS, key=start, range_end=end, mod_revision=last + 1
                )
            )
        answer = await self._write(self._endpoint.txn, rpc.TxnRequest(compare=compare, success=[operation]))
        return bool(answer.succeeded), int(answer.header.revision)

    async def put_if_version(self, path: bytes, value: bytes, expected: int) -> tuple[bool, int, int]:
        """Have a value that was written `expected` times before; whether it is so, how often now, and the revision."""
        compare = rpc.Compare(target=COMPARE_VERSION, key=path, version=expected)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=value))
        get = rpc.RequestOp(request_range=rpc.RangeRequest(key=path))
        request = rpc.TxnRequest(compare=[compare], success=[put], failure=[get])
        answer = await self._write(self._endpoint.txn, request)
        if answer.succeeded:
            return True, expected + 1, int(answer.header.revision)
        [found] = answer.responses[0].response_range.kvs or [rpc.KeyValue()]
        return False, int(found.version), int(answer.header.revision)

    async def grant_lease(self, seconds: int) -> int:
        """A lease: what is put with it goes when it is over."""
        return int((await self._read(self._endpoint.grant, rpc.LeaseGrantRequest(TTL=seconds))).ID)

    async def compact(self, revision: int) -> None:
        """Have etcd forget what was before a revision."""
        await self._read(self._endpoint.compact, rpc.CompactionRequest(revision=revision))

    # -- calls

    async def _read(self, call: Any, request: Message) -> Message:
        url = self._endpoint.url
        try:
            return await call(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise StorageUnavailable(f"etcd at {url}: {grpc_error_text(error)}") from error

    async def _write(self, call: Any, request: Message) -> Message:
        url = self._endpoint.url
        try:
            return await call(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() in REJECTION_CODES:
                raise StorageError(f"etcd at {url}: nothing was written: {grpc_error_text(error)}") from error
            unknown = "whether this was written is not known: look before you try again"
            why = f"etcd at {url}: {grpc_error_text(error)}; {unknown}"
            raise OutcomeUnknown(why) from error


class EtcdWatch:
    """A watch under way."""

    def __init__(self, call: Any, url: str) -> None:
        self._call, self._url = call, url
        self._sending = asyncio.Lock()  # gRPC takes one message at a time

    async def send(self, request: Message) -> None:
        try:
            async with self._sending:
                await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended: {grpc_error_text(error)}") from error

    async def request_progress(self) -> None:
        """Be told which revision has been reached, also if nothing happened that is watched."""
        await self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    async def next(self) -> tuple[list[KeyValue], int]:
        """What happened, all of each revision, and the revision up to which there is nothing else."""
        while True:
            answer = await self._receive()
            if answer.compact_revision:
                raise HistoryCompacted
            if answer.canceled:
                raise StorageUnavailable(f"etcd at {self._url}: the watch was cancelled: {answer.cancel_reason}")
            if answer.events:
                found = [key_value_from(event) for event in answer.events]
                return found, found[-1].revision  # that of the header may be ahead of what follows
            if not answer.created:
                return [], int(answer.header.revision)

    async def _receive(self) -> Message:
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended: {grpc_error_text(error)}") from error
        if answer is grpc.aio.EOF:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended")
        return answer


def key_value_from(event: Message) -> KeyValue:
    return KeyValue(event.kv.key, None if event.type == DELETE_EVENT else event.kv.value, event.kv.mod_revision)


def grpc_error_text(error: Exception) -> str:
    return f"{error.details()} ({error.code().name})" if isinstance(error, grpc.aio.AioRpcError) else str(error)
