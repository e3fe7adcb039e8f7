"""The native engine: a virtual cluster is a plane, and a tenant binding if it has a host cluster.

Both have a name that follows from the UID of the virtual cluster, so each step finds what an earlier attempt made, and
a virtual cluster with the same name finds nothing.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.keys import PREFIX
from tapestry.apis.planes import PLANES, own_process_name, plane_id
from tapestry.apis.projects import PROJECTS
from tapestry.apis.vclusters import VCLUSTERS, Journal
from tapestry.client.client import Client
from tapestry.controlplane.app import OPTIONAL_CONTROLLERS, WILDCARD
from tapestry.kube.conditions import find_condition, new_condition
from tapestry.kube.errors import AlreadyExists
from tapestry.kube.objects import Object, annotations_of, key_of, name_of, uid_of, value_at
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import Resource
from tapestry.planes.plane_certificates import CERTIFICATES_EXPIRING
from tapestry.vclusters.engines import Observation, StepFailed, StepNotDone
from tapestry.vclusters.engines.native_snapshots import Results, SnapshotSteps, is_new_cluster
from tapestry.vclusters.errors import ServiceError
from tapestry.vclusters.placement import choose_host, demand_of, ingress_url, requested_account, requested_hostname
from tapestry.vclusters.plans import Step
from tapestry.vclusters.validation import Provided, mapped_message, needs_own_process, treat_spec

VCLUSTER_UID = PREFIX + "vcluster-uid"
"""Label of what belongs to a virtual cluster."""
VCLUSTER = PREFIX + "vcluster"
"""Annotation with its namespace and name."""
REQUESTS_PER_CPU = 100
"""Concurrent requests that a plane may handle for each CPU of its limit."""
READY_PHASES = frozenset({"Open", "Asleep"})
SYNC_FIELDS = {
    "syncNodes": "nodes",
    "syncPersistentVolumes": "persistentVolumes",
    "syncStorageClasses": "storageClasses",
    "syncIngresses": "ingresses",
    "syncPriorityClasses": "priorityClasses",
    "syncNetworkPolicies": "networkPolicies",
    "syncPodDisruptionBudgets": "disruptionBudgets",
}
DNS_LISTS = ("nameservers", "searches", "options")
UNSET: Object = {
    "sync": dict.fromkeys(SYNC_FIELDS.values()),
    "isolation": None,
    "defaultStorageClass": None,
    "dns": dict.fromkeys((*DNS_LISTS, "serviceIp")),
    "apiHost": None,
    "serviceAccountName": None,
}
"""Fields of a tenant binding that virtual clusters set, without values."""
TENANT_CONTROLLERS = [WILDCARD, *OPTIONAL_CONTROLLERS]
"""Controllers of a plane whose pods run in a host cluster: all, as for `tapestry tenant create`."""
CLOSED = {"state": "Suspended", "suspendReason": "the virtual cluster is suspended"}
"""Fields of a plane that runs nothing."""
NOTHING: Results = {}


@dataclass(frozen=True)
class NativeEngine:
    """Engine that writes to the management API what the controllers of planes and tenants carry out."""

    client: Client
    provided: Provided
    snapshots: SnapshotSteps
    backend: str = "file"
    """Storage of planes with persistence."""

    async def run(self, step: Step, vcluster: Object, journal: Journal) -> Results:
        steps: dict[Step, Callable[[Object, Journal], Awaitable[Results]]] = {
            Step.PLACE: self._place,
            Step.INSTALL: self._install,
            Step.APPLY: self._apply,
            Step.WAIT_READY: self._wait_ready,
            Step.STOP: self._stop,
            Step.START: self._start,
            Step.DRAIN: self._drain,
            Step.RESUME_WORKLOADS: self._resume_workloads,
            Step.UNINSTALL: self._uninstall,
            Step.VERIFY_REMOVED: self._verify_removed,
            Step.SNAPSHOT: self._snapshot,
            Step.PREFLIGHT: self._preflight,
            Step.SAFETY_COPY: self._safety_copy,
            Step.RESTORE: self._restore,
            Step.DELETE_SNAPSHOTS: self._delete_snapshots,
        }
        return await steps[step](vcluster, journal)

    async def undo(self, step: Step, vcluster: Object, journal: Journal) -> None:
        match step:
            case Step.INSTALL:
                await self._uninstall(vcluster, journal)
            case Step.STOP:
                await self._start(vcluster, journal)
            case Step.DRAIN:
                await self._resume_workloads(vcluster, journal)
            case Step.SNAPSHOT:
                await self.snapshots.undo_snapshot(vcluster, journal)
            case Step.RESTORE:
                await self._undo_restore(vcluster, journal)
            case Step.SAFETY_COPY:
                self.snapshots.delete_safety_copy(vcluster)

    async def observe(self, vcluster: Object) -> Observation:
        name = native_name(vcluster)
        plane, binding = await self.client.find(PLANES, name), await self.client.find(CLUSTER_BINDINGS, name)
        phase = value_at(plane, "status", "phase", default="") if plane is not None else "missing"
        message = value_at(plane, "status", "message", default="") if plane is not None else ""
        is_healthy = phase in READY_PHASES
        ready = find_condition(value_at(binding, "status", "conditions", default=[]), "Ready") if binding else None
        is_unreachable = ready is not None and ready["reason"] == "HostUnreachable"
        unreachable = new_condition(
            "HostUnreachable",
            is_unreachable,
            "NoAnswer" if is_unreachable else "Reachable",
            ready["message"] if ready is not None and is_unreachable else "",
        )
        text = mapped_message(treat_spec(vcluster["spec"], self.provided).mapped)
        mapped = new_condition("FieldsMapped", bool(text), "FieldsMapped" if text else "AllHonored", text)
        status = {"readyReplicas": int(is_healthy), "totalReplicas": 1}
        problem = "" if is_healthy else f"the plane is {phase}: {message}"
        expiring = find_condition(value_at(plane, "status", "conditions", default=[]), CERTIFICATES_EXPIRING)
        return Observation(is_healthy, problem, status, (unreachable, mapped, *filter(None, (expiring,))))

    # -- steps

    async def _place(self, vcluster: Object, _: Journal) -> Results:
        if placed := value_at(vcluster, "status", "hostCluster"):
            return {"hostCluster": placed}
        project = await self.client.find(PROJECTS, value_at(vcluster, "spec", "project", default="") or "-")
        allowed = value_at(project or {}, "spec", "hostClusters", default=[])
        hosts, vclusters = await self.client.list(HOST_CLUSTERS), await self.client.list(VCLUSTERS)
        own = demand_of(vcluster)
        others = [demand_of(each) for each in vclusters if uid_of(each) != uid_of(vcluster)]
        placed = [each for each in others if not each.is_waiting]
        earlier = [each for each in others if each.is_waiting and each.order < own.order]
        try:
            host = choose_host(vcluster["spec"], hosts, allowed, placed)
        except ServiceError as error:
            raise StepFailed(error.reason, error.message, error.code.name) from error
        if earlier:
            try:
                host = choose_host(vcluster["spec"], hosts, allowed, [*placed, *earlier])
            except ServiceError as error:
                raise StepNotDone(f"earlier virtual clusters are placed first: {error.message}") from error
        return {"hostCluster": host} if host else NOTHING

    async def _install(self, vcluster: Object, journal: Journal) -> Results:
        """Create what is missing. A plane that is to be restored stays closed until its objects are complete."""
        spec = self._plane_spec(vcluster) | (CLOSED if is_new_cluster(journal) else {})
        if value_at(vcluster, "status", "hostCluster"):
            spec["controllers"] = TENANT_CONTROLLERS
        plane = await self._ensure(PLANES, native_name(vcluster), vcluster, spec)
        if host := value_at(vcluster, "status", "hostCluster"):
            spec = {"clusterID": name_of(plane), "virtualCluster": plane_id(plane), "hostCluster": host}
            await self._ensure(CLUSTER_BINDINGS, name_of(plane), vcluster, {**spec, **binding_spec(vcluster)})
        return {"plane": name_of(plane)}

    async def _apply(self, vcluster: Object, _: Journal) -> Results:
        plane = await self._installed(vcluster)
        spec = self._plane_spec(vcluster)
        await self.client.converge(PLANES, plane, {**named(plane), "spec": without(spec, "backend")})
        binding = await self.client.find(CLUSTER_BINDINGS, name_of(plane))
        if binding is not None:
            desired = with_unset(binding_spec(vcluster))
            await self.client.converge(CLUSTER_BINDINGS, binding, {**named(binding), "spec": desired})
        return NOTHING

    async def _wait_ready(self, vcluster: Object, _: Journal) -> Results:
        plane = await self._installed(vcluster)
        if value_at(plane, "status", "phase") not in READY_PHASES:
            raise StepNotDone(f"the plane is not open: {value_at(plane, 'status', 'message', default='')}")
        is_in_own = value_at(plane, "status", "holder") == own_process_name(plane_id(plane))
        if is_in_own != value_at(plane, "spec", "ownProcess", default=False):
            raise StepNotDone("the plane is moving to another process")
        binding = await self.client.find(CLUSTER_BINDINGS, name_of(plane))
        ready = current_ready(binding) if binding else None
        if binding is not None and (ready is None or ready["status"] != "True"):
            raise StepNotDone(f"the host cluster is not ready: {ready['message'] if ready is not None else ''}")
        address = ingress_url(vcluster["spec"]) or value_at(plane, "status", "address", default="")
        return {"apiServerEndpoint": address, "kubernetesVersion": self.provided.kubernetes_version}

    async def _stop(self, vcluster: Object, _: Journal) -> Results:
        plane = await self._installed(vcluster)
        await self.client.converge(PLANES, plane, {**named(plane), "spec": CLOSED})
        if value_at(plane, "status", "phase") != "Suspended":
            raise StepNotDone("the plane is being closed")
        return NOTHING

    async def _start(self, vcluster: Object, _: Journal) -> Results:
        plane = await self._installed(vcluster)
        await self.client.converge(PLANES, plane, {**named(plane), "spec": {"state": "Open", "suspendReason": ""}})
        return NOTHING

    async def _drain(self, vcluster: Object, journal: Journal) -> Results:
        seconds = journal.arguments.get("drainTimeoutSeconds") or 60
        binding = await self._set_workloads(vcluster, {"workloads": "Drained", "drainTimeoutSeconds": seconds})
        drained = find_condition(value_at(binding, "status", "conditions", default=[]), "Drained") if binding else None
        if binding is not None and (drained is None or drained["status"] != "True"):
            raise StepNotDone(f"pods are being terminated: {drained['message'] if drained is not None else ''}")
        return NOTHING

    async def _resume_workloads(self, vcluster: Object, _: Journal) -> Results:
        await self._set_workloads(vcluster, {"workloads": "Run"})
        return NOTHING

    async def _uninstall(self, vcluster: Object, _: Journal) -> Results:
        """Delete the binding first: its finalizer needs the plane."""
        for resource in (CLUSTER_BINDINGS, PLANES):
            found = await self.client.find(resource, native_name(vcluster))
            if found is not None:
                await self.client.delete_if_exists(resource, found)
                raise StepNotDone(f"{resource.kind} {name_of(found)} is being deleted")
        return NOTHING

    async def _verify_removed(self, vcluster: Object, _: Journal) -> Results:
        selector = f"{VCLUSTER_UID}={uid_of(vcluster)}"
        for resource in (CLUSTER_BINDINGS, PLANES):
            if left := await self.client.list(resource, labels=selector):
                raise StepNotDone(f"{resource.kind} {name_of(left[0])} still exists")
        self.snapshots.delete_safety_copy(vcluster)
        return NOTHING

    # -- snapshots

    async def _snapshot(self, vcluster: Object, journal: Journal) -> Results:
        return await self.snapshots.snapshot(vcluster, await self._installed(vcluster), journal)

    async def _preflight(self, vcluster: Object, journal: Journal) -> Results:
        plane = None if is_new_cluster(journal) else await self._installed(vcluster)
        return await self.snapshots.preflight(vcluster, plane, journal)

    async def _safety_copy(self, vcluster: Object, _: Journal) -> Results:
        return await self.snapshots.safety_copy(vcluster, await self._installed(vcluster))

    async def _restore(self, vcluster: Object, journal: Journal) -> Results:
        plane = await self._installed(vcluster)
        if value_at(plane, "status", "phase") != "Suspended":
            raise StepNotDone("the plane is not closed yet")
        return await self.snapshots.restore(plane, journal)

    async def _undo_restore(self, vcluster: Object, journal: Journal) -> None:
        if not is_new_cluster(journal):
            await self._stop(vcluster, journal)
            await self.snapshots.undo_restore(vcluster, await self._installed(vcluster), journal)

    async def _delete_snapshots(self, vcluster: Object, _: Journal) -> Results:
        return await self.snapshots.delete_all(vcluster)

    # -- objects

    def _plane_spec(self, vcluster: Object) -> Object:
        spec = vcluster["spec"]
        limits: Object = {}
        if size := value_at(spec, "storage", "persistenceSize"):
            limits["bytes"] = size
        if cpus := value_at(spec, "resources", "cpuLimit"):
            requests = parse_quantity(cpus).milli_value() * REQUESTS_PER_CPU // 1000
            limits["requestsInFlight"] = min(max(requests, 10), 10_000)
        is_persistent = value_at(spec, "storage", "enablePersistence", default=True)
        result: Object = {"backend": self.backend if is_persistent else "memory", "state": "Open", "suspendReason": ""}
        cpus = value_at(spec, "resources", "cpuRequest", default="")
        result["ownProcess"] = self.provided.has_own_processes and is_persistent and needs_own_process(cpus)
        return {**result, "limits": limits} if limits else result

    async def _ensure(self, resource: Resource, name: str, vcluster: Object, spec: Object) -> Object:
        """Create an object, unless an earlier attempt did."""
        found = await self.client.find(resource, name)
        if found is not None:
            return found
        metadata = {
            "name": name,
            "labels": {VCLUSTER_UID: uid_of(vcluster)},
            "annotations": {VCLUSTER: key_of(vcluster)},
        }
        try:
            return await self.client.create(resource, {"metadata": metadata, "spec": spec})
        except AlreadyExists:
            return await self.client.get(resource, name)

    async def _installed(self, vcluster: Object) -> Object:
        plane = await self.client.find(PLANES, native_name(vcluster))
        if plane is None:
            raise StepFailed("NOT_INSTALLED", "the virtual cluster has no plane; delete it, or create it again")
        return plane

    async def _set_workloads(self, vcluster: Object, spec: Object) -> Object | None:
        binding = await self.client.find(CLUSTER_BINDINGS, native_name(vcluster))
        if binding is not None:
            await self.client.converge(CLUSTER_BINDINGS, binding, {**named(binding), "spec": spec})
        return binding


def native_name(vcluster: Object) -> str:
    """Return the name of the plane and of the binding of a virtual cluster."""
    return f"vc-{plane_id(vcluster)}"


def vcluster_keys(obj: Object) -> Iterable[str]:
    """Map a plane or a binding to the key of its virtual cluster."""
    key = annotations_of(obj).get(VCLUSTER)
    return (key,) if key else ()


def current_ready(binding: Object) -> Object | None:
    """Return the condition `Ready` of a binding, if it is about the present spec."""
    ready = find_condition(value_at(binding, "status", "conditions", default=[]), "Ready")
    is_current = ready is not None and ready.get("observedGeneration") == binding["metadata"].get("generation")
    return ready if is_current else None


def named(obj: Object) -> Object:
    return {"metadata": {"name": name_of(obj)}}


def without(spec: Object, *names: str) -> Object:
    return {key: value for key, value in spec.items() if key not in names}


def binding_spec(vcluster: Object) -> Object:
    """Return the fields of a tenant binding that a virtual cluster sets."""
    spec = vcluster["spec"]
    sync: dict[str, Any] = {
        field: True for name, field in SYNC_FIELDS.items() if value_at(spec, "sync", name, default=False)
    }
    if value_at(spec, "network", "enableNetworkPolicies"):
        sync["networkPolicies"] = True
    result: Object = {"sync": sync}
    if mode := spec.get("isolationMode"):
        result["isolation"] = {"mode": mode}
    if storage_class := value_at(spec, "storage", "defaultStorageClass"):
        result["defaultStorageClass"] = storage_class
    if account := requested_account(spec):
        result["serviceAccountName"] = account
    if hostname := requested_hostname(spec):
        result["apiHost"] = hostname
    if dns := dns_settings(spec):
        result["dns"] = dns
    return result


def with_unset(spec: Object) -> Object:
    """Return the fields of a tenant binding, with None for those that a virtual cluster does not set any more."""
    return {
        name: {**value, **spec.get(name, {})} if isinstance(value, dict) else spec.get(name)
        for name, value in UNSET.items()
    }


def dns_settings(spec: Object) -> Object:
    """Return the DNS settings of the pods of a virtual cluster; empty if it sets none."""
    given = value_at(spec, "network", "dns", default={})
    settings = {name: given.get(name) for name in DNS_LISTS}
    settings["serviceIp"] = value_at(spec, "network", "dnsServiceIp")
    return {name: value for name, value in settings.items() if value}
