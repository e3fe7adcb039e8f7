"""Periodic compaction of etcd's history.

In each interval, only one of the servers on an etcd compacts, including kube-apiservers. It is the first one to
increment a shared key, as in kube-apiserver. It compacts the history up to the revision of the previous interval.
"""

import asyncio

from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage.etcd.client import EtcdClient
from tapestry.process.logs import logger

log = logger(__name__)

COMPACT_KEY = b"compact_rev_key"


async def compact_periodically(client: EtcdClient, seconds: float) -> None:
    """Remove history older than `seconds`, and nothing newer."""
    count = revision = 0
    while True:
        await asyncio.sleep(seconds)
        try:
            count, revision = await compact_once(client, count, revision)
        except StorageError as error:  # the next interval tries again
            log.warning("etcd compaction failed", revision=revision, error=str(error))


async def compact_once(client: EtcdClient, count: int, revision: int) -> tuple[int, int]:
    """Compact up to `revision` unless another server did. Returns the next count and revision."""
    is_first, count, latest = await client.put_if_version(COMPACT_KEY, b"%d" % revision, count)
    if is_first and revision:
        await client.compact(revision)
        log.info("etcd compacted", revision=revision)
    return count, latest
