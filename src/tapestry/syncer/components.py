"""Shared parts of a syncer, from which each reconciler gets those that it uses."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tapestry.client.client import Client
from tapestry.controller import Manager, ObjectCache
from tapestry.controller.store import Indexer
from tapestry.controller.transforms import Transform, slim
from tapestry.kube.objects import EMPTY_MAPPING, Object, value_at
from tapestry.kube.resources import Resource
from tapestry.process.logs import logger
from tapestry.syncer.bindings import connection_key_of
from tapestry.syncer.bottomup.nodes import KubeletState
from tapestry.syncer.caches import Caches, build_caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import Shortages
from tapestry.syncer.ledger import Ledger
from tapestry.syncer.partition import Partition
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.topdown.namespace_informers import owned_informer
from tapestry.syncer.topdown.priority_class import PriorityClassState

log = logger(__name__)

SUMMARY_SECONDS = 1.0
"""Minimum seconds between two computations of sums over all nodes and pods."""


class OwnedCache(Protocol):
    def __call__(
        self, resource: Resource, transform: Transform = slim, indexers: Mapping[str, Indexer] = EMPTY_MAPPING
    ) -> ObjectCache:
        """Return the cache of our physical objects of a kind, with an index by source."""


@dataclass(frozen=True)
class Syncer:
    """Parts that the controllers of one binding share."""

    config: SyncerConfig
    manager: Manager
    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    transports: tuple[SwitchableTransport, SwitchableTransport]
    """Transports to the physical cluster, for reads and for writes."""
    connection_key: Object
    """Spec fields that the informers were created for."""
    partition: Partition
    shortages: Shortages
    owned_cache: OwnedCache
    ledger: Ledger = field(default_factory=Ledger)
    """Amounts that our twins hold of each virtual node's lease."""
    kubelet: KubeletState = field(default_factory=KubeletState)
    priority_class_state: PriorityClassState = field(default_factory=PriorityClassState)
    pending_disruptions: dict[str, Object] = field(default_factory=dict)
    """Patches that mark reclaimed pods, by the UID of their twin, until the virtual cluster is reachable."""
    outdated: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the binding's connection fields change: the process must build a new syncer."""

    def stop_outdated(self) -> None:
        log.info("binding target changed, restarting syncer", binding=self.identity.binding_name)
        self.outdated.set()
        self.manager.stop()


def build_components(
    config: SyncerConfig,
    manager: Manager,
    binding: Object,
    virtual_cluster_uid: str,
    transports: tuple[SwitchableTransport, SwitchableTransport],
) -> Syncer:
    """Build the parts for a binding that was read live. The informers start with the manager."""
    reads, writes = transports
    manager.on_loss(writes.abort)
    read_client = Client(reads, identity=manager.identity)
    fence = manager.elector.fence if manager.elector else None
    write_client = Client(writes, fence=fence, audit=manager.audit, identity=manager.identity)
    identity = Identity(
        binding_name=binding["metadata"]["name"],
        binding_uid=binding["metadata"]["uid"],
        virtual_cluster_uid=virtual_cluster_uid,
        mount_namespace=value_at(binding, "spec", "mountNamespace", default=""),
        manager_namespace=config.leader_election.namespace,
    )
    caches = build_caches(manager, read_client, identity, binding)
    current_binding = CurrentBinding(identity, caches.bindings, caches.mount_namespaces)
    return Syncer(
        config=config,
        manager=manager,
        identity=identity,
        current_binding=current_binding,
        caches=caches,
        clients=Clients(identity, manager.client, manager.reads, write_client, read_client, manager.events),
        transports=transports,
        connection_key=connection_key_of(binding),
        partition=Partition(current_binding, reads, manager.now),
        shortages=Shortages(manager.now),
        owned_cache=lambda resource, transform=slim, indexers=EMPTY_MAPPING: manager.add_optional_informer(
            owned_informer(identity, read_client, resource, transform, indexers)
        ),
    )
