"""Heads of the audit chains in the management API, by which a verification notices records that were cut off the end.

One ConfigMap has the head of each instance, and those heads that an instance did not find in its chain when it started.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.client.client import Client
from tapestry.kube.errors import AlreadyExists, KubeError, NotFound
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS
from tapestry.process.logs import logger
from tapestry.vclusters.audit.chained_log import AuditUnavailableError, ChainedLog
from tapestry.vclusters.audit.records import Head, digest_of, lines_of, segments

log = logger(__name__)

HEADS_CONFIG_MAP = "vcluster-audit-heads"
WRITE_SECONDS = 10.0
"""Seconds between two writes of a head that changes."""
MAX_LOST = 100


class StoredHeads(msgspec.Struct, frozen=True):
    """The heads of the chain of an instance in the management API."""

    head: Head
    """The last record when this was written."""
    lost: tuple[Head, ...] = ()
    """Earlier heads that the chain did not have when the instance started."""


def heads_in(config_map: Object | None) -> dict[str, StoredHeads]:
    """Return the heads by instance. One that cannot be read counts as a head that no chain has."""
    return {instance: decoded(text) for instance, text in value_at(config_map, "data", default={}).items()}


def decoded(text: str) -> StoredHeads:
    try:
        return msgspec.json.decode(text, type=StoredHeads)
    except msgspec.DecodeError:
        return StoredHeads(Head(1, "unreadable"))


def is_in_chain(folder: Path, head: Head) -> bool:
    """Return whether the chain in a folder has a record, from the one file that can have it."""
    candidates = [each for each in segments(folder) if int(each.stem) <= head.sequence]
    return bool(candidates) and any(digest_of(line) == head.digest for line in lines_of(candidates[-1]))


@dataclass
class HeadWriter:
    """Writer of the head of the chain of this instance."""

    client: Client
    log: ChainedLog
    _stored: StoredHeads | None = field(default=None, init=False)

    async def start(self) -> None:
        """Compare the stored head with the chain. A head that the chain has not is stored for verifications."""
        found = heads_in(await self.client.find(CONFIGMAPS, HEADS_CONFIG_MAP, SYSTEM_NAMESPACE)).get(self.log.instance)
        lost: tuple[Head, ...] = ()
        if found is not None:
            is_complete = await asyncio.to_thread(is_in_chain, self.log.folder, found.head)
            lost = found.lost if is_complete else (*found.lost, found.head)[-MAX_LOST:]
            if not is_complete:
                log.warning("audit records missing", folder=str(self.log.folder), sequence=found.head.sequence)
        await self._write(StoredHeads(self.log.head, lost))

    async def run(self) -> None:
        """Write the head until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write the head if it has changed. If that fails, a later call repeats it."""
        assert self._stored is not None
        head = self.log.head
        if head == self._stored.head:
            return
        try:
            await self._write(StoredHeads(head, self._stored.lost))
        except KubeError as error:
            log.warning("head of the audit log not stored, trying again", error=str(error))

    async def _write(self, heads: StoredHeads) -> None:
        data = {"data": {self.log.instance: msgspec.json.encode(heads).decode()}}
        named = object_named(HEADS_CONFIG_MAP, SYSTEM_NAMESPACE)
        try:
            await self.client.patch(CONFIGMAPS, named, data)
        except NotFound:
            try:
                await self.client.create(CONFIGMAPS, {**named, **data})
            except AlreadyExists:
                await self.client.patch(CONFIGMAPS, named, data)
        self._stored = heads


@asynccontextmanager
async def heads_stored(client: Client, chain: ChainedLog) -> AsyncIterator[None]:
    """Store the head of a chain regularly in the context, and at its end."""
    writer = HeadWriter(client, chain)
    await writer.start()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.run(), name="audit heads")
        try:
            yield
        finally:
            task.cancel()
    with suppress(AuditUnavailableError):
        await chain.wait_until_durable()
    await writer.write()
