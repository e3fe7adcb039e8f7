"""The methods of the contract for projects, quotas, host clusters, access keys and audit records."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from tapestry.apis.hostclusters import HOST_CLUSTERS
from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.projects import ACCESS_KEYS, PROJECTS, QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.client.client import Client
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import CONFIGMAPS, Resource
from tapestry.kube.times import parse_time
from tapestry.vclusters.access.keys import new_key
from tapestry.vclusters.access.roles import PROXY_METHOD, Caller, Role
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.audit.heads import HEADS_CONFIG_MAP, StoredHeads, heads_in
from tapestry.vclusters.audit.queries import newest_first
from tapestry.vclusters.audit.records import AuditRecord
from tapestry.vclusters.audit.verification import Verification, verify
from tapestry.vclusters.errors import (
    Code,
    ServiceError,
    Violation,
    etag_mismatch,
    field_invalid,
    not_found,
    permission_denied,
)
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import (
    access_key_message,
    host_message,
    optional,
    project_message,
    quota_message,
    timestamp_of,
)
from tapestry.vclusters.page_tokens import page_size
from tapestry.vclusters.pages import Pager
from tapestry.vclusters.quota import charges_of, total_usage, used_texts
from tapestry.vclusters.stored_objects import StoredObjects

PROJECT_FIELDS = {
    "display_name": "displayName",
    "description": "description",
    "members": "members",
    "host_clusters": "hostClusters",
}
QUOTA_FIELDS = {"limits": "limits", "user_limits": "userLimits"}
HOST_FIELDS = {"labels": "labels", "ingress_class": "ingressClass", "ingress_domain": "ingressDomain"}
COUNTS = frozenset({"vclusters", "runningVclusters", "snapshots", "concurrentOperations"})
"""Limits that are numbers in a Quota; the others are quantities."""
EXPORT_BATCH = 200


@dataclass(frozen=True)
class Administration:
    """Projects, quotas, host clusters, access keys and audit records."""

    client: Callable[[Caller], Client]
    objects: StoredObjects
    pager: Pager
    audit_folder: Path
    """Folder with the audit logs of all instances."""
    now: Callable[[], datetime]

    def methods(self) -> Mapping[str, Respond]:
        return {
            "CreateProject": self.create_project,
            "GetProject": self.get_project,
            "ListProjects": self.list_projects,
            "UpdateProject": self.update_project,
            "DeleteProject": self.delete_project,
            "GetQuota": self.get_quota,
            "ListQuotas": self.list_quotas,
            "UpdateQuota": self.update_quota,
            "CreateHostCluster": self.create_host,
            "GetHostCluster": self.get_host,
            "ListHostClusters": self.list_hosts,
            "UpdateHostCluster": self.update_host,
            "DeleteHostCluster": self.delete_host,
            "CreateAccessKey": self.create_key,
            "GetAccessKey": self.get_key,
            "ListAccessKeys": self.list_keys,
            "DeleteAccessKey": self.delete_key,
            "ListAuditRecords": self.list_records,
            "VerifyAuditRecords": self.verify_records,
        }

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        name = {
            "GetProject": lambda: request.name,
            "UpdateProject": lambda: request.project.name,
            "DeleteProject": lambda: request.name,
            "GetQuota": lambda: request.project,
            "UpdateQuota": lambda: request.quota.project,
            "ListAuditRecords": lambda: request.project,
        }.get(method, str)()
        if name and self.objects.get(PROJECTS, "", name) is None:
            return None
        return str(name)

    def _found(self, resource: Resource, name: str) -> Object:
        found = self.objects.head(resource, "", name)
        if found is None:
            raise not_found(resource.kind, name)
        return found

    def _page(self, call: AdmittedCall, resource: Resource, is_listed: Callable[[Object], bool]) -> Any:
        def list_at(revision: int) -> list[Object]:
            return [each for each in self.objects.at_revision(resource, "", revision) if is_listed(each)]

        filters = {"method": call.method, "user": call.caller.user, "of": getattr(call.request, "principal", "")}
        return self.pager.page(call.request, self.objects.revision, list_at, filters, "name")

    async def _write(
        self, call: AdmittedCall, resource: Resource, name: str, spec: Object, old: Object | None, etag: str = ""
    ) -> Object:
        """Create an object, or replace its spec. Raises ServiceError."""
        request, client = call.request, self.client(call.caller)
        if request.etag and old is not None and request.etag != etag:
            raise etag_mismatch(name, is_header=call.incoming.is_etag_header)
        with reported(resource.kind, name):
            if old is None:
                content = {**object_named(name), "spec": spec}
                return await client.create(resource, content, dry_run=request.validate_only)
            return await client.replace(resource, {**old, "spec": spec}, dry_run=request.validate_only)

    async def _delete(self, call: AdmittedCall, resource: Resource, name: str) -> None:
        found = self._found(resource, name)
        with reported(resource.kind, name):
            await self.client(call.caller).delete(resource, found, dry_run=call.request.validate_only)

    # -- projects

    async def create_project(self, call: AdmittedCall) -> Message:
        project = call.request.project
        spec = fields_of(project, PROJECT_FIELDS, PROJECT_FIELDS)
        return project_message(await self._write(call, PROJECTS, required("project.name", project.name), spec, None))

    async def get_project(self, call: AdmittedCall) -> Message:
        return project_message(self._found(PROJECTS, call.request.name))

    async def list_projects(self, call: AdmittedCall) -> Message:
        page = self._page(call, PROJECTS, lambda each: call.caller.role_in(name_of(each)) >= Role.VIEWER)
        projects = [project_message(each) for each in page.items]
        return api.ListProjectsResponse(projects=projects, next_page_token=page.next_token, total_count=page.total)

    async def update_project(self, call: AdmittedCall) -> Message:
        project = call.request.project
        old = self._found(PROJECTS, project.name)
        spec = {**(old.get("spec") or {}), **fields_of(project, PROJECT_FIELDS, mask_of(call.request, PROJECT_FIELDS))}
        etag = project_message(old).etag
        return project_message(await self._write(call, PROJECTS, project.name, spec, old, etag))

    async def delete_project(self, call: AdmittedCall) -> Message:
        await self._delete(call, PROJECTS, call.request.name)
        return api.DeleteProjectResponse()

    # -- quotas

    def _quota_message(self, quota: Object) -> api.Quota:
        project = quota["spec"]["project"]
        charges = charges_of(self.objects.all(VCLUSTERS), self.objects.all(SNAPSHOTS))
        return quota_message(quota, used_texts(total_usage(charges, project)))

    async def get_quota(self, call: AdmittedCall) -> Message:
        project = call.request.project
        found = self.objects.get(QUOTAS, "", project)
        return self._quota_message(found or {"spec": {"project": project}})

    async def list_quotas(self, call: AdmittedCall) -> Message:
        page = self._page(call, QUOTAS, lambda _: True)
        quotas = [self._quota_message(each) for each in page.items]
        return api.ListQuotasResponse(quotas=quotas, next_page_token=page.next_token, total_count=page.total)

    async def update_quota(self, call: AdmittedCall) -> Message:
        quota = call.request.quota
        old = self.objects.head(QUOTAS, "", quota.project)
        changed = {
            QUOTA_FIELDS[name]: {key: limit_of(key, text) for key, text in getattr(quota, name).items()}
            for name in mask_of(call.request, QUOTA_FIELDS)
        }
        spec = {**((old or {}).get("spec") or {}), "project": quota.project, **changed}
        etag = self._quota_message(old).etag if old is not None else ""
        return self._quota_message(await self._write(call, QUOTAS, quota.project, spec, old, etag))

    # -- host clusters

    async def create_host(self, call: AdmittedCall) -> Message:  # noqa: ARG002  all methods have the same parameters
        message = "use `tapestry host add`, which prepares the cluster"
        raise ServiceError(Code.UNIMPLEMENTED, "NOT_SUPPORTED", message)

    async def get_host(self, call: AdmittedCall) -> Message:
        return host_message(self._found(HOST_CLUSTERS, call.request.name))

    async def list_hosts(self, call: AdmittedCall) -> Message:
        page = self._page(call, HOST_CLUSTERS, lambda _: True)
        hosts = [host_message(each) for each in page.items]
        return api.ListHostClustersResponse(
            host_clusters=hosts, next_page_token=page.next_token, total_count=page.total
        )

    async def update_host(self, call: AdmittedCall) -> Message:
        request, host = call.request, call.request.host_cluster
        if request.kubeconfig:
            raise field_invalid(Violation("kubeconfig", "use `tapestry host add`, which prepares the cluster"))
        old = self._found(HOST_CLUSTERS, host.name)
        spec = {**old["spec"], **fields_of(host, HOST_FIELDS, mask_of(request, HOST_FIELDS))}
        return host_message(await self._write(call, HOST_CLUSTERS, host.name, spec, old, host_message(old).etag))

    async def delete_host(self, call: AdmittedCall) -> Message:
        await self._delete(call, HOST_CLUSTERS, call.request.name)
        return api.DeleteHostClusterResponse()

    # -- access keys

    async def create_key(self, call: AdmittedCall) -> Message:
        """Make a key with at most the rights of the caller. Its text is in no later response."""
        given, key = call.request.access_key, new_key()
        check_rights(call.caller, given)
        spec: Object = {
            "principal": given.principal or call.caller.user,
            "secretSha256": key.hash,
            "scopes": [{"project": each.project, "role": each.role} for each in given.scopes],
            "platformAdmin": given.platform_admin,
            **optional("description", given.description),
        }
        expires = given.expire_time.ToJsonString() if given.HasField("expire_time") else None
        limit = self._expiry_of(call.caller)
        if limit is not None and (expires is None or parse_time(expires) > parse_time(limit)):
            raise field_invalid(Violation("accessKey.expireTime", f"must not be after that of your key, {limit}"))
        if expires is not None:
            spec["expireTime"] = expires
        created = access_key_message(await self._write(call, ACCESS_KEYS, key.id, spec, None))
        return api.CreateAccessKeyResponse(access_key=created, key="" if call.request.validate_only else key.text)

    def _expiry_of(self, caller: Caller) -> str | None:
        """Return when the access key of a caller expires."""
        found = self.objects.get(ACCESS_KEYS, "", caller.credential.removeprefix("key:"))
        expires: str | None = value_at(found or {}, "spec", "expireTime")
        return expires

    def _own_key(self, call: AdmittedCall) -> Object:
        found = self.objects.get(ACCESS_KEYS, "", call.request.id)
        if found is None or not owns(call.caller, found):
            raise not_found("AccessKey", call.request.id)
        return found

    async def get_key(self, call: AdmittedCall) -> Message:
        return access_key_message(self._own_key(call))

    async def list_keys(self, call: AdmittedCall) -> Message:
        principal = call.request.principal

        def is_listed(key: Object) -> bool:
            return owns(call.caller, key) and principal in ("", key["spec"]["principal"])

        page = self._page(call, ACCESS_KEYS, is_listed)
        keys = [access_key_message(each) for each in page.items]
        return api.ListAccessKeysResponse(access_keys=keys, next_page_token=page.next_token, total_count=page.total)

    async def delete_key(self, call: AdmittedCall) -> Message:
        await self._delete(call, ACCESS_KEYS, name_of(self._own_key(call)))
        return api.DeleteAccessKeyResponse()

    # -- audit records

    async def list_records(self, call: AdmittedCall) -> Message:
        request, size = call.request, page_size(call.request.page_size)
        filters = {"method": call.method, "user": call.caller.user, "project": request.project}
        filters |= {"principal": request.principal, "of": request.method}
        position = self.pager.tokens.position(request.page_token, filters)
        found = await asyncio.to_thread(self._records, request, position.last if position is not None else None, size)
        last = found[-1] if len(found) > size else None
        token = ""
        if last is not None:
            token = self.pager.tokens.token(0, place_of(found[size - 1]), filters)
        return api.ListAuditRecordsResponse(records=map(record_message, found[:size]), next_page_token=token)

    def _records(self, request: Any, after: tuple[str, str] | None, size: int) -> list[AuditRecord]:
        """Return one record more than a page, if there is one."""
        principal, method = getattr(request, "principal", ""), getattr(request, "method", "")

        def matches(record: AuditRecord) -> bool:
            return (
                request.project in ("", record.project)
                and principal in ("", record.principal)
                and method in ("", record.method)
            )

        records = newest_first(self.audit_folder, **period_of(request), matches=matches)
        if after is not None:
            for each in records:
                if place_of(each) == tuple(after):
                    break
        return list(islice(records, size + 1))

    async def export(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        """Yield the records of a project or of all, newest first."""
        project = call.request.project
        records = newest_first(
            self.audit_folder, **period_of(call.request), matches=lambda each: project in ("", each.project)
        )
        while batch := await asyncio.to_thread(lambda: list(islice(records, EXPORT_BATCH))):
            for each in batch:
                yield record_message(each)

    async def verify_records(self, call: AdmittedCall) -> Message:  # noqa: ARG002  as above
        heads = heads_in(self.objects.get(CONFIGMAPS, SYSTEM_NAMESPACE, HEADS_CONFIG_MAP))
        found = await asyncio.to_thread(self._verify, heads)
        gaps = [
            api.AuditGap(instance=each.instance, sequence=each.last, message=problem)
            for each in found
            for problem in each.problems
        ]
        records = sum(each.records for each in found)
        return api.VerifyAuditRecordsResponse(is_complete=not gaps, records=records, gaps=gaps)

    def _verify(self, heads: Mapping[str, StoredHeads]) -> list[Verification]:
        folders = [each for each in sorted(self.audit_folder.iterdir()) if each.is_dir()]
        stored = [(each, heads.get(each.name)) for each in folders]
        return [verify(each, found.head, found.lost) if found is not None else verify(each) for each, found in stored]


def required(field: str, value: str) -> str:
    if not value:
        raise field_invalid(Violation(field, "must be set"))
    return value


def mask_of(request: Any, fields: Mapping[str, str]) -> list[str]:
    """Return the fields that an update sets. Without a mask, all. Raises ServiceError."""
    if not request.HasField("update_mask"):
        return list(fields)
    for path in request.update_mask.paths:
        if path not in fields:
            raise field_invalid(Violation("updateMask", f"{path[:200]} is not one of {', '.join(fields)}"))
    return list(request.update_mask.paths)


def fields_of(message: Any, fields: Mapping[str, str], names: Any) -> Object:
    """Return the fields of a spec that a message sets."""
    result: Object = {}
    for name in names:
        value = getattr(message, name)
        if name == "members":
            value = [{"kind": each.kind, "name": each.name, "role": each.role} for each in value]
        elif name == "labels":
            value = dict(value)
        elif name == "host_clusters":
            value = list(value)
        result[fields[name]] = value
    return result


def limit_of(name: str, text: str) -> int | str:
    if name not in COUNTS:
        return text
    if not text.isdecimal() or len(text) > 9:
        raise field_invalid(Violation(f"quota.limits.{name[:63]}", "must be a number"))
    return int(text)


def check_rights(caller: Caller, key: Any) -> None:
    """Raise ServiceError if a key had more rights than its maker."""
    is_unlimited = caller.is_platform_admin and caller.scopes is None
    if (key.platform_admin or key.principal not in ("", caller.user)) and not is_unlimited:
        raise permission_denied("CreateAccessKey", "a key of another user, or of a platform admin")
    if not key.scopes and caller.scopes is not None:
        raise permission_denied("CreateAccessKey", "a key without scopes by a key with scopes")
    for each in key.scopes:
        role = Role.__members__.get(each.role.upper(), Role.NONE)
        if role in (Role.NONE, Role.PLATFORM_ADMIN):
            raise field_invalid(Violation("accessKey.scopes.role", "must be viewer, operator, editor or admin"))
        if role > caller.role_in(each.project):
            raise permission_denied("CreateAccessKey", f"the role {each.role} in project {each.project}")


def owns(caller: Caller, key: Object) -> bool:
    is_own: bool = key["spec"]["principal"] == caller.user
    return is_own or (caller.is_platform_admin and caller.scopes is None)


def place_of(record: AuditRecord) -> tuple[str, str]:
    return record.instance, str(record.sequence)


def period_of(request: Any) -> dict[str, datetime | None]:
    times = {name: getattr(request, name) for name in ("start_time", "end_time") if request.HasField(name)}
    since, until = (times[name].ToDatetime(UTC) if name in times else None for name in ("start_time", "end_time"))
    return {"since": since, "until": until}


def record_message(record: AuditRecord) -> api.AuditRecord:
    return api.AuditRecord(
        instance=record.instance,
        sequence=record.sequence,
        previous_hash=record.previous,
        stage=record.stage,
        time=timestamp_of(record.time),
        principal=record.principal,
        authentication=record.credential,
        source_ip=record.address,
        user_agent=record.user_agent,
        method=record.method,
        resource="/".join(each for each in (record.namespace, record.name) if each),
        project=record.project,
        request_id=record.request_id,
        operation_id=record.operation,
        code=Code[record.code].number if record.code in Code.__members__ else 0,
        reason=record.reason,
        latency_micros=int(record.seconds * 1e6),
        id=record.id,
        target=record.message if record.method == PROXY_METHOD else "",
    )
