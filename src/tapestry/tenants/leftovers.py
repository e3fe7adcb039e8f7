"""Leftovers of forced deletions: what a tenant may still have in a host cluster that did not answer.

forced deletion   before the binding goes, a ConfigMap beside the kubeconfigs of host clusters records the tenant
host answers      the objects with the labels of that binding are deleted; a later tenant has other labels
nothing is left   the record is deleted, as when the HostCluster is: then nothing has access to the host cluster
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, ClusterBindingSpec
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.names import virtual_cluster_label
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result, Terminal
from tapestry.kube.errors import AlreadyExists, TransportError
from tapestry.kube.objects import Object, is_deleting, key_of, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS
from tapestry.process.logs import logger
from tapestry.tenants.host_clusters import HOSTS_NAMESPACE, Host, HostClusters
from tapestry.tenants.host_objects import host_namespace
from tapestry.tenants.host_setup import remove_tenant

log = logger(__name__)

LABELS = {keys.MANAGED_BY: keys.TAPESTRY, keys.LEFT_BEHIND: "tenant"}
SELECTOR = ",".join(f"{key}={value}" for key, value in LABELS.items())
WAIT_SECONDS = 2.0
"""Seconds between two checks while deleted objects still exist."""
RECHECK_SECONDS = 15.0
"""Seconds between two attempts while the host cluster does not answer."""


class Leftover(msgspec.Struct, frozen=True, rename="camel"):
    """A tenant whose binding was deleted by force."""

    binding: str
    binding_uid: str
    virtual_cluster: str
    """Id of the plane."""
    host_cluster: str
    identity: str
    """UID of the host cluster; empty if no process had recorded it."""
    namespace: str
    pods: str
    """Number of pods that the tenant had when it was last known."""

    def __str__(self) -> str:
        return f"namespace {self.namespace} with {self.pods} pods in HostCluster {self.host_cluster}"


def leftover_of(binding: Object, host: Object | None) -> Leftover:
    """Return what a tenant may leave behind. `host` is its HostCluster, if that exists."""
    name, uid, spec = name_of(binding), uid_of(binding), binding["spec"]
    plane, identity = spec["virtualCluster"], value_at(host, "status", "identity", default="")
    namespace = host_namespace(former_binding(name, uid, plane))
    pods = str(value_at(binding, "status", "pods", default=0))
    return Leftover(name, uid, plane, spec["hostCluster"], identity, namespace, pods)


async def recorded_leftover(client: Client, binding_uid: str) -> Leftover | None:
    """Return the record of a deleted binding; None if it has none. Raises Terminal."""
    record = await client.find(CONFIGMAPS, record_name(binding_uid), HOSTS_NAMESPACE)
    return leftover_in(record) if record is not None else None


async def recorded_leftovers(client: Client, host: Object) -> list[Leftover]:
    """Return the records of tenants that may have something in a host cluster. Raises Terminal."""
    found = map(leftover_in, await client.list(CONFIGMAPS, HOSTS_NAMESPACE, labels=SELECTOR))
    return [each for each in found if is_in(each, host)]


def former_binding(name: str, uid: str, plane: str) -> Binding:
    """Return a deleted binding, as far as its objects in the host cluster are concerned."""
    spec = ClusterBindingSpec(cluster_id=plane, virtual_cluster=plane)
    return Binding(name, uid, virtual_cluster_label(plane), spec, manager_namespace="")


async def remove_leftover(client: Client, leftover: Leftover) -> tuple[str, ...]:
    """Delete what a tenant has in its host cluster. Return what is left; call it again until that is nothing."""
    binding = former_binding(leftover.binding, leftover.binding_uid, leftover.virtual_cluster)
    return (await remove_tenant(client, binding)).references


def leftover_in(record: Object) -> Leftover:
    """Return the tenant in a record. Raises Terminal if somebody has changed it so that it is unreadable."""
    try:
        return msgspec.convert(record.get("data"), Leftover)
    except msgspec.ValidationError as error:
        message = (
            f"ConfigMap {key_of(record)}: {error}; delete the tenant's namespace in the host cluster, and the record"
        )
        raise Terminal("InvalidRecord", message) from error


def record_name(binding_uid: str) -> str:
    return f"leftovers-{binding_uid}"


async def record_leftover(client: Client, leftover: Leftover) -> None:
    """Record a tenant, unless it is recorded."""
    metadata = {**object_named(record_name(leftover.binding_uid), HOSTS_NAMESPACE)["metadata"], "labels": LABELS}
    try:
        await client.create(CONFIGMAPS, {"metadata": metadata, "data": msgspec.to_builtins(leftover)})
    except AlreadyExists:
        return


def is_in(leftover: Leftover, host: Object) -> bool:
    """Return whether a HostCluster is the cluster of a leftover, under whatever name."""
    identity = value_at(host, "status", "identity", default="")
    return bool(identity == leftover.identity) if leftover.identity else name_of(host) == leftover.host_cluster


@dataclass(frozen=True)
class LeftoverReconciler:
    """Remove the leftovers of one record when their host cluster answers, and then the record; keyed by its name."""

    records: Informer
    clusters: HostClusters
    client: Client
    is_candidate: Callable[[str], bool]
    """Return whether this process removes the leftovers of the record with this UID: one process of a group does."""

    async def reconcile(self, key: str) -> Result | None:
        record = self.records.store.get(key)
        if record is None or is_deleting(record):
            return None
        if not self.is_candidate(uid_of(record)):
            return Result(requeue_after=RECHECK_SECONDS)
        result = await self._remove(leftover_in(record))
        if result is None:
            await self.client.delete_if_exists(CONFIGMAPS, record)
        return result

    async def _remove(self, leftover: Leftover) -> Result | None:
        """Remove what a tenant left. Return None when the record is not needed any more."""
        hosts = [each for each in await self.client.list(HOST_CLUSTERS) if is_in(leftover, each)]
        if not hosts:
            log.warning("leftovers of a tenant abandoned: the HostCluster was removed", left=str(leftover))
            return None
        if await self._is_bound(leftover):
            log.info("leftovers of a tenant kept: its binding exists", left=str(leftover))
            return None
        host = next(filter(None, (self._connected(each, leftover) for each in hosts)), None)
        if host is None:
            return Result(requeue_after=RECHECK_SECONDS)
        try:
            left = await remove_leftover(host.connection.client, leftover)
        except TransportError:
            return Result(requeue_after=RECHECK_SECONDS)
        if left:
            return Result(requeue_after=WAIT_SECONDS)
        log.info("leftovers of a tenant removed", left=str(leftover), binding=leftover.binding)
        return None

    def _connected(self, obj: Object, leftover: Leftover) -> Host | None:
        """Return the connection to a host cluster, if it is the one of the leftover."""
        host = self.clusters.get(name_of(obj))
        return host if host is not None and leftover.identity in ("", host.identity) else None

    async def _is_bound(self, leftover: Leftover) -> bool:
        """Return whether the binding exists and is not being deleted, as after a restore of the management API."""
        bindings = await self.client.list(CLUSTER_BINDINGS)
        return any(uid_of(each) == leftover.binding_uid and not is_deleting(each) for each in bindings)


def install(manager: Manager, clusters: HostClusters, is_candidate: Callable[[str], bool]) -> None:
    """Add the controller of leftovers to a manager of the management API."""
    records = manager.informer(CONFIGMAPS, namespace=HOSTS_NAMESPACE, labels=SELECTOR)
    reconciler = LeftoverReconciler(records, clusters, manager.client, is_candidate)
    controller = manager.controller("leftovers", reconciler.reconcile)

    def all_records(_: object) -> Iterator[str]:
        return map(key_of, records.store.list())

    def recheck(_: str) -> None:
        for each in all_records(None):
            controller.queue.add(each)

    controller.watch(records)
    controller.watch(manager.informer(HOST_CLUSTERS), all_records, when=lambda old, new: old is None or new is None)
    clusters.on_change(recheck)
