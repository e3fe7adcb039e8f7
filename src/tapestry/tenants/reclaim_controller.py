"""Reclaim for tenants whose syncer does not run: their plane is asleep or suspended, or no live process has it.

Each process does this for the host clusters that it is connected to, with the policies that it last saw. Two processes
may do it at the same time: each deletion is bound to one version of one twin. It needs no right to the plane, so it
also works while the management API does not answer. Nothing is watched or computed for other tenants.

Twins end at the deadline of their node's lease; see `twins_without_syncer`. With placement `host`, twins that have no
node yet are deleted soon, because nobody would check the lease of the node that is chosen. Their pods get new ones
later.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of, is_tenant
from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS
from tapestry.apis.ownership import capped_grace_seconds
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result
from tapestry.controller.informer_views import InformerView
from tapestry.kube.crds import decode_spec
from tapestry.kube.objects import Object, is_deleting, name_of, uid_of, value_at
from tapestry.kube.pod_requests import PodAllocation
from tapestry.process.logs import logger
from tapestry.syncer.admission import RECLAIMED
from tapestry.syncer.bottomup.reclaimer import delete_twins
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.leasing import LeaseRules, PolicySide, soonest
from tapestry.syncer.open_nodes import is_relevant_change
from tapestry.syncer.policies import build_rules, parsed_policies
from tapestry.syncer.predicates import spec_changed
from tapestry.syncer.views import PhysicalPod, Twin
from tapestry.tenants.host_clusters import Host, HostClusters
from tapestry.tenants.host_connection import HostConnection, binding_uid_of_twin
from tapestry.tenants.host_objects import host_namespace
from tapestry.tenants.host_tokens import TenantToken, tenant_access
from tapestry.tenants.syncer_liveness import is_connected
from tapestry.tenants.tenant_binding import TenantAddresses, tenant_binding, with_kill_switch
from tapestry.tenants.tenant_controller import hosts_of, planes_of
from tapestry.tenants.twins_without_syncer import NodeReclaim, node_reclaim

log = logger(__name__)

UNPLACED_SECONDS = 10.0
"""Seconds without a syncer after which twins without a node are deleted. A restart takes less time."""
SYNC_SECONDS = 1.0
"""Seconds between two checks whether the caches of a host cluster are filled."""
NECESSARY_FIELDS = ("clusterID", "virtualCluster", "hostCluster", "placement")
"""Fields of a binding that tell what belongs to its tenant."""
DEFAULTS = SyncerConfig()


@dataclass(frozen=True)
class HostWatch:
    """Watch of the caches of a host cluster, for the tenants there whose syncer does not run."""

    connection: HostConnection
    requeue: Callable[[str], None]
    tenants: dict[str, str] = field(default_factory=dict)
    """Names of the bindings by their UIDs."""
    views: list[InformerView] = field(default_factory=list)

    def start(self) -> None:
        connection = self.connection
        nodes, shared, policies = (
            each.open() for each in (connection.nodes, connection.shared_namespace, connection.owner_policies)
        )
        namespaces, twins = connection.every_namespace.open(), connection.every_twin.open()
        self.views.extend((nodes, shared, policies, namespaces, twins))
        nodes.on_change(lambda old, new: self.requeue_all() if is_relevant_change(old, new) else None)
        for each in (shared, policies, namespaces):
            each.on_change(lambda old, new: self.requeue_all() if spec_changed(old, new) else None)
        twins.on_change(self._on_twin_change)

    def stop(self) -> None:
        connection = self.connection
        owners = (
            *(connection.nodes, connection.shared_namespace, connection.owner_policies),
            *(connection.every_namespace, connection.every_twin),
        )
        for owner, view in zip(owners, self.views, strict=True):
            owner.close(view)

    def requeue_all(self) -> None:
        for uid, name in self.tenants.items():
            if self.connection.twins.objects_of(uid):
                self.requeue(name)

    def _on_twin_change(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        """Requeue the tenant of a twin that is new, was placed, or is being deleted."""
        if not isinstance(new, Twin) or (name := self.tenants.get(binding_uid_of_twin(new))) is None:
            return
        if not isinstance(old, Twin) or twin_state(old) != twin_state(new):
            self.requeue(name)


def twin_state(twin: Twin) -> tuple[object, ...]:
    metadata = twin.object["metadata"]
    return twin.object["spec"].get("nodeName"), metadata.get("deletionTimestamp"), twin.requests is None


@dataclass(frozen=True)
class ReclaimReconciler:
    """Reclaim the nodes of tenants whose syncer does not run; keyed by the binding."""

    bindings: Informer
    host_objects: Informer
    operator_policies: Informer
    clusters: HostClusters
    is_syncer_live: Callable[[Object], bool]
    """Return whether the syncer of a tenant runs, in any process, by its binding."""
    now: Callable[[], datetime]
    warn: Callable[[Object, str, str], None]
    """Record an event for a binding, with its reason and its message."""
    requeue: Callable[[str], None]
    _watches: dict[str, HostWatch] = field(default_factory=dict)
    """By the name of the host cluster."""
    _without_syncer_since: dict[str, datetime] = field(default_factory=dict)
    """By the UID of the binding."""
    _withdrawn_since: defaultdict[str, dict[str, datetime]] = field(default_factory=lambda: defaultdict(dict))
    """By the UID of the binding and the name of the node."""

    def without_syncer(self) -> Iterator[str]:
        """Yield the names of the bindings whose tenants have no running syncer."""
        for watch in self._watches.values():
            yield from watch.tenants.values()

    async def reconcile(self, name: str) -> Result | None:
        obj = self.bindings.store.get(name)
        host = self._host_of(obj)
        self._follow(name, obj, host)
        if obj is None or host is None:
            return None
        if not host.connection.is_synced:
            return Result(requeue_after=SYNC_SECONDS)
        (binding, rules), now = self._binding_with_rules(obj, host.connection), self.now()
        since = self._without_syncer_since.setdefault(binding.uid, now)
        if not (twins := self._twins(binding, host.connection)):
            return None
        reclaims = [
            self._reclaim_of_unplaced(binding, twins, rules, since, now),
            *self._reclaims(binding, host.connection, twins, rules, now),
        ]
        if delete := [twin for each in reclaims for twin in each.delete]:
            await self._delete(host, binding, delete)
            reasons = ", ".join(sorted({each.reason for each in reclaims if each.delete}))
            self.warn(obj, "Reclaimed", f"{len(delete)} pods were deleted in the host cluster: {reasons}")
            log.info("pods of a tenant without a syncer reclaimed", binding=name, number=len(delete), reasons=reasons)
        change = soonest(*(each.requeue_at for each in reclaims))
        return Result(requeue_at=change) if change is not None else None

    # -- tenants

    def _host_of(self, obj: Object | None) -> Host | None:
        """Return the host cluster of a tenant whose syncer does not run, if this process is connected to it."""
        if obj is None or not is_tenant(obj) or is_deleting(obj) or self.is_syncer_live(obj):
            return None
        host = self.clusters.get(value_at(obj, "spec", "hostCluster"))
        return None if host is None or host.connection.is_replaced else host

    def _follow(self, name: str, obj: Object | None, host: Host | None) -> None:
        """Watch the host cluster of a tenant, and no other one any more."""
        connection = host.connection if host is not None else None
        for host_name, watch in list(self._watches.items()):
            for uid in [uid for uid, each in watch.tenants.items() if each == name]:
                if connection is not watch.connection or obj is None or uid != uid_of(obj):
                    del watch.tenants[uid]
                    self._without_syncer_since.pop(uid, None)
                    self._withdrawn_since.pop(uid, None)
            if not watch.tenants:
                watch.stop()
                del self._watches[host_name]
        if obj is None or connection is None:
            return
        if connection.name not in self._watches:
            self._watches[connection.name] = HostWatch(connection, self.requeue)
            self._watches[connection.name].start()
        self._watches[connection.name].tenants[uid_of(obj)] = name

    def _binding_with_rules(self, obj: Object, connection: HostConnection) -> tuple[Binding, LeaseRules]:
        """Return a binding and the rules for its nodes. The rules hold for all nodes if its spec is invalid."""
        try:
            binding = self._binding(obj)
            return binding, self._rules(binding, connection)
        except ValueError:
            spec = {name: value for name, value in obj["spec"].items() if name in NECESSARY_FIELDS}
            binding = binding_of({**obj, "spec": spec}, spec["virtualCluster"], manager_namespace="")
            return binding, self._rules(binding, connection)

    def _binding(self, obj: Object) -> Binding:
        record = self.host_objects.store.get(value_at(obj, "spec", "hostCluster"))
        spec = decode_spec(HOST_CLUSTER, record) if record is not None else None
        binding = binding_of(obj, value_at(obj, "spec", "virtualCluster"), manager_namespace="", host=spec)
        return tenant_binding(binding, spec, host_namespace(binding), TenantAddresses()) if spec else binding

    def _twins(self, binding: Binding, connection: HostConnection) -> list[Twin]:
        """Return the twins of a tenant that have not ended."""
        found = connection.twins.objects_of(binding.uid)
        namespace = host_namespace(binding)
        return [
            each
            for each in found
            if isinstance(each, Twin)
            and each.requests is not None
            and binding.owns(each.object)
            and each.object["metadata"]["namespace"] == namespace
        ]

    # -- leases

    def _reclaim_of_unplaced(
        self, binding: Binding, twins: Sequence[Twin], rules: LeaseRules, since: datetime, now: datetime
    ) -> NodeReclaim:
        """Return the twins without a node that are due. The lease of the node was checked with placement `virtual`."""
        unplaced = [each.object for each in twins if not each.object["spec"].get("nodeName")]
        staying = [each for each in unplaced if not is_deleting(each)]
        if rules.reclaim_now:
            return NodeReclaim(tuple(staying), RECLAIMED)
        if not (staying and binding.spec.schedules_on_host):
            return NodeReclaim()
        due_at = since + timedelta(seconds=UNPLACED_SECONDS)
        return NodeReclaim(requeue_at=due_at) if now < due_at else NodeReclaim(tuple(staying), "NoSyncer")

    def _reclaims(
        self,
        binding: Binding,
        connection: HostConnection,
        twins: Sequence[Twin],
        rules: LeaseRules,
        now: datetime,
    ) -> Iterator[NodeReclaim]:
        """Yield what is due on each node with twins of a tenant."""
        by_node: defaultdict[str, list[Twin]] = defaultdict(list)
        for each in twins:
            by_node[each.object["spec"].get("nodeName") or ""].append(each)
        by_node.pop("", None)
        withdrawn = self._withdrawn_since[binding.uid]
        for name in withdrawn.keys() - by_node.keys():
            del withdrawn[name]
        foreign = foreign_allocations(binding, connection, rules)
        for name, on_node in by_node.items():
            if (node := connection.nodes.source.store.get(name)) is None:
                continue  # the host cluster ends its pods
            found = node_reclaim(node, on_node, foreign(name), rules, withdrawn.get(name), now)
            if found.is_withdrawn:
                withdrawn.setdefault(name, now)
            else:
                withdrawn.pop(name, None)
            yield found

    def _rules(self, binding: Binding, connection: HostConnection) -> LeaseRules:
        zone = DEFAULTS.time_zone
        namespace = connection.namespaces.source.store.get(host_namespace(binding))
        shared = next(iter(connection.shared_namespace.source.store.list()), None)
        operator, owner = self.operator_policies.store.list(), connection.owner_policies.source.store.list()
        return build_rules(
            binding,
            parsed_policies(operator, PolicySide.OPERATOR, binding, zone),
            parsed_policies(owner, PolicySide.OWNER, binding, zone),
            with_kill_switch(namespace, shared),
            timedelta(seconds=DEFAULTS.warning_seconds),
        )

    async def _delete(self, host: Host, binding: Binding, twins: Sequence[Object]) -> None:
        """Delete twins with the account of their tenant. Raises the first error, after all others were deleted."""
        connection = host.connection
        if connection.access is None:
            return
        access = tenant_access(connection.access, TenantToken(connection.client, host_namespace(binding)))
        async with Client(connection.connect_with(access)) as client:
            await delete_twins([(each, capped_grace_seconds(each)) for each in twins], client)


def foreign_allocations(
    binding: Binding, connection: HostConnection, rules: LeaseRules
) -> Callable[[str], list[PodAllocation]]:
    """Return a function that returns what other pods hold of a node.

    Only policies that limit amounts and reclaim them depend on it. Others do not need all pods of the host cluster.
    """
    policies = (*rules.operator, *rules.owner)
    if not any(each.forces_reclaim and each.spec.resource_limits for each in policies):
        return lambda _: []
    foreign_pods = connection.foreign_pods_for(binding.uid)
    return lambda node: [each.allocation for each in foreign_pods(node)]


def install(
    manager: Manager, clusters: HostClusters, is_syncer_live: Callable[[Object], bool]
) -> Callable[[str], None]:
    """Add the reclaim for tenants without a syncer to a manager of the management API.

    Return a function that checks the tenant of a plane again, by the id of the plane, or all for an empty id. The
    caller calls it when the syncer of a tenant starts or stops, in any process.
    """
    bindings = manager.informer(CLUSTER_BINDINGS, indexers={"plane": planes_of, "host": hosts_of})
    hosts = manager.informer(HOST_CLUSTERS)
    policies = manager.informer(POLICIES, transform=with_changed_at).with_managed_fields()

    def requeue(name: str) -> None:
        controller.queue.add(name)

    def requeue_each(found: Iterable[Object]) -> None:
        for each in found:
            requeue(name_of(each))

    def requeue_without_syncer(old: Object | None, new: Object | None) -> None:
        if spec_changed(old, new):
            for name in list(reconciler.without_syncer()):
                requeue(name)

    reconciler = ReclaimReconciler(
        *(bindings, hosts, policies, clusters, is_syncer_live, manager.now, manager.events.warning, requeue)
    )
    controller = manager.controller("reclaim", reconciler.reconcile)
    controller.watch(bindings, when=may_start_or_stop_syncer)
    hosts.on_change(requeue_without_syncer)
    policies.on_change(requeue_without_syncer)
    clusters.on_change(lambda host: requeue_each(bindings.store.by("host", host)))
    return lambda plane: requeue_each(bindings.store.by("plane", plane) if plane else bindings.store.list())


def may_start_or_stop_syncer(old: Object | None, new: Object | None) -> bool:
    """Return whether a binding has changed so that its tenant may have or lack a syncer now."""
    return spec_changed(old, new) or old is None or new is None or is_connected(old) != is_connected(new)
