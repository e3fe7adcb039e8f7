"""Controller of tenants: prepares the host cluster of each, lets its syncer run, and removes what it had.

Of a removed tenant, also the virtual nodes in its plane are deleted, if the plane is open.

A process takes care of the tenants whose planes it holds. A binding without a plane is the work of the process that
would take the plane.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of, is_tenant
from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS
from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.transport import Transport
from tapestry.controller import Informer, Manager, Result, Terminal, generation_changed
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.crds import InvalidSpec, decode_spec
from tapestry.kube.errors import KubeError, NotFound, TransportError
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at
from tapestry.kube.patches import exact_map_patch
from tapestry.process.logs import logger
from tapestry.tenants.api_service import api_condition
from tapestry.tenants.dns_service import dns_condition
from tapestry.tenants.host_clusters import Host, HostClusters
from tapestry.tenants.host_objects import TenantSpecError
from tapestry.tenants.host_setup import HostSetupError
from tapestry.tenants.leftovers import Leftover, leftover_of, record_leftover, remove_leftover
from tapestry.tenants.plane_deletion import is_too_late
from tapestry.tenants.tenant_binding import TenantAddresses
from tapestry.tenants.tenant_preparation import Preparation
from tapestry.tenants.tenant_set import Tenant, TenantSet
from tapestry.tenants.virtual_node_removal import remove_virtual_nodes

log = logger(__name__)

RECHECK_SECONDS = 60.0
"""Seconds between two checks of the objects of a tenant in its host cluster."""
WAIT_SECONDS = 1.0
"""Seconds between two checks of the removal of a tenant."""
UNREACHABLE_SECONDS = 10.0
"""Seconds between two attempts to remove a tenant from a host cluster that does not answer."""
ConnectToPlane = Callable[[str], Transport | None]
"""Return a transport of the syncer to a plane, by its id; None unless the plane is open in this process."""
READY, PENDING, FAILED, DELETING = "Ready", "Pending", "Failed", "Deleting"


class TenantRejected(Exception):
    """A tenant that cannot run until something changes, with the reason in CamelCase and the remedy."""

    def __init__(self, reason: str, message: str, phase: str = FAILED) -> None:
        super().__init__(message)
        self.reason, self.phase = reason, phase


@dataclass(frozen=True)
class TenantReconciler:
    """Reconcile the bindings of tenants; keyed by name."""

    bindings: Informer
    planes: Informer
    host_objects: Informer
    clusters: HostClusters
    tenants: TenantSet
    preparation: Preparation
    client: Client
    now: Callable[[], datetime]
    is_responsible: Callable[[str], bool]
    """Return whether this process takes care of the tenant of a plane, by the id of the plane."""
    connect_to_plane: ConnectToPlane

    async def reconcile(self, name: str) -> Result | None:
        obj = self.bindings.store.get(name)
        if obj is None or not is_tenant(obj):
            return None
        plane = plane_of(obj)
        if not self.is_responsible(plane):
            await self.tenants.remove(plane, uid_of(obj))
            self.preparation.forget(plane, uid_of(obj))
            return None
        if is_deleting(obj):
            return await self._delete(obj, plane)
        if keys.TENANT_FINALIZER not in value_at(obj, "metadata", "finalizers", default=[]):
            await self._add_finalizer(obj)
            return None  # the next pass sees the change
        try:
            host = self._checked_host(obj, plane)
            own = await self._prepare(obj, host)
        except TenantRejected as error:
            await self.tenants.remove(plane, uid_of(obj))
            await self._write(obj, error.phase, new_condition(READY, False, error.reason, str(error)))
            return None
        except (TenantSpecError, InvalidSpec) as error:
            await self._write(obj, FAILED, new_condition(READY, False, "InvalidSpec", str(error)))
            raise Terminal("InvalidSpec", str(error)) from error
        except HostSetupError as error:
            await self._write(obj, PENDING, new_condition(READY, False, "HostSetupFailed", str(error)))
            return Result(requeue_after=WAIT_SECONDS * 5)
        except TransportError as error:  # what runs goes on
            phase = READY if self.tenants.is_running(plane) else PENDING
            await self._write(obj, phase, new_condition(READY, False, "HostUnreachable", str(error)))
            raise
        report = self.tenants.report(plane) or {}
        conditions = {each["type"]: each for each in (*own, *report.get("conditions", ()))}
        report = {**report, "conditions": list(conditions.values())}
        await self._write(obj, READY, new_condition(READY, True, READY), report)
        return Result(requeue_after=RECHECK_SECONDS)

    # -- preparation

    def _checked_host(self, obj: Object, plane: str) -> Host:
        """Return the host cluster of a tenant. Raises TenantRejected."""
        record = next((each for each in self.planes.store.list() if plane_id(each) == plane), None)
        if record is None:
            raise TenantRejected("PlaneMissing", f"spec.virtualCluster: there is no plane with the id {plane}")
        if is_too_late(obj, record):
            raise TenantRejected("PlaneDeleting", f"spec.virtualCluster: plane {name_of(record)} is being deleted")
        if rival := older_rival(obj, self.bindings.store.list()):
            message = f"spec.virtualCluster: binding {rival} is for the same plane; a plane has one host cluster"
            raise TenantRejected("DuplicateTenant", message)
        name = value_at(obj, "spec", "hostCluster")
        if (host_object := self.host_objects.store.get(name)) is None or is_deleting(host_object):
            message = f"spec.hostCluster: there is no HostCluster {name}; `tapestry host add {name}` creates it"
            raise TenantRejected("HostMissing", message)
        if (host := self.clusters.get(name)) is None:
            message = f"HostCluster {name} is not connected; its status tells why"
            raise TenantRejected("HostNotConnected", message, PENDING)
        return host

    async def _prepare(self, obj: Object, host: Host) -> list[Object]:
        """Prepare the host cluster, let the syncer run, and return the conditions about the API and the DNS.

        Raises errors of the host cluster and of the spec.
        """
        binding = self._binding(obj)
        prepared = await self.preparation.prepare(binding, host)
        self.tenants.put(
            Tenant(
                plane_id=plane_of(obj),
                binding_name=name_of(obj),
                binding_uid=uid_of(obj),
                schedules_on_host=binding.spec.schedules_on_host,
                sync=binding.spec.sync,
                host_name=host.connection.name,
                host=host.connection,
                host_identity=host.identity,
                namespace=prepared.namespace,
                addresses=TenantAddresses(prepared.api_address, prepared.dns_address),
                destinations=prepared.destinations,
                priority_classes=prepared.priority_classes,
                service_account=binding.spec.service_account_name,
                access=prepared.access,
            )
        )
        name, offered = host.connection.name, binding.host.api_address if binding.host is not None else ""
        return [
            api_condition(name, offered, prepared.api_port, self.preparation.api_host, prepared.api_address),
            dns_condition(binding, name, prepared.dns_port, prepared.dns_address),
        ]

    def _binding(self, obj: Object) -> Binding:
        """Return the binding with what its HostCluster offers. Raises InvalidSpec."""
        record = self.host_objects.store.get(value_at(obj, "spec", "hostCluster"))
        host = decode_spec(HOST_CLUSTER, record) if record is not None else None
        return binding_of(obj, plane_of(obj), manager_namespace="", host=host)

    async def _add_finalizer(self, obj: Object) -> None:
        finalizers = [*value_at(obj, "metadata", "finalizers", default=[]), keys.TENANT_FINALIZER]
        await self.client.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": finalizers}})

    # -- removal

    async def _delete(self, obj: Object, plane: str) -> Result | None:
        """Stop the syncer, remove what the tenant has in its host cluster, and let the binding go."""
        finalizers = value_at(obj, "metadata", "finalizers", default=[])
        if keys.TENANT_FINALIZER not in finalizers:
            return None
        await self.tenants.remove(plane, uid_of(obj))
        name, is_forced = value_at(obj, "spec", "hostCluster"), annotations_of(obj).get(keys.FORCE_UNBIND) == "true"
        leftover = leftover_of(obj, self.host_objects.store.get(name))
        try:
            left = await self._remove_from_host(name, leftover)
        except KubeError as error:
            if not is_forced:
                remedy = "`tapestry tenant delete --force` gives up"
                message = f"{error}; {remedy}, and what is left is removed when the host answers"
                await self._write(obj, DELETING, new_condition(READY, False, "HostUnreachable", message))
                if not isinstance(error, TransportError):
                    raise
                return Result(requeue_after=UNREACHABLE_SECONDS)
            await record_leftover(self.client, leftover)
            left = []
        if left:
            message = f"{len(left)} objects are left in the host cluster: {listed(left)}"
            await self._write(obj, DELETING, new_condition(READY, False, DELETING, message))
            return Result(requeue_after=WAIT_SECONDS)
        try:
            await self._clear_plane(plane, uid_of(obj))
        except KubeError:
            if not is_forced:
                raise
        self.preparation.forget(plane, uid_of(obj))
        remaining = [each for each in finalizers if each != keys.TENANT_FINALIZER]
        await self.client.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": remaining}})
        log.info("tenant removed", plane=plane, binding=name_of(obj), forced=is_forced)
        return None

    async def _remove_from_host(self, name: str, leftover: Leftover) -> Sequence[str]:
        """Delete what a tenant has in its host cluster, and return what is left. Raises KubeError.

        Nothing has access to a host cluster whose HostCluster does not exist, so nothing is left to do there.
        """
        if (host := self.clusters.get(name)) is not None:
            return await remove_leftover(host.connection.client, leftover)
        if await self.client.find(HOST_CLUSTERS, name) is not None:
            raise TransportError(f"HostCluster {name} is not connected", maybe_sent=False)
        log.warning("tenant of a missing HostCluster removed", left=str(leftover))
        return ()

    async def _clear_plane(self, plane: str, binding_uid: str) -> None:
        """Remove the virtual nodes of a tenant whose syncer has stopped, if its plane is open. Raises KubeError."""
        if (transport := self.connect_to_plane(plane)) is None:
            return
        async with Client(transport) as client:
            await remove_virtual_nodes(client, binding_uid, self.now())

    # -- status

    async def _write(self, obj: Object, phase: str, condition: Object, report: Object | None = None) -> None:
        """Write the status. Without a report, the numbers of the last one stay."""
        generation = obj["metadata"].get("generation", 0)
        conditions = value_at(obj, "status", "conditions", default=[])
        own = report.pop("conditions", []) if report is not None else []
        for each in ({**condition, "observedGeneration": generation}, *own):
            conditions = with_condition(conditions, each, self.now())
        status = {"phase": phase, "conditions": conditions, "observedGeneration": generation, **(report or {})}
        for name in ("leased", "used", "usage"):
            if name in status:
                status[name] = exact_map_patch(value_at(obj, "status", name), status[name])
        try:
            await self.client.converge(CLUSTER_BINDINGS, obj, {"status": status})
        except NotFound:
            return


def plane_of(binding: Object) -> str:
    """Return the id of the plane of a tenant."""
    plane: str = value_at(binding, "spec", "virtualCluster")
    return plane


def listed(names: Sequence[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def older_rival(obj: Object, others: Iterable[Object]) -> str | None:
    """Return the name of a binding of the same plane that was created before; None if there is none."""

    rivals = [each for each in others if is_tenant(each) and plane_of(each) == plane_of(obj)]
    first = oldest(rivals)
    return name_of(first) if first is not None and uid_of(first) != uid_of(obj) else None


def oldest(bindings: Iterable[Object]) -> Object | None:
    """Return the binding that was created first, which is the only one of its plane that has an effect."""
    return min(bindings, key=lambda each: (each["metadata"].get("creationTimestamp", ""), uid_of(each)), default=None)


def install(
    manager: Manager,
    clusters: HostClusters,
    tenants: TenantSet,
    preparation: Preparation,
    is_responsible: Callable[[str], bool],
    connect_to_plane: ConnectToPlane,
) -> Callable[[str], None]:
    """Add the controller of tenants to a manager of the management API.

    Return a function that checks the tenant of a plane again, by the id of the plane.
    """
    bindings = manager.informer(CLUSTER_BINDINGS, indexers={"plane": planes_of, "host": hosts_of})
    planes, hosts = manager.informer(PLANES), manager.informer(HOST_CLUSTERS)
    reconciler = TenantReconciler(
        *(bindings, planes, hosts, clusters, tenants, preparation, manager.client, manager.now, is_responsible),
        connect_to_plane=connect_to_plane,
    )
    controller = manager.controller("tenants", reconciler.reconcile)

    def tenants_of_host(name: str) -> Iterator[str]:
        return (name_of(each) for each in bindings.store.by("host", name))

    def tenants_of_plane(id: str) -> Iterator[str]:
        return (name_of(each) for each in bindings.store.by("plane", id))

    controller.watch(bindings, lambda binding: tenants_of_plane(plane_of(binding)) if is_tenant(binding) else ())
    controller.watch(planes, lambda plane: tenants_of_plane(plane_id(plane)), when=is_plane_changed)
    controller.watch(hosts, lambda host: tenants_of_host(name_of(host)), when=generation_changed)

    def recheck_host(name: str) -> None:
        for each in tenants_of_host(name):
            controller.queue.add(each)

    def recheck_plane(id: str) -> None:
        for each in tenants_of_plane(id):
            controller.queue.add(each)

    clusters.on_change(recheck_host)
    tenants.on_report(recheck_plane)
    return recheck_plane


def is_plane_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether the spec of a plane, its deletion or one of its own ports changed."""
    fields = ("port", "dnsPort")
    return generation_changed(old, new) or any(
        value_at(old, "status", each) != value_at(new, "status", each) for each in fields
    )


def planes_of(binding: Object) -> list[str]:
    return [plane_of(binding)] if is_tenant(binding) else []


def hosts_of(binding: Object) -> list[str]:
    return [value_at(binding, "spec", "hostCluster")] if is_tenant(binding) else []
