"""The admission plugin of the management API for all kinds of the service: who may write what.

VClusters have their own rules in `admission`. The orchestrator and other controllers write anything. Members of the
masters group of the management API write everything else, and the service writes as one of them in the name of its
caller, whom it has authorized with the same roles. All other users, such as those of kubectl, need a role in the
project, besides what the management API itself requires.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tapestry.apis.operations import OPERATIONS, SNAPSHOTS
from tapestry.apis.projects import ACCESS_KEY, ACCESS_KEYS, PROJECT, PROJECTS, QUOTA, QUOTAS, ProjectSpec
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.core.requests import (
    AdmissionPlugin,
    BuildAdmission,
    CallOrigin,
    User,
    WriteRequest,
)
from tapestry.apiserver.core.store import Key, Store
from tapestry.kube.crds import Kind
from tapestry.kube.objects import Object, name_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.vclusters.access.authentication import PLATFORM_ADMIN_GROUPS
from tapestry.vclusters.access.roles import Caller, Decision, decide, roles_in_projects
from tapestry.vclusters.admission import VClusterAdmission
from tapestry.vclusters.api_errors import api_error
from tapestry.vclusters.errors import (
    ServiceError,
    Violation,
    field_invalid,
    not_found,
    permission_denied,
    precondition_failed,
    quota_exceeded,
)
from tapestry.vclusters.project_usage import ProjectUsage
from tapestry.vclusters.stored_objects import StoredObjects
from tapestry.vclusters.validation import Provided, with_valid_spec

OTHERS = frozenset(each.name for each in (SNAPSHOTS, OPERATIONS, PROJECTS, QUOTAS, ACCESS_KEYS))
KINDS: Mapping[str, Kind[Any]] = {each.resource.name: each for each in (PROJECT, QUOTA, ACCESS_KEY)}
WRITTEN_BY_ORCHESTRATOR = frozenset({SNAPSHOTS.name, OPERATIONS.name})


def service_admission(provided: Provided) -> BuildAdmission:
    """Return the plugin of the management API for `run_planes`."""

    def build(store: Store) -> AdmissionPlugin:
        policy, usage = Policy(StoredObjects(store)), ProjectUsage(store)
        vclusters = VClusterAdmission(store, provided, usage, policy.allow_in_project)

        async def admit_snapshot(request: WriteRequest, old: Object | None, new: Object) -> Object:
            admitted = await policy.admit(request, old, new)
            check_bytes(usage, request, old, admitted)
            return admitted

        writes = {VCLUSTERS.name: vclusters.admit, SNAPSHOTS.name: admit_snapshot, NAMESPACES.name: unchanged}
        deletions = {VCLUSTERS.name: vclusters.admit_delete, NAMESPACES.name: vclusters.admit_namespace_delete}

        async def admit(request: WriteRequest, old: Object | None, new: Object) -> Object:
            return await writes.get(request.target.info.storage, policy.admit)(request, old, new)

        async def admit_delete(request: WriteRequest, current: Object) -> None:
            await deletions.get(request.target.info.storage, policy.admit_delete)(request, current)

        return AdmissionPlugin(OTHERS | writes.keys(), admit, admit_delete)

    return build


async def unchanged(_: WriteRequest, __: Object | None, new: Object) -> Object:
    """Admit a write as it is."""
    return new


def check_bytes(usage: ProjectUsage, request: WriteRequest, old: Object | None, new: Object) -> None:
    """Check the quota when the size of a snapshot is known. Whether there may be one more was checked before."""
    size, before = (value_at(each or {}, "status", "sizeBytes", default=0) for each in (new, old))
    if size <= before:
        return
    key = Key(SNAPSHOTS.name, request.target.namespace, name_of(new))
    if exceeded := usage.exceeded(key, old, new):
        raise api_error(quota_exceeded(new["spec"]["project"], exceeded))
    request.claim = lambda: not usage.exceeded(key, old, new)


@dataclass(frozen=True)
class Policy:
    """Decisions about writes of all kinds but VClusters."""

    objects: StoredObjects

    async def admit(self, request: WriteRequest, old: Object | None, new: Object) -> Object:
        if request.origin is not CallOrigin.CONTROLLER:
            try:
                self._check_write(request, old, new)
            except ServiceError as error:
                raise api_error(error) from error
        return new

    async def admit_delete(self, request: WriteRequest, current: Object) -> None:
        if request.origin is not CallOrigin.CONTROLLER:
            try:
                self._check_delete(request, current)
            except ServiceError as error:
                raise api_error(error) from error

    def allow_in_project(self, user: User, method: str, project: str) -> None:
        """Raise ServiceError unless a user may call a method in a project, which must exist."""
        self.allow(user, method, project, f"Project {project}")
        if self.objects.head(PROJECTS, "", project) is None:
            raise not_found("Project", project)

    def allow(self, user: User, method: str, project: str, resource: str) -> None:
        """Raise ServiceError unless a user may call a method on a resource of a project."""
        decision = decide(self._caller(user), method, project)
        if decision is Decision.HIDDEN:
            raise not_found(*resource.split(" ", 1))
        if decision is Decision.DENIED:
            raise permission_denied(method, resource)

    def _caller(self, user: User) -> Caller:
        is_admin = not PLATFORM_ADMIN_GROUPS.isdisjoint(user.groups)
        roles = {} if is_admin else roles_in_projects(project_specs(self.objects), user.name, user.groups)
        return Caller(user.name, "", is_admin, roles)

    def _check_write(self, request: WriteRequest, old: Object | None, new: Object) -> None:
        name, resource = name_of(new), f"{request.target.info.resource.kind} {name_of(new)}"
        storage = request.target.info.storage
        if request.target.subresource or storage in WRITTEN_BY_ORCHESTRATOR:
            raise permission_denied("write", f"{resource}: only the orchestrator does")
        new = with_valid_spec(KINDS[storage], new)
        if storage == PROJECTS.name:
            self.allow(request.user, "CreateProject" if old is None else "UpdateProject", name, resource)
        if storage == QUOTAS.name:
            project = value_at(new, "spec", "project", default="")
            self.allow(request.user, "UpdateQuota", project, resource)
            if project != name:
                raise field_invalid(Violation("metadata.name", f"must be that of the project, {project}"))
        if storage == ACCESS_KEYS.name:
            self._allow_keys(request.user, resource)

    def _check_delete(self, request: WriteRequest, current: Object) -> None:
        name, kind = name_of(current), request.target.info.resource.kind
        project, resource = value_at(current, "spec", "project", default=""), f"{kind} {name}"
        if kind == ACCESS_KEYS.kind:
            self._allow_keys(request.user, resource)
            return
        method = "UpdateQuota" if kind == QUOTAS.kind else f"Delete{kind}"
        self.allow(request.user, method, name if kind == PROJECTS.kind else project, resource)
        if kind == PROJECTS.kind and self._has_vclusters(name):
            raise precondition_failed("PROJECT_NOT_EMPTY", name, f"project {name} has virtual clusters")

    def _allow_keys(self, user: User, resource: str) -> None:
        """Only platform admins write keys themselves. The service writes those of its callers."""
        if not self._caller(user).is_platform_admin:
            raise permission_denied("write", resource)

    def _has_vclusters(self, project: str) -> bool:
        return any(value_at(each, "spec", "project") == project for each in self.objects.heads(VCLUSTERS))


def project_specs(objects: StoredObjects) -> Sequence[tuple[str, ProjectSpec]]:
    found = objects.all(PROJECTS)
    return [(name_of(each), msgspec.convert(each.get("spec") or {}, ProjectSpec)) for each in found]
