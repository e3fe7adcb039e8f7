"""A syncer: which change is whose business, and a process that sees to it."""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.client.access import Access
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Controller, Informer, Manager
from tapestry.controller.app import new_identity
from tapestry.kube.errors import NotFound
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.syncer.bindings import Bindings, Connector
from tapestry.syncer.bottomup.csinodes import CsiNodes
from tapestry.syncer.bottomup.hostports import HostPorts
from tapestry.syncer.bottomup.leases import NodeLeases
from tapestry.syncer.bottomup.nodes import PhysicalNodes
from tapestry.syncer.bottomup.policies import PolicyStatus, policy_names
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.credentials import Credentials
from tapestry.syncer.leasing import Side
from tapestry.syncer.partition import PartitionWatch
from tapestry.syncer.physical import Door
from tapestry.syncer.site import Site, claimed_node, open_site, physical_node_of, virtual_node_of

SUMMARY_SECONDS = 1.0
"""Sums over all nodes and pods are made at most this often."""
NODE_WORKERS = 16

Connect = Callable[[Access], Transport]


class NoBinding(ValueError):
    """There is no ClusterBinding of the name that the syncer was given."""


def with_election(config: SyncerConfig) -> SyncerConfig:
    """The configuration with a name of its own for this binding's Lease."""
    name = f"tapestry-syncer-{config.binding}"
    election = config.leader_election
    if not election.name:
        election = structs.replace(election, name=name)
    return structs.replace(config, name=name, leader_election=election)


async def run_syncer(config: SyncerConfig, environ: Mapping[str, str], home: Path) -> None:
    """Run the syncer of one binding until it is told to stop, or the binding is gone."""
    config = with_election(config)
    access = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    while True:
        manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
        site = await syncer(config, manager)
        try:
            await App(manager).run()
        finally:
            for door in (site.reads, site.writes):
                await door.close()
        if not site.outdated.is_set():
            return


async def syncer(
    config: SyncerConfig,
    manager: Manager,
    *,
    connect: Connect = HttpTransport,
    monotonic: Callable[[], float] = time.monotonic,
) -> Site:
    """Give `manager` everything that the syncer of one binding does."""
    if not config.binding:
        raise NoBinding("binding: name the ClusterBinding to work for (--binding)")
    try:
        binding = await manager.reads.get(CLUSTER_BINDINGS, config.binding)
    except NotFound:
        raise NoBinding(f"there is no ClusterBinding {config.binding!r}; create it or name another") from None
    system = await manager.reads.get(NAMESPACES, "kube-system")
    doors = Door(connect, monotonic), Door(connect, monotonic)
    site = open_site(config, manager, binding, uid_of(system), doors)
    manager.with_("syncer", lambda _: wire(site, connect, monotonic))
    return site


def wire(site: Site, connect: Connect, monotonic: Callable[[], float]) -> None:
    """Which change is whose business."""
    nodes = site.manager.controller("nodes", PhysicalNodes(site).reconcile, workers=NODE_WORKERS)
    node_leases = NodeLeases(site)
    leases = site.manager.controller("node-leases", node_leases.reconcile, workers=NODE_WORKERS)
    site.manager.while_working("lease-sweep", node_leases.sweep)
    companions = wire_companions(site)

    def every_node(_: Object | None = None) -> Iterable[str]:
        shown = (name for node in site.virtual_nodes.store.list() for name in physical_node_of(node))
        return {*site.physical_nodes.store, *shown}

    def look_at_every_node() -> None:
        for name in every_node():
            nodes.queue.add(name)
        for controller in (leases, *companions):
            for name in site.virtual_nodes.store:
                controller.queue.add(name)

    nodes.watch(site.physical_nodes)
    nodes.watch(site.physical_pods, claimed_node)
    nodes.watch(site.virtual_nodes, physical_node_of)
    nodes.watch(site.virtual_pods, lambda pod: node_below(site, pod))
    for informer in (site.bindings, site.operator_policies, site.owner_policies, site.mount_namespaces):
        nodes.watch(informer, every_node, when=spec_changed)
    for informer in (*site.decisive, site.csi_nodes):
        informer.after_sync(look_at_every_node)
    leases.watch(site.virtual_nodes, when=came_or_goes)
    bindings = wire_summaries(site, connect)

    def look_at_everything() -> None:
        look_at_every_node()
        bindings.queue.add(site.binding_name)

    watch = PartitionWatch(site, monotonic, look_at_everything)
    site.manager.while_working("partition", watch.run)


def wire_companions(site: Site) -> tuple[Controller, Controller]:
    """What goes with each virtual node, under its name: CSI drivers, and host ports that are taken."""

    def above(names: Iterable[str]) -> Iterable[str]:
        return [name_of(node) for name in names if (node := site.virtual_node_of(name)) is not None]

    csi = site.manager.controller("csinodes", CsiNodes(site).reconcile)
    csi.watch(site.csi_nodes, lambda found: above([name_of(found)]))
    csi.watch(site.virtual_nodes, when=came_or_goes)
    csi.watch(site.virtual_csi_nodes)
    ports = site.manager.controller("hostports", HostPorts(site).reconcile)
    ports.watch(site.physical_pods, lambda claim: above(claimed_node(claim)), when=ports_changed)
    ports.watch(site.virtual_nodes, when=came_or_goes)
    ports.watch(site.placeholders, virtual_node_of)
    return csi, ports


def wire_summaries(site: Site, connect: Connect) -> Controller:
    """The binding and the policies: what they came to, in sums that are made once a second at most."""
    bindings = site.manager.controller("bindings", Bindings(site).reconcile, workers=1)
    connector = Connector(site, connect, on_found=lambda: bindings.queue.add(site.binding_name))
    for informer in (site.bindings, site.secrets):
        informer.on_change(lambda _old, _new: connector.changed.set())
    site.manager.from_the_start("connector", connector.run)
    bindings.watch(site.bindings, when=not_only_told)
    bindings.watch(site.secrets, lambda _: [site.binding_name])
    for informer in (site.virtual_nodes, site.virtual_pods, site.operator_policies, site.owner_policies):
        soon(bindings, informer, lambda _: [site.binding_name])
    soon(bindings, site.placeholders, lambda _: [site.binding_name])
    credentials = site.manager.controller("credentials", Credentials(site).reconcile, workers=1)
    credentials.watch(site.secrets, lambda _: [site.binding_name])
    for side, informer in ((Side.OPERATOR, site.operator_policies), (Side.OWNER, site.owner_policies)):
        status = site.manager.controller(f"{side}-policies", PolicyStatus(site, side).reconcile, workers=1)
        status.watch(informer, when=not_only_told)
        soon(status, site.virtual_nodes, policy_names)
    return bindings


def soon(controller: Controller, informer: Informer, names: Callable[[Object], Iterable[str]]) -> None:
    """Have `names` looked at within a second of a change, once for however many changes."""

    def enqueue(old: Object | None, new: Object | None) -> None:
        for obj in (old, new):
            for name in names(obj) if obj is not None else ():
                controller.queue.add_after(name, SUMMARY_SECONDS)

    informer.on_change(enqueue)


def node_below(site: Site, pod: Object) -> Iterable[str]:
    """The physical node under the virtual one that a pod is bound to."""
    node = site.virtual_nodes.store.get(pod["spec"]["nodeName"])
    return physical_node_of(node) if node is not None else ()


def spec_changed(old: Object | None, new: Object | None) -> bool:
    """Whether anything changed that a person or another controller decides; our own status writes do not count."""
    if old is None or new is None:
        return True
    fields = ("generation", "deletionTimestamp", "labels")
    if any(old["metadata"].get(field) != new["metadata"].get(field) for field in fields):
        return True
    return annotations_of(old).get(keys.RECLAIM) != annotations_of(new).get(keys.RECLAIM)


def not_only_told(old: Object | None, new: Object | None) -> bool:
    """Whether more changed than what a summary of ours says: its own echo is no reason for another one."""
    if old is None or new is None or value_at(old, "status", "identity") != value_at(new, "status", "identity"):
        return True
    return {**old["metadata"], "resourceVersion": ""} != {**new["metadata"], "resourceVersion": ""}


def came_or_goes(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or is_deleting(old) != is_deleting(new)


def ports_changed(old: Object | None, new: Object | None) -> bool:
    """Whether a pod below took host ports, gave them back, or moved with them."""
    return held_ports(old) != held_ports(new)


def held_ports(claim: Object | None) -> object:
    return (claim["node"], claim["ports"]) if claim is not None and "ports" in claim else None
