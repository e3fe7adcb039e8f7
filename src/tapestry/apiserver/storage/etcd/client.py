"""etcd client over gRPC, with the calls that the store needs and their errors.

The client keeps a channel to each endpoint. All calls use the same channel until the store switches to the next one
because its watch has ended. A read fails with `StorageUnavailable`. A transaction can also fail because etcd rejected
it (`StorageError`), or with an unknown result (`OutcomeUnknown`). In that case it is not retried.

A client with an epoch is the only writer of its keys. Each of its transactions fails with `EpochLost` if another
process has taken a later epoch, even if the process was stopped between the check of its lease and the transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import grpc
import grpc.aio

from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.core.store import ObjectTooLarge, OutcomeUnknown, StorageError, StorageUnavailable
from tapestry.apiserver.storage.etcd.messages import (
    COMPARE_LESS,
    COMPARE_MOD_REVISION,
    COMPARE_VALUE,
    COMPARE_VERSION,
    DELETE_EVENT,
    Message,
    rpc,
)

CALL_TIMEOUT = 10.0
"""Timeout of a call in seconds. etcd itself gives up after seven seconds without a majority."""
PAGE_SIZE = 500
"""Objects per page of a list."""
CHANNEL_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # a page of large objects
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # detects a silent member within 15 s
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
"""Codes which guarantee that etcd did not apply the request."""
TOO_LARGE_TEXTS = ("request is too large", "received message larger than max")
"""Parts of the messages of etcd and gRPC about the size of a request, for which there is no code."""


class KeyValue(NamedTuple):
    """The value of a key at a revision; None if the key was deleted."""

    path: bytes
    value: bytes | None
    revision: int


class RangeGuard(NamedTuple):
    """Condition of a write: no key in the range changed after `revision`."""

    start: bytes
    end: bytes
    revision: int


class EpochGuard(NamedTuple):
    """Condition of all transactions of a client: the key at `path` has the epoch of the fence."""

    path: bytes
    fence: EpochFence

    @property
    def value(self) -> bytes:
        return b"%d" % self.fence.epoch


class HistoryCompacted(StorageUnavailable):
    """Error if etcd no longer has the history that a list or a watch needs."""


@dataclass(frozen=True)
class Certificates:
    """TLS credentials in PEM. Without an authority, gRPC's default roots are trusted."""

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class Endpoint:
    """The calls to one etcd member."""

    def __init__(self, url: str, certificates: Certificates) -> None:
        self.url = url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
            raise ValueError(f"etcd server {url!r}: not of the form https://host:2379")
        if parts.scheme == "https":
            tls = grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.certificate)
            self.channel = grpc.aio.secure_channel(parts.netloc, tls, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(parts.netloc, options=CHANNEL_OPTIONS)
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
    """A client of all endpoints. Its context manager closes the channels."""

    def __init__(self, urls: Sequence[str], certificates: Certificates, epoch: EpochGuard | None = None) -> None:
        if not urls:
            raise ValueError(
                "etcd.servers: there is none; name one or more, as in --etcd-servers=https://10.0.0.1:2379"
            )
        self._endpoints = [Endpoint(url, certificates) for url in urls]
        self._endpoint = self._endpoints[0]
        self.epoch = epoch
        self.epoch_lost = asyncio.Event()
        """Set when a transaction or the watch has found another epoch."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    def switch_endpoint(self) -> None:
        """Use the next endpoint from now on."""
        index = self._endpoints.index(self._endpoint) + 1
        self._endpoint = self._endpoints[index % len(self._endpoints)]

    # -- reading

    async def current_revision(self, path: bytes) -> int:
        """Revision of the last write that was acknowledged before this call."""
        response = await self._read(self._endpoint.range, rpc.RangeRequest(key=path, count_only=True))
        return int(response.header.revision)

    async def get(self, path: bytes) -> tuple[KeyValue, int]:
        """Return the value of a key, and the current revision. The revision of a missing key is 0."""
        response = await self._read(self._endpoint.range, rpc.RangeRequest(key=path))
        [item] = response.kvs or [None]
        found = KeyValue(path, item.value, item.mod_revision) if item is not None else KeyValue(path, None, 0)
        return found, int(response.header.revision)

    async def list_pages(
        self, start: bytes, end: bytes, revision: int = 0, *, keys_only: bool = False
    ) -> AsyncIterator[tuple[int, list[KeyValue]]]:
        """List all keys at one revision, by default the latest, page by page. Each page includes the revision.

        Raises HistoryCompacted for a revision that etcd no longer has.
        """
        more = True
        while more:
            request = rpc.RangeRequest(
                key=start, range_end=end, limit=PAGE_SIZE, revision=revision, keys_only=keys_only
            )
            response = await self._read(self._endpoint.range, request)
            revision, more = revision or int(response.header.revision), response.more
            page = [KeyValue(item.key, item.value, item.mod_revision) for item in response.kvs]
            yield revision, page
            if page:
                start = page[-1].path + b"\0"

    async def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """Return the first key of a range."""
        request = rpc.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        response = await self._read(self._endpoint.range, request)
        return response.kvs[0].key if response.kvs else None

    @asynccontextmanager
    async def watch(self, start: bytes, end: bytes, revision: int) -> AsyncIterator["EtcdWatch"]:
        """Watch changes from a revision on."""
        call = self._endpoint.watch(metadata=(("hasleader", "true"),))  # a member without a leader ends the watch
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
        """Put a value if the key is at revision `expected`; 0 means absent. Returns success and the revision."""
        put = rpc.PutRequest(key=path, value=value, lease=lease)
        return await self._put_if_revision(path, expected, rpc.RequestOp(request_put=put), guard)

    async def delete(self, path: bytes, expected: int) -> tuple[bool, int]:
        """Delete the key if it is at revision `expected`. Returns the same as `put`."""
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
        response = await self._transact(compare, [operation])
        return bool(response.succeeded), int(response.header.revision)

    async def put_all(self, changes: Sequence[KeyValue]) -> int | None:
        """Put or delete several keys in one transaction, if each is at its revision; 0 means absent.

        Returns the new revision, or None if one of them is at another revision.
        """
        compare = [
            rpc.Compare(target=COMPARE_MOD_REVISION, key=path, mod_revision=revision) for path, _, revision in changes
        ]
        operations = [
            rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=path))
            if value is None
            else rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=value))
            for path, value, _ in changes
        ]
        response = await self._transact(compare, operations)
        return int(response.header.revision) if response.succeeded else None

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys of a range, a page in each transaction, since etcd does nothing else meanwhile."""
        async for _, page in self.list_pages(start, end, keys_only=True):
            if page:
                delete = rpc.DeleteRangeRequest(key=page[0].path, range_end=page[-1].path + b"\0")
                await self._transact([], [rpc.RequestOp(request_delete_range=delete)])

    async def put_if_version(self, path: bytes, value: bytes, expected: int) -> tuple[bool, int, int]:
        """Put a value if the key has version `expected`. Returns success, the version and the revision."""
        compare = rpc.Compare(target=COMPARE_VERSION, key=path, version=expected)
        put = rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=value))
        get = rpc.RequestOp(request_range=rpc.RangeRequest(key=path))
        response = await self._transact([compare], [put], [get])
        if response.succeeded:
            return True, expected + 1, int(response.header.revision)
        [current] = response.responses[0].response_range.kvs or [rpc.KeyValue()]
        return False, int(current.version), int(response.header.revision)

    async def grant_lease(self, seconds: int) -> int:
        """Grant a lease. Keys that are put with it are deleted when it expires."""
        return int((await self._read(self._endpoint.grant, rpc.LeaseGrantRequest(TTL=seconds))).ID)

    async def compact(self, revision: int) -> None:
        """Remove history before a revision."""
        await self._read(self._endpoint.compact, rpc.CompactionRequest(revision=revision))

    # -- epochs

    async def take_epoch(self) -> None:
        """Make the epoch of this client the current one. The second call does nothing.

        Raises EpochLost if a later epoch was taken already. Does nothing without an epoch.
        """
        if self.epoch is None:
            return
        path, fence = self.epoch
        while True:
            current, _ = await self.get(path)
            if current.value == self.epoch.value:
                return
            if current.value is not None and int(current.value) > fence.epoch:
                self.check_epoch(current.value)
            check_fence(fence)
            compare = rpc.Compare(target=COMPARE_MOD_REVISION, key=path, mod_revision=current.revision)
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=path, value=self.epoch.value))
            request = rpc.TxnRequest(compare=[compare], success=[put])
            if (await self._write(self._endpoint.txn, request)).succeeded:
                return

    def check_epoch(self, value: bytes | None) -> None:
        """Raise EpochLost if the value of the epoch's key is not the epoch of this client."""
        if self.epoch is not None and value != self.epoch.value:
            self.epoch_lost.set()
            current = f"epoch {value.decode(errors='replace')} is current" if value is not None else "it was deleted"
            raise EpochLost(
                f"etcd: another process has taken {self.epoch.path.decode()}: this process holds epoch "
                f"{self.epoch.fence.epoch}, but {current}; nothing was written",
                int(value or 0),
            )

    def check_changes(self, changes: Sequence[KeyValue]) -> None:
        """Raise EpochLost if a later epoch was taken in one of the changes that the watch reported."""
        if self.epoch is None:
            return
        path, fence = self.epoch
        for change in changes:
            if change.path == path and change.value is not None and int(change.value) > fence.epoch:
                self.check_epoch(change.value)

    @property
    def is_only_writer(self) -> bool:
        """True while no other process can have taken a later epoch."""
        return self.epoch is not None and self.epoch.fence.is_valid() and not self.epoch_lost.is_set()

    # -- calls

    async def _transact(
        self, compare: Sequence[Message], success: Sequence[Message], failure: Sequence[Message] = ()
    ) -> Message:
        """Run a transaction in the epoch of this client, if it has one."""
        if self.epoch is None:
            request = rpc.TxnRequest(compare=compare, success=success, failure=failure)
            return await self._write(self._endpoint.txn, request)
        path, fence = self.epoch
        check_fence(fence)
        in_epoch = rpc.Compare(target=COMPARE_VALUE, key=path, value=self.epoch.value)
        get_epoch = rpc.RequestOp(request_range=rpc.RangeRequest(key=path))
        request = rpc.TxnRequest(compare=[*compare, in_epoch], success=success, failure=[*failure, get_epoch])
        response = await self._write(self._endpoint.txn, request)
        if not response.succeeded:
            self.check_epoch(next((item.value for item in response.responses[-1].response_range.kvs), None))
        return response

    async def _read(self, call: Any, request: Message) -> Message:
        url = self._endpoint.url
        try:
            return await call(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            is_compacted = error.code() is grpc.StatusCode.OUT_OF_RANGE
            error_type = HistoryCompacted if is_compacted else StorageUnavailable
            raise error_type(f"etcd at {url}: {grpc_error_text(error)}") from error

    async def _write(self, call: Any, request: Message) -> Message:
        url = self._endpoint.url
        try:
            return await call(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() in REJECTION_CODES:
                if any(text in (error.details() or "") for text in TOO_LARGE_TEXTS):
                    advice = "store less in one object, or raise --max-request-bytes of etcd"
                    raise ObjectTooLarge(f"etcd accepts no object of this size: {advice}") from error
                raise StorageError(f"etcd at {url}: nothing was written: {grpc_error_text(error)}") from error
            unknown = "the result of this write is unknown: read the object before you retry"
            message = f"etcd at {url}: {grpc_error_text(error)}; {unknown}"
            raise OutcomeUnknown(message) from error


class EtcdWatch:
    """A running watch."""

    def __init__(self, call: Any, url: str) -> None:
        self._call, self._url = call, url
        self._sending = asyncio.Lock()  # gRPC sends one message at a time

    async def send(self, request: Message) -> None:
        try:
            async with self._sending:
                await self._call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended: {grpc_error_text(error)}") from error

    async def request_progress(self) -> None:
        """Ask etcd for the current revision of the watch, even if no watched key changed."""
        await self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    async def next(self) -> tuple[list[KeyValue], int]:
        """Return the next changes, complete per revision, and the revision up to which there are no others."""
        while True:
            response = await self._receive()
            if response.compact_revision:
                raise HistoryCompacted(f"etcd at {self._url}: the history before {response.compact_revision} is gone")
            if response.canceled:
                raise StorageUnavailable(f"etcd at {self._url}: the watch was cancelled: {response.cancel_reason}")
            if response.events:
                changes = [key_value_from(event) for event in response.events]
                return changes, changes[-1].revision  # the header's revision may be ahead of later events
            if not response.created:
                return [], int(response.header.revision)

    async def _receive(self) -> Message:
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended: {grpc_error_text(error)}") from error
        if response is grpc.aio.EOF:
            raise StorageUnavailable(f"etcd at {self._url}: the watch has ended")
        return response


def check_fence(fence: EpochFence) -> None:
    if not fence.is_valid():
        raise StorageUnavailable(
            f"etcd: nothing was written: this process could not renew its Lease, so epoch {fence.epoch} may be over"
        )


def key_value_from(event: Message) -> KeyValue:
    return KeyValue(event.kv.key, None if event.type == DELETE_EVENT else event.kv.value, event.kv.mod_revision)


def grpc_error_text(error: Exception) -> str:
    return f"{error.details()} ({error.code().name})" if isinstance(error, grpc.aio.AioRpcError) else str(error)
