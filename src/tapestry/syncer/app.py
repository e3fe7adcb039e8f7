"""A syncer: which change is whose business, and a process that sees to it."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from msgspec import structs

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.mounts import enforced_level
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.connection import HttpTransport
from tapestry.client.kubeconfig import default_access
from tapestry.client.transport import Transport
from tapestry.controller import App, Controller, Informer, Manager
from tapestry.controller.app import new_identity
from tapestry.controller.controller import Keys, own_namespace
from tapestry.kube.conditions import find
from tapestry.kube.objects import (
    Object,
    annotations_of,
    key_of,
    name_of,
    uid_of,
)
from tapestry.kube.pods import is_over
from tapestry.kube.resources import (
    ENDPOINT_SLICES,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    SECRETS,
    SERVICES,
)
from tapestry.syncer.bindings import Bindings, Connector
from tapestry.syncer.bottomup.csinodes import CsiNodes
from tapestry.syncer.bottomup.events import TwinEvents
from tapestry.syncer.bottomup.hostports import HostPorts
from tapestry.syncer.bottomup.leases import NodeLeases
from tapestry.syncer.bottomup.nodes import PhysicalNodes, tells_its_twin
from tapestry.syncer.bottomup.pods import PhysicalPods
from tapestry.syncer.bottomup.policies import PolicyStatus, policy_names
from tapestry.syncer.changes import (
    came,
    came_or_goes,
    cordon_changed,
    held,
    hold_changed,
    is_foreign,
    is_mapped_to,
    more_than_shown,
    more_than_status,
    not_only_told,
    ports_changed,
    spec_changed,
    status_changed,
    twin_status_changed,
    twin_went,
)
from tapestry.syncer.checks import Checks
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.credentials import Credentials
from tapestry.syncer.leases import Leases
from tapestry.syncer.leasing import Side
from tapestry.syncer.partition import PartitionWatch
from tapestry.syncer.physical import Door
from tapestry.syncer.pictures import Caches
from tapestry.syncer.projections import claimed_node, digested, physical_node_of, source_namespace, virtual_node_of
from tapestry.syncer.site import Site, open_site
from tapestry.syncer.topdown.admitter import Admitter
from tapestry.syncer.topdown.following import ours_below
from tapestry.syncer.topdown.mirrored import Mirrored, concerns_copies, key_above, needs_of
from tapestry.syncer.topdown.pods import VirtualPods
from tapestry.syncer.topdown.services import Services
from tapestry.syncer.topdown.sources import RESOURCES, Sources
from tapestry.syncer.topdown.tokens import Tokens
from tapestry.syncer.topdown.volumes import Volumes, claims_of, may_matter
from tapestry.syncer.translate.meta import source_key, virtual_key, virtual_uid
from tapestry.syncer.translate.pod_status import mapped_uid
from tapestry.syncer.translate.references import tokens as tokens_of
from tapestry.syncer.vigil import Vigil

SUMMARY_SECONDS = 1.0
"""Sums over all nodes and pods are made at most this often."""
NODE_WORKERS = 16
POD_WORKERS = 32

Connect = Callable[[Access], Transport]
Beside = Callable[[Site], AbstractAsyncContextManager[None]]
"""What a process does for a site beside its reconcilers, for as long as they run."""


class NoBinding(ValueError):
    """There is no ClusterBinding of the name that the syncer was given."""


def with_election(config: SyncerConfig) -> SyncerConfig:
    """The configuration with a name of its own for this binding's Lease."""
    name = f"tapestry-syncer-{config.binding}"
    election = config.leader_election
    if not election.name:
        election = structs.replace(election, name=name)
    return structs.replace(config, name=name, leader_election=election)


async def run_syncer(config: SyncerConfig, environ: Mapping[str, str], home: Path, beside: Beside) -> None:
    """Run the syncer of one binding until it is told to stop, or the binding is gone."""
    config = with_election(config)
    access = default_access(
        Path(config.kubeconfig) if config.kubeconfig else None, config.context or None, environ=environ, home=home
    )
    while True:
        manager = Manager(config, lambda: HttpTransport(access), identity=new_identity())
        site = await syncer(config, manager)
        try:
            async with beside(site):
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
    binding = await manager.reads.find(CLUSTER_BINDINGS, config.binding)
    if binding is None:
        raise NoBinding(f"there is no ClusterBinding {config.binding!r}; create it or name another")
    if manager.elector is not None:
        manager.elector.owner = binding
    system = await manager.reads.get(NAMESPACES, "kube-system")
    doors = Door(connect, monotonic), Door(connect, monotonic)
    site = open_site(config, manager, binding, uid_of(system), doors)
    manager.with_("syncer", lambda _: wire(site, connect))
    return site


def wire(site: Site, connect: Connect) -> None:
    """Which change is whose business."""
    current = wire_leases(site, lambda names: add_all(nodes, names))
    physical = PhysicalNodes(site, current)
    nodes = site.manager.controller("nodes", physical.reconcile, workers=NODE_WORKERS)
    leases = site.manager.controller("node-leases", NodeLeases(site).reconcile, workers=NODE_WORKERS)
    companions = wire_companions(site)

    def every_node(_: Object | None = None) -> Iterable[str]:
        shown = (name for node in site.virtual_nodes.store.list() for name in physical_node_of(node))
        return {*site.physical_nodes.store, *shown}

    def nodes_concerned(pod: Object) -> Iterable[str]:
        return (name for name in node_below(site, pod) if physical.depends_on_pods(name))

    def nodes_taking_back(twin: Object) -> Iterable[str]:
        return (name for name in node_of_stray(site, twin) if physical.depends_on_pods(name))

    def look_at_every_node() -> None:
        for name in every_node():
            nodes.queue.add(name)
        for controller in (leases, *companions):
            for name in site.virtual_nodes.store:
                controller.queue.add(name)

    nodes.watch(site.physical_nodes)
    nodes.watch(site.physical_pods, claimed_node, when=is_foreign)
    nodes.watch(site.physical_pods, lambda twin: node_left_by(site, twin), when=twin_went)
    nodes.watch(site.physical_pods, lambda twin: nodes_taking_back(twin), when=came)
    nodes.watch(site.virtual_nodes, physical_node_of)
    nodes.watch(site.virtual_pods, lambda pod: nodes_concerned(pod), when=hold_changed)
    nodes.watch(site.virtual_pods, lambda pod: nodes_concerned(pod), when=came, after=SUMMARY_SECONDS)
    for informer in (site.bindings, site.operator_policies, site.owner_policies, site.mount_namespaces):
        nodes.watch(informer, every_node, when=spec_changed)
    for informer in (*site.decisive, site.csi_nodes):
        informer.after_sync(look_at_every_node)
    leases.watch(site.virtual_nodes, when=came_or_goes)
    site.physical_pods.on_change(lambda old, new: forget_shortage(site, old, new))
    bindings = wire_summaries(site, connect)
    pods = wire_pods(site, current)

    def look_at_everything() -> None:
        look_at_every_node()
        pods()
        bindings.queue.add(site.binding_name)

    watch = PartitionWatch(site, look_at_everything)
    site.manager.while_working("partition", watch.run)
    unfenced = Client(site.reads, audit=site.manager.audit, identity=site.manager.identity)
    site.manager.from_the_start("vigil", Vigil(site, physical, unfenced).run)


def add_all(controller: Controller, names: Iterable[str]) -> None:
    for name in names:
        controller.queue.add(name)


def wire_leases(site: Site, on_division: Callable[[Iterable[str]], None]) -> Leases:
    """The leases as they are now, and what twins hold of them: kept up to date before anything else is told."""

    async def divide(_: str) -> None:
        leases.divide_again(site.now())

    totals = site.manager.controller("totals", divide, workers=1)
    leases = Leases(site, on_division, lambda _: totals.queue.add_after(site.binding_name, SUMMARY_SECONDS))
    site.physical_pods.on_change(leases.saw_below)
    site.physical_pods.on_change(site.ledger.saw)
    site.physical_nodes.on_change(leases.saw_node)
    return leases


def wire_pods(site: Site, leases: Leases) -> Callable[[], None]:
    """Pods down, their status up; returns what has all of them looked at."""
    services = wire_services(site, lambda key: down.queue.add(key))
    mirrored, copies = wire_copies(site, lambda key: down.queue.add(key))
    tokens, minting = wire_tokens(site, mirrored.copies[SECRETS.plural])
    volumes = wire_volumes(site, mirrored, lambda key: down.queue.add(key))
    wire_checks(site, mirrored, services, volumes)
    admitter = Admitter(site, leases, wake=lambda key: down.queue.add(key), show=lambda key: up.queue.add(key))
    # Services come first: nothing may happen between a look at their addresses and their own word that all are there.
    virtual = VirtualPods(site, admitter, (services, mirrored, volumes, tokens), services.aliases)
    down = site.manager.controller("pods", virtual.reconcile, workers=POD_WORKERS)
    physical = PhysicalPods(site)
    up = site.manager.controller("pod-status", physical.reconcile, workers=POD_WORKERS)
    site.manager.while_working("twin-events", TwinEvents(site).run)
    site.virtual_pods.on_change(virtual.saw)
    site.virtual_pods.on_change(physical.saw)
    site.physical_pods.on_change(virtual.saw_below)
    site.physical_pods.on_change(admitter.saw_below)
    site.virtual_nodes.on_change(admitter.saw_node)
    site.physical_pods.on_deletion(virtual.losses.saw_deletion)
    down.watch(site.virtual_pods, when=lambda old, new: more_than_shown(old, new) or is_mapped_elsewhere(site, new))
    down.watch(
        site.physical_pods,
        virtual_key,
        when=lambda old, new: more_than_status(old, new) and not has_come_as_expected(site, old, new),
    )
    down.watch(site.virtual_nodes, lambda node: map(key_of, site.pods_on(name_of(node))), when=came_or_goes)
    down.watch(site.physical_nodes, lambda node: pods_over(site, node), when=cordon_changed)
    for informer in mirrored.copies.values():
        down.watch(informer, lambda copy: waiting_for(site, copy), when=came_or_goes)
    up.watch(site.physical_pods, virtual_key, when=twin_status_changed)
    up.watch(site.virtual_pods, when=lambda old, new: status_changed(old, new) and has_twin(site, new))

    def every_pod() -> None:
        below = (key for twin in site.physical_pods.store.list() for key in virtual_key(twin))
        for key in {*site.virtual_pods.store, *below}:
            down.queue.add(key)
            up.queue.add(key)
        for controller in (copies, minting):
            controller.resync()

    for informer in (*site.decisive, site.virtual_nodes):
        informer.after_sync(every_pod)
    site.bindings.on_change(lambda old, new: every_pod() if spec_changed(old, new) else None)
    site.mount_namespaces.on_change(
        lambda old, new: every_pod() if enforced_level(old) != enforced_level(new) else None
    )
    return every_pod


def wire_copies(site: Site, wake: Callable[[str], None]) -> tuple[Mirrored, Controller]:
    """ConfigMaps and Secrets go down ahead of pods, and follow their sources; `wake` has a pod looked at."""

    def source_changed(key: str, old: Object | None, new: Object | None) -> None:
        if mirrored.concerns(key):
            copies.queue.add(key)
        for pod in site.virtual_pods.store.by("refers", key) if old is None or new is None else ():
            if is_waiting(pod):
                wake(key_of(pod))

    def on_pods_of(names: Keys) -> Keys:
        return lambda node: {name for pod in site.pods_on(name_of(node)) for name in names(pod)}

    def unsettled(names: Iterable[str]) -> Iterable[str]:
        return [name for name in names if not sources.is_settled(name)]

    def sources_known(namespace: str) -> None:
        for key in mirrored.copied_from(namespace):
            copies.queue.add(key)

    below = {
        kind: site.manager.follow(ours_below(site, resource, digested, {"namespace": source_namespace}))
        for kind, resource in RESOURCES.items()
    }
    sources = Sources(site, source_changed, sources_known)
    mirrored = Mirrored(site, sources, below, lambda namespace: unused.queue.add_after(namespace, SUMMARY_SECONDS))
    copies = site.manager.controller("copies", mirrored.reconcile)
    unused = site.manager.controller("unused-copies", mirrored.sweep, workers=1)
    namespaces = site.manager.controller("copied-namespaces", sources.reconcile, workers=1)
    copies.watch(site.virtual_pods, needs_of, when=concerns_copies)
    namespaces.watch(site.virtual_pods, lambda pod: unsettled(own_namespace(pod)), when=concerns_copies)
    unused.watch(site.virtual_pods, own_namespace, when=concerns_copies, after=SUMMARY_SECONDS)
    copies.watch(site.virtual_nodes, on_pods_of(needs_of), when=came_or_goes)
    unused.watch(site.virtual_nodes, on_pods_of(own_namespace), when=came_or_goes, after=SUMMARY_SECONDS)
    for informer in below.values():
        informer.on_change(mirrored.changed)
        copies.watch(informer, key_above)
        unused.watch(informer, source_namespace, when=came_or_goes, after=SUMMARY_SECONDS)
        informer.after_sync(copies.resync)
    for kind, following in sources.following.items():
        site.manager.from_the_start(f"sources-{kind}", following.run)
    return mirrored, copies


def wire_tokens(site: Site, secrets: Informer) -> tuple[Tokens, Controller]:
    """Service account tokens go down ahead of pods, and are replaced in time."""
    tokens = Tokens(site, secrets)
    controller = site.manager.controller("tokens", tokens.reconcile)
    controller.watch(site.virtual_pods, keys_with_tokens, when=concerns_copies)
    controller.watch(secrets, virtual_key)
    secrets.after_sync(controller.resync)
    return tokens, controller


def keys_with_tokens(pod: Object) -> Iterable[str]:
    """The key of a pod that mounts service account tokens."""
    return [key_of(pod)] if tokens_of(pod["spec"]) else []


def has_twin(site: Site, pod: Object | None) -> bool:
    return pod is not None and site.twin_of(key_of(pod)) is not None


def is_mapped_elsewhere(site: Site, pod: Object | None) -> bool:
    """Whether a pod says that it has another twin than the one that is there."""
    mapped = mapped_uid(pod) if pod is not None else None
    if pod is None or mapped is None:
        return False
    twin = site.twin_of(key_of(pod))
    return twin is None or uid_of(twin) != mapped


def has_come_as_expected(site: Site, old: Object | None, new: Object | None) -> bool:
    """Whether a twin has just been created, has its node, and its pod is waiting for it: nothing is left to do."""
    if old is not None or new is None or "twin" not in new or "nodeName" not in new["spec"]:
        return False
    return all(is_mapped_to(site.virtual_pods.store.get(key), new) for key in virtual_key(new))


def is_waiting(pod: Object) -> bool:
    """Whether a pod was told that it lacks something below."""
    said = find(pod["status"]["conditions"], keys.MAPPED)
    return said is not None and bool(said["status"] == "False")


def waiting_for(site: Site, copy: Object) -> Iterable[str]:
    """The pods that may have lacked what came below."""
    pods = site.virtual_pods.store
    users = (pod for key in key_above(copy) for pod in pods.by("refers", key))
    owners = (pod for key in virtual_key(copy) if (pod := pods.get(key)) is not None)
    return [key_of(pod) for pod in (*users, *owners) if is_waiting(pod)]


def wire_services(site: Site, wake: Callable[[str], None]) -> Services:
    """Services down, from the namespaces that the binding names; `wake` has a pod looked at."""
    services = Services(site, lambda key: controller.queue.add(key), wake)
    controller = site.manager.controller("services", services.reconcile)
    site.bindings.on_change(lambda old, new: services.follow(new) if spec_changed(old, new) else None)
    for informer in (services.twins, services.twin_slices):
        controller.watch(site.manager.follow(informer), source_key)
    for name, following in {"services": services.above, "endpoint-slices": services.slices}.items():
        site.manager.from_the_start(name, following.run)
    return services


def wire_volumes(site: Site, secrets: Mirrored, wake: Callable[[str], None]) -> Volumes:
    """Claims and their volumes down, where the binding allows any; `wake` has a pod looked at."""
    volumes = Volumes(site, secrets, lambda key: controller.queue.add(key), wake)
    controller = site.manager.controller("volumes", volumes.reconcile)
    controller.watch(site.virtual_pods, claims_of, when=may_matter)
    site.bindings.on_change(lambda old, new: volumes.follow(new) if spec_changed(old, new) else None)
    secrets.needed_by.append(volumes.needs)
    secrets.copies[SECRETS.plural].on_change(volumes.saw_copy)
    found = {"claims": volumes.claims, "twin-claims": volumes.twin_claims, "twin-volumes": volumes.twin_volumes}
    for name, following in found.items():
        site.manager.from_the_start(name, following.run)
    return volumes


def wire_checks(site: Site, mirrored: Mirrored, services: Services, volumes: Volumes) -> None:
    """A look at everything from time to time: it finds what slipped through."""
    if not site.config.check_seconds:
        return
    caches = Caches(
        above={
            **{RESOURCES[kind]: following for kind, following in mirrored.sources.following.items()},
            SERVICES: services.above,
            ENDPOINT_SLICES: services.slices,
        },
        below={
            **{RESOURCES[kind]: informer for kind, informer in mirrored.copies.items()},
            SERVICES: services.twins,
            ENDPOINT_SLICES: services.twin_slices,
            PERSISTENT_VOLUME_CLAIMS: volumes.twin_claims,
            PERSISTENT_VOLUMES: volumes.twin_volumes,
        },
    )
    checks = site.manager.controller("checks", Checks(site, caches).reconcile, workers=1)
    site.manager.after_sync(lambda: checks.queue.add_after(site.binding_name, site.config.check_seconds))


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
    site.mount_namespaces.on_change(connector.saw_mount)
    site.manager.from_the_start("connector", connector.run)
    bindings.watch(site.bindings, when=not_only_told)
    bindings.watch(site.secrets, lambda _: [site.binding_name])
    for informer in (site.virtual_nodes, site.virtual_pods, site.operator_policies, site.owner_policies):
        bindings.watch(informer, lambda _: [site.binding_name], after=SUMMARY_SECONDS)
    bindings.watch(site.mount_namespaces, lambda _: [site.binding_name], when=spec_changed, after=SUMMARY_SECONDS)
    bindings.watch(site.placeholders, lambda _: [site.binding_name], after=SUMMARY_SECONDS)
    credentials = site.manager.controller("credentials", Credentials(site).reconcile, workers=1)
    credentials.watch(site.secrets, lambda _: [site.binding_name])
    for side, informer in ((Side.OPERATOR, site.operator_policies), (Side.OWNER, site.owner_policies)):
        status = site.manager.controller(f"{side}-policies", PolicyStatus(site, side).reconcile, workers=1)
        status.watch(informer, when=not_only_told)
        status.watch(site.virtual_nodes, policy_names, after=SUMMARY_SECONDS)
    return bindings


def pods_over(site: Site, node: Object) -> Iterable[str]:
    """The pods that are bound to the virtual node of a physical one."""
    above = site.virtual_node_of(name_of(node))
    return map(key_of, site.pods_on(name_of(above))) if above is not None else ()


def node_below(site: Site, pod: Object) -> Iterable[str]:
    """The physical node under the virtual one that a pod is bound to."""
    node = site.virtual_nodes.store.get(pod["spec"]["nodeName"])
    return physical_node_of(node) if node is not None else ()


def node_left_by(site: Site, twin: Object) -> Iterable[str]:
    """The physical node of a twin whose pod has ended or is gone: nobody else tells that the node may go, too."""
    above = (site.virtual_pods.store.get(key) for key in virtual_key(twin))
    if any(pod is not None and not is_over(pod) for pod in above):
        return ()
    node = site.virtual_nodes.store.get(annotations_of(twin).get(keys.VIRTUAL_NODE_NAME, ""))
    return physical_node_of(node) if node is not None else ()


def node_of_stray(site: Site, pod: Object) -> Iterable[str]:
    """The physical node of a twin which no pod tells to go: nobody else ends it in time where the lease is over."""
    if "twin" not in pod:
        return ()
    above = [site.virtual_pods.store.get(key) for key in virtual_key(pod)]
    if any(each is not None and uid_of(each) == virtual_uid(pod) and tells_its_twin(each) for each in above):
        return ()
    node = site.virtual_nodes.store.get(annotations_of(pod).get(keys.VIRTUAL_NODE_NAME, ""))
    return physical_node_of(node) if node is not None else ()


def forget_shortage(site: Site, old: Object | None, new: Object | None) -> None:
    """Where a foreign pod comes, goes or asks for something else, what a node lacked before says nothing any more."""
    if is_foreign(old, new) and held(old) != held(new):
        for node in (node for obj in (old, new) if obj is not None for node in claimed_node(obj)):
            site.shortages.pop(node, None)
