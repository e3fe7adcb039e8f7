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
from tapestry.syncer.bottomup.nodes import PhysicalNodes
from tapestry.syncer.site import Site

log = logger(__name__)

PAUSE = 1.0
"""Seconds between two looks at every node, and that the virtual cluster has to answer in."""


@dataclass(frozen=True)
class Vigil:
    """Sees to deadlines while this process is cut off from its Lease."""

    site: Site
    nodes: PhysicalNodes
    below: Client
    """Not fenced."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            elector = self.site.manager.elector
            if elector is not None and elector.is_cut_off and await self.is_silent():
                await self.look()

    async def is_silent(self) -> bool:
        """Whether the virtual cluster gives no answer of any kind; with one, the election knows better than we do."""
        try:
            async with asyncio.timeout(PAUSE):
                await self.site.manager.reads.version()
        except (TransportError, TimeoutError):
            return True
        except KubeError:
            return False
        return False

    async def look(self) -> None:
        for node in self.site.virtual_nodes.store.list():
            reclaim, reason = self.nodes.due(node, self.site.now())
            try:
                await self.nodes.take_twins(name_of(node), reclaim, reason, self.below)
            except KubeError:  # logged there; the next look tries again
                continue
