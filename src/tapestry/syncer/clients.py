"""Clients of a syncer's two clusters."""

from dataclasses import dataclass

from tapestry.client.client import Client
from tapestry.controller.events import Recorder
from tapestry.kube.objects import Object, split_key
from tapestry.kube.resources import PODS
from tapestry.syncer.identity import Identity


@dataclass(frozen=True)
class Clients:
    """Clients of both clusters. Those without `reads` in their name are fenced, and are for writes and live reads."""

    identity: Identity
    virtual: Client
    virtual_reads: Client
    physical: Client
    physical_reads: Client
    events: Recorder
    """Record events in the virtual cluster."""

    async def live_pod(self, key: str) -> Object | None:
        """Read the virtual pod under `key` from its API server."""
        namespace, name = key.split("/")
        return await self.virtual.find(PODS, name, namespace)

    async def live_twin(self, key: str) -> Object | None:
        """Read any pod with the name of the twin of `key` from its API server."""
        namespace, name = split_key(self.identity.twin_key(key))
        return await self.physical.find(PODS, name, namespace)
