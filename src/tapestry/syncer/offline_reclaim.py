"""Reclaim of twins at their deadline while the virtual cluster is unreachable.

A syncer that cannot renew its Lease may not write any more, because another one may lead. But while the virtual cluster
is unreachable no process leads, and nodes would not be free in time. So the last leader, if it knows of no other,
continues with this one task: at a deadline it deletes twins, according to the policies it last saw and the owner's
policies. This is harmless beside another leader because each delete is bound to one version of one twin.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from tapestry.client.client import Client
from tapestry.controller import ObjectCache
from tapestry.controller.leader import Elector
from tapestry.kube.errors import KubeError, TransportError
from tapestry.kube.objects import name_of
from tapestry.process.logs import logger
from tapestry.syncer.bottomup.reclaimer import Reclaimer

log = logger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two checks of every node, and timeout of the virtual cluster's response."""


@dataclass(frozen=True)
class OfflineReclaim:
    """Enforce reclaim deadlines while this process cannot reach its Lease."""

    elector: Elector | None
    virtual_client: Client
    virtual_nodes: ObjectCache
    now: Callable[[], datetime]
    reclaimer: Reclaimer
    unfenced_client: Client
    """A client that works without the Lease."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            if self.elector is not None and self.elector.is_cut_off and await self.is_virtual_unreachable():
                await self.reclaim_due()

    async def is_virtual_unreachable(self) -> bool:
        """Return whether the virtual cluster gives no response; after any response the election decides."""
        try:
            async with asyncio.timeout(CHECK_INTERVAL):
                await self.virtual_client.server_version()
        except (TransportError, TimeoutError):
            return True
        except KubeError:
            return False
        return False

    async def reclaim_due(self) -> None:
        for node in self.virtual_nodes.store.list():
            reclaim, reason = self.reclaimer.due_reclaim(node, self.now())
            try:
                await self.reclaimer.delete_reclaimed_twins(name_of(node), reclaim, reason, self.unfenced_client)
            except KubeError:  # logged by the callee; the next check retries
                continue
