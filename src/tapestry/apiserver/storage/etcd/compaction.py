"""Compaction: etcd forgets what nobody can go back to any more.

Of all servers on one etcd, kube-apiservers included, one does it in each interval: whoever is first to count up a key
that they share, as kube-apiserver does it.  The revision that goes is that of the interval before.
"""

import asyncio

from tapestry.apiserver.storage.etcd.client import EtcdClient
from tapestry.apiserver.storage.log import StorageError
from tapestry.process.logs import logger

log = logger(__name__)

COMPACT_KEY = b"compact_rev_key"


async def compact_periodically(client: EtcdClient, seconds: float) -> None:
    """Have what is older than that forgotten, and nothing younger."""
    count = revision = 0
    while True:
        await asyncio.sleep(seconds)
        try:
            count, revision = await compact_once(client, count, revision)
        except StorageError as error:  # the next time will do as well
            log.warning("not compacted", revision=revision, error=str(error))


async def compact_once(client: EtcdClient, count: int, revision: int) -> tuple[int, int]:
    """Have what was before a revision forgotten, unless another server saw to it; the next count and revision."""
    ours, count, latest = await client.put_if_version(COMPACT_KEY, b"%d" % revision, count)
    if ours and revision:
        await client.compact(revision)
        log.info("compacted", revision=revision)
    return count, latest
