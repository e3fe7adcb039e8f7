"""What is promised to owners holds while the virtual cluster is silent, too.

A syncer that cannot renew its Lease may not write any more: another one may lead.  Yet where nobody can reach the
virtual cluster, nobody leads, and nodes would not be free when their time is over.  So whoever led last, and knows of
no other leader, goes on with this one thing: at a deadline, by the policies as they were last seen and by the owner's
own below, it deletes twins.  Beside another leader that does no harm: each delete is of one version of one twin.
"""

import asyncio
from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.kube.errors import KubeError, TransportError
from tapestry.kube.objects import name_of
from tapestry.process.logs import logger
from tapestry.syncer.bottomup.nodes import NodeReconciler
from tapestry.syncer.context import SyncContext

log = logger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two looks at every node, and that the virtual cluster has to answer in."""


@dataclass(frozen=True)
class OfflineReclaim:
    """Sees to deadlines while this process is cut off from its Lease."""

    context: SyncContext
    node_reconciler: NodeReconciler
    unfenced_client: Client
    """Not fenced."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            elector = self.context.manager.elector
            if elector is not None and elector.is_cut_off and await self.is_virtual_unreachable():
                await self.reclaim_due()

    async def is_virtual_unreachable(self) -> bool:
        """Whether the virtual cluster gives no answer of any kind; with one, the election knows better than we do."""
        try:
            async with asyncio.timeout(CHECK_INTERVAL):
                await self.context.manager.reads.server_version()
        except (TransportError, TimeoutError):
            return True
        except KubeError:
            return False
        return False

    async def reclaim_due(self) -> None:
        for node in self.context.virtual_nodes.store.list():
            reclaim, reason = self.node_reconciler.due_reclaim(node, self.context.now())
            try:
                await self.node_reconciler.delete_reclaimed_twins(name_of(node), reclaim, reason, self.unfenced_client)
            except KubeError:  # logged there; the next look tries again
                continue
