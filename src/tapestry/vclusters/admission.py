"""Admission of virtual clusters: what holds for every write, by REST, by gRPC, by kubectl or in the process.

It sets what the writer leaves out: the project of the namespace, the owner, the finalizer, and the operation that a
change of the desired state needs. It rejects what the engine cannot do, what the phase does not allow, and what exceeds
a quota. Only the orchestrator writes a status.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.keys import PREFIX, VCLUSTER_FINALIZER
from tapestry.apis.projects import PROJECTS
from tapestry.apis.vclusters import VCLUSTER, VCLUSTERS, Phase, Verb
from tapestry.apiserver.core.requests import AdmissionPlugin, CallOrigin, User, WriteRequest
from tapestry.apiserver.core.store import Key, Store
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at, with_value
from tapestry.kube.resources import NAMESPACES, Resource
from tapestry.vclusters.api_errors import api_error
from tapestry.vclusters.errors import (
    ServiceError,
    Violation,
    deletion_protected,
    field_invalid,
    not_found,
    operation_in_progress,
    permission_denied,
    phase_not_allowed,
    precondition_failed,
    quota_exceeded,
)
from tapestry.vclusters.lifecycle import allowed_phases, may_wait, start_event
from tapestry.vclusters.operations import operation_id
from tapestry.vclusters.placement import check_growth, check_host_fields, choose_host, loads_of
from tapestry.vclusters.project_usage import ProjectUsage
from tapestry.vclusters.validation import Provided, check_spec, check_update, with_valid_spec

PROJECT_ANNOTATION = PREFIX + "project"
"""Annotation of a namespace with the project that it belongs to."""
NOT_DESIRED = frozenset({"operation", "project", "owner", "engine", "expireTime", "deletionProtection"})
"""Fields whose change needs no operation."""
HOST_FIELDS = frozenset({"ingress", "serviceAccount", "resources"})
"""Fields that the host cluster has to allow."""
SCALED = frozenset({"resources", "replicas"})
CARRIED = ("project", "owner", "engine")
"""Fields that a writer may leave out, and that do not change then."""
RESERVED_PREFIXES = ("kube-", "tapestry-")
"""Beginnings of names of namespaces that the installation uses itself."""
STRICTEST_ISOLATION = "full"
"""Mode of a virtual cluster whose spec has none."""
Allow = Callable[[User, str, str], None]
"""Raise ServiceError unless a user may call a method in a project."""


CheckHosts = Callable[[Key, Object], None]
"""Raise ServiceError if host clusters cannot take a virtual cluster as it is to be stored."""


def ignore(_: Key, __: Object) -> None:
    """Check nothing: the write asks for nothing that a host cluster has to give."""


def allow_all(_: User, __: str, ___: str) -> None:
    """Allow every call that the authorizer of the management API allows."""


@dataclass
class VClusterAdmission:
    """The steps of the admission plugin for virtual clusters."""

    store: Store
    provided: Provided
    usage: ProjectUsage
    allow: Allow = allow_all

    async def admit(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if request.origin is CallOrigin.CONTROLLER:
            return new
        try:
            if request.target.subresource:
                raise permission_denied("write the status of", f"virtual cluster {name_of(new)}")
            new = with_valid_spec(VCLUSTER, new)
            return self._admit_create(request, new) if old is None else self._admit_update(request, old, new)
        except ServiceError as error:
            raise api_error(error) from error

    async def admit_delete(self, request: WriteRequest, current: Object) -> None:
        if request.origin is CallOrigin.CONTROLLER:
            return
        try:
            self.allow(request.user, "DeleteVCluster", current["spec"]["project"])
            if current["spec"].get("deletionProtection"):
                raise deletion_protected(name_of(current))
        except ServiceError as error:
            raise api_error(error) from error

    async def admit_namespace_delete(self, request: WriteRequest, current: Object) -> None:
        """Let the service delete only empty namespaces. It deletes the one that it created for a rejected create."""
        if request.origin is not CallOrigin.SERVICE:
            return

        def is_empty() -> bool:
            return not self.store.heads(VCLUSTERS.name, name_of(current))

        if not is_empty():
            text = f"namespace {name_of(current)} has virtual clusters"
            raise api_error(precondition_failed("NAMESPACE_NOT_EMPTY", name_of(current), text))
        request.claim = is_empty

    def _admit_create(self, request: WriteRequest, new: Object) -> Object:
        namespace = request.target.namespace
        if namespace.startswith(RESERVED_PREFIXES):
            text = f"must not be {namespace}: names that begin with {' or '.join(RESERVED_PREFIXES)} are reserved"
            raise field_invalid(Violation("metadata.namespace", text))
        project = self._project_of(namespace) or new["spec"].get("project")
        if not project:
            text = f"must be set, because the namespace {namespace} belongs to no project yet"
            raise field_invalid(Violation("spec.project", text))
        if new["spec"].get("project") not in (None, "", project):
            raise not_found("Namespace", namespace)
        self.allow(request.user, "CreateVCluster", project)
        spec = {**new["spec"], "project": project, "owner": request.user.name}
        spec["operation"] = spec.get("operation") or new_operation(Verb.CREATE, request.user, new)
        check_operation(spec["operation"], request.user)
        if spec["operation"]["verb"] not in (Verb.CREATE, Verb.RESTORE):
            raise field_invalid(Violation("spec.operation.verb", "must be Create or Restore for a new virtual cluster"))
        if self.provided.isolation_mode != STRICTEST_ISOLATION:
            spec["isolationMode"] = spec.get("isolationMode") or self.provided.isolation_mode
        check_spec(spec, self.provided)
        finalizers = [*value_at(new, "metadata", "finalizers", default=[])]
        if VCLUSTER_FINALIZER not in finalizers:
            finalizers.append(VCLUSTER_FINALIZER)
        result = with_value({**new, "spec": spec}, ("metadata", "finalizers"), finalizers)
        self._charge(request, None, result, self._check_placement)
        return result

    def _admit_update(self, request: WriteRequest, old: Object, new: Object) -> Object:
        before = old["spec"]
        spec = {**new["spec"], **{name: new["spec"].get(name) or before.get(name) for name in CARRIED}}
        spec = {key: value for key, value in spec.items() if value is not None}
        check_update(before, spec)
        operation = before.get("operation")
        spec["operation"] = spec.get("operation") or operation
        changed = {key for key in before.keys() | spec.keys() if before.get(key) != spec.get(key)}
        if desired := changed - NOT_DESIRED:
            check_spec(spec, self.provided)
            if spec["operation"] == operation:
                spec["operation"] = new_operation(verb_of(desired, spec), request.user, new)
        verb = Verb(spec["operation"]["verb"]) if spec["operation"] and spec["operation"] != operation else None
        self.allow(request.user, f"{verb or Verb.UPDATE}VCluster", spec["project"])
        if verb is not None and not is_cancellation(operation, spec["operation"]):
            check_operation(spec["operation"], request.user)
            check_phase(old, verb)
            if verb is Verb.DELETE and spec.get("deletionProtection"):
                raise deletion_protected(name_of(new))
        if VCLUSTER_FINALIZER in value_at(old, "metadata", "finalizers", default=[]):
            finalizers = value_at(new, "metadata", "finalizers", default=[])
            if VCLUSTER_FINALIZER not in finalizers:
                raise permission_denied("remove the finalizer of", f"virtual cluster {name_of(new)}")
        result = {**new, "spec": {key: value for key, value in spec.items() if value is not None}}
        self._charge(request, old, result, partial(self._check_change, old) if changed & HOST_FIELDS else ignore)
        return result

    # -- host clusters

    def _check_placement(self, key: Key, new: Object) -> None:
        """Raise ServiceError if no host cluster can take a new virtual cluster."""
        spec, others = new["spec"], self.usage.demands(besides=key)
        choose_host(spec, self._objects(HOST_CLUSTERS), self._allowed_hosts(spec["project"]), others)

    def _check_change(self, old: Object, key: Key, new: Object) -> None:
        """Raise ServiceError if the host cluster does not allow a change."""
        hosts = {name_of(each): each for each in self._objects(HOST_CLUSTERS)}
        host, others = hosts.get(value_at(old, "status", "hostCluster", default="")), self.usage.demands(besides=key)
        if any(old["spec"].get(each) != new["spec"].get(each) for each in ("ingress", "serviceAccount")):
            check_host_fields(new["spec"], host, others)
        if host is not None:
            check_growth(old["spec"], new["spec"], host, loads_of(hosts, others))

    def _allowed_hosts(self, project: str) -> Collection[str]:
        """Return the host clusters that a project may use; empty if it may use all."""
        found = self.store.head(PROJECTS.name, "", project)
        stored = msgspec.json.decode(found.raw) if found is not None else {}
        allowed: list[str] = value_at(stored, "spec", "hostClusters", default=[])
        return allowed

    # -- project and quota

    def _project_of(self, namespace: str, *, besides: str = "") -> str:
        """Return the project of a namespace: that of its annotation, else that of its virtual clusters."""
        found = self.store.head(NAMESPACES.name, "", namespace)
        if found is not None and (project := annotations_of(msgspec.json.decode(found.raw)).get(PROJECT_ANNOTATION)):
            return project
        heads = self.store.heads(VCLUSTERS.name, namespace)
        return next((self.usage.known(each).charge.project for each in heads if each.key.name != besides), "")

    def _charge(self, request: WriteRequest, old: Object | None, new: Object, check_hosts: CheckHosts) -> None:
        """Check the quota and the host clusters now, for the message, and again when the object is written."""
        key = Key(VCLUSTERS.name, request.target.namespace, name_of(new))
        if exceeded := self.usage.exceeded(key, old, new):
            raise quota_exceeded(new["spec"]["project"], exceeded)
        check_hosts(key, new)
        request.claim = partial(self._is_free, key, old, new, partial(check_hosts, key, new))

    def _is_free(self, key: Key, old: Object | None, new: Object, check_hosts: Callable[[], None]) -> bool:
        if old is None and not self._may_create_in(key.namespace):
            return False
        project = self._project_of(key.namespace, besides=key.name)
        if project not in ("", new["spec"]["project"]) or self.usage.exceeded(key, old, new):
            return False
        try:
            check_hosts()
        except ServiceError:
            return False
        return True

    def _may_create_in(self, namespace: str) -> bool:
        """Return whether the next writer sees a namespace that is not being deleted."""
        found = self.store.head(NAMESPACES.name, "", namespace)
        return found is not None and not is_deleting(msgspec.json.decode(found.raw))

    def _objects(self, resource: Resource) -> Iterator[Object]:
        return (msgspec.json.decode(each.raw) for each in self.store.heads(resource.name))


def vcluster_plugin(store: Store, provided: Provided, allow: Allow = allow_all) -> AdmissionPlugin:
    """Build the plugin of the management API: `run_planes(admission=partial(vcluster_plugin, provided=...))`."""
    admission = VClusterAdmission(store, provided, ProjectUsage(store), allow)
    return AdmissionPlugin(frozenset({VCLUSTERS.name}), admission.admit, admission.admit_delete)


def new_operation(verb: Verb, user: User, vcluster: Object) -> Object:
    """Return the operation for a write that says only what is desired."""
    return operation_of(verb, user, f"{uid_of(vcluster)}/{value_at(vcluster, 'metadata', 'generation', default=0)}")


def operation_of(verb: Verb, user: User, request_id: str) -> Object:
    id = operation_id(user.name, f"{verb}VCluster", request_id)
    return {"id": id, "verb": verb.value, "principal": user.name, "requestId": request_id}


def check_operation(operation: Object, user: User) -> None:
    """Reject an operation in the name of another user, or with an id that another request may have."""
    if operation.get("principal") != user.name:
        raise field_invalid(Violation("spec.operation.principal", f"must be {user.name}"))
    expected = operation_id(user.name, f"{operation['verb']}VCluster", operation.get("requestId") or "")
    if not operation.get("requestId") or operation["id"] != expected:
        raise field_invalid(Violation("spec.operation.id", "must be the hash of principal, method and requestId"))


def check_phase(vcluster: Object, verb: Verb) -> None:
    """Raise ServiceError unless an operation may start now, or may wait for the running one."""
    name, journal = name_of(vcluster), value_at(vcluster, "status", "journal")
    if verb is Verb.DELETE:
        return
    waiting = value_at(vcluster, "spec", "operation")
    known = {value_at(vcluster, "status", "lastOperation"), journal["id"] if journal else None}
    if waiting and waiting["id"] not in known:
        raise operation_in_progress(name, waiting["id"])
    if journal:
        if not may_wait(verb, Verb(journal["verb"])):
            raise operation_in_progress(name, journal["id"])
        return
    phase = Phase(value_at(vcluster, "status", "phase", default=Phase.PENDING))
    if start_event(verb, phase) is None:
        raise phase_not_allowed(name, verb, phase, allowed_phases(verb))


def is_cancellation(before: Object | None, after: Object) -> bool:
    return before is not None and {**before, "cancelled": True} == after


def verb_of(changed: set[str], spec: Object) -> Verb:
    """Return the verb for a change of the desired state."""
    if "suspended" in changed:
        return Verb.SUSPEND if spec.get("suspended") else Verb.RESUME
    return Verb.SCALE if changed <= SCALED else Verb.UPDATE
