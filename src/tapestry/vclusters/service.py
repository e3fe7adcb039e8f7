"""The methods of the contract that change virtual clusters.

Writes go to the management API in the name of the caller, whom the gateway has authorized, and its admission decides
about them as about those of kubectl. A write says what is desired, and which operation is to bring it about. The
orchestrator does the rest.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from google.protobuf import json_format
from google.protobuf.message import Message

from tapestry.apis.operations import OPERATIONS, SNAPSHOTS
from tapestry.apis.vclusters import VCLUSTERS, Phase, Verb
from tapestry.client.client import Client
from tapestry.kube.errors import AlreadyExists, ApiError, Conflict
from tapestry.kube.objects import Object, object_named, uid_of, value_at
from tapestry.kube.resources import NAMESPACES
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.api_errors import service_error
from tapestry.vclusters.errors import (
    Code,
    ServiceError,
    Violation,
    etag_mismatch,
    field_invalid,
    not_found,
    request_id_reused,
)
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import (
    VClusterMessages,
    current_operation,
    optional,
    spec_fields,
    timestamp_of,
    vcluster_message,
)
from tapestry.vclusters.operation_service import MAX_ATTEMPTS, wait_seconds
from tapestry.vclusters.operations import operation_id, request_digest, snapshot_id
from tapestry.vclusters.pages import is_visible
from tapestry.vclusters.spec_updates import DESIRED_FIELDS, mask_of, updated_spec
from tapestry.vclusters.stored_objects import StoredObjects, project_in
from tapestry.vclusters.vcluster_reads import find_vcluster, found_vcluster

DEFAULT_PROJECT = "default"
"""Project of a virtual cluster whose request names none, in a namespace that belongs to none."""
READY_PHASES = frozenset({Phase.RUNNING, Phase.ERROR})
NOT_ARGUMENTS = ("name", "namespace", "validateOnly", "etag", "requestId", "resources", "replicas")
VERBS: Mapping[str, Verb] = {f"{each.value}VCluster": each for each in Verb}


@dataclass(frozen=True)
class VClusterService:
    client: Callable[[Caller], Client]
    """Client of the management API in the name of a caller."""
    objects: StoredObjects
    now: Callable[[], datetime]
    messages: VClusterMessages

    def methods(self) -> Mapping[str, Respond]:
        return {
            "CreateVCluster": self.create,
            "UpdateVCluster": self.update,
            "DeleteVCluster": self.delete,
            "ScaleVCluster": self.scale,
            "SuspendVCluster": self.suspend,
            "ResumeVCluster": self.resume,
            "SnapshotVCluster": self.snapshot,
            "RestoreVCluster": self.restore,
        }

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        if method == "CreateVCluster":
            claimed = self._project_of_namespace(request.namespace)
            if claimed and request.project not in ("", claimed):
                return None
            return claimed or request.project or DEFAULT_PROJECT
        vcluster = find_vcluster(self.objects, request)
        return project_in(vcluster) if vcluster is not None else self._project_of_ended(method, request)

    def _project_of_namespace(self, namespace: str) -> str:
        return next((project_in(each) or "" for each in self.objects.heads(VCLUSTERS, namespace)), "")

    def _project_of_ended(self, method: str, request: Any) -> str | None:
        """Return the project of a request that may be a repeated one, about a virtual cluster that is gone."""
        request_id = getattr(request, "request_id", "")
        for each in self.objects.all(OPERATIONS, request.namespace) if request_id and method in VERBS else ():
            spec = each["spec"]
            if (spec["vcluster"], spec.get("requestId")) == (request.name, request_id):
                return project_in(each)
        return None

    async def create(self, call: AdmittedCall) -> Message:
        request = call.request
        if not request.namespace or not request.name:
            raise field_invalid(Violation("name", "a virtual cluster needs a name and a namespace"))
        spec: Object = {
            **spec_fields(request.spec),
            "deletionProtection": request.deletion_protection,
            **optional("hostCluster", request.host_cluster),
            **optional("engine", request.engine),
        }
        if request.HasField("expire_time"):
            spec["expireTime"] = request.expire_time.ToJsonString()
        metadata = {"labels": dict(request.labels), "annotations": dict(request.annotations)}
        operation = self._operation(call, Verb.CREATE, {})
        vcluster = await self._create(
            call, request.namespace, request.name, {"metadata": metadata, "spec": spec}, operation
        )
        if request.wait_for_ready and not request.validate_only:
            uid = uid_of(vcluster)
            await self.objects.wait_until(VCLUSTERS, vcluster, lambda each: is_ready(each, uid), wait_seconds(call))
            vcluster = self.objects.get(VCLUSTERS, request.namespace, request.name) or vcluster
        id = "" if request.validate_only else operation["id"]
        return api.CreateVClusterResponse(vcluster=self._written(vcluster), operation_id=id)

    async def _create(
        self, call: AdmittedCall, namespace: str, name: str, content: Object, operation: Object
    ) -> Object:
        """Create a virtual cluster, and its namespace if needed. A repeated request returns the first one.

        A create that is rejected leaves no namespace: a dry run comes before that of the namespace.
        """
        client, is_dry_run = self.client(call.caller), call.request.validate_only
        named = object_named(name, namespace)
        spec = {**content["spec"], "project": call.project, "operation": operation}
        body = {**named, "metadata": {**content.get("metadata", {}), **named["metadata"]}, "spec": spec}
        made = None
        with reported("VCluster", name):
            try:
                if self.objects.get(NAMESPACES, "", namespace) is None:
                    checked = await client.create(VCLUSTERS, body, dry_run=True)
                    made = await self._create_namespace(client, namespace, is_dry_run=is_dry_run)
                    if is_dry_run:
                        return checked
                return await client.create(VCLUSTERS, body, dry_run=is_dry_run)
            except AlreadyExists:
                found = self.objects.head(VCLUSTERS, namespace, name)
                if found is not None and self._is_repeated(found, operation):
                    return found
                if found is not None and not is_visible(call.caller, found):
                    raise not_found("Namespace", namespace) from None
                raise
            except ApiError:
                if made is not None:
                    with suppress(ApiError):  # it has other virtual clusters by now
                        await client.delete(NAMESPACES, made)
                raise

    async def _create_namespace(self, client: Client, namespace: str, *, is_dry_run: bool) -> Object | None:
        """Return the new namespace; None if there is one already."""
        try:
            return await client.create(NAMESPACES, object_named(namespace), dry_run=is_dry_run)
        except AlreadyExists:  # by another request, whose write may be in flight
            await self.objects.wait_for_pending_write(NAMESPACES, object_named(namespace))
            return None

    async def update(self, call: AdmittedCall) -> Message:
        request = call.request
        paths = mask_of(request)

        def change(vcluster: Object) -> Object:
            result: Object = {**vcluster, "spec": updated_spec(vcluster["spec"], request, paths)}
            metadata = dict(vcluster["metadata"])
            for name in ("labels", "annotations"):
                if name in paths:
                    metadata[name] = dict(getattr(request, name))
            return {**result, "metadata": metadata}

        return api.UpdateVClusterResponse(**await self._operate(call, Verb.UPDATE, {}, change))

    async def scale(self, call: AdmittedCall) -> Message:
        request = call.request
        fields: Object = json_format.MessageToDict(request.resources)

        def change(vcluster: Object) -> Object:
            spec = dict(vcluster["spec"])
            if fields:
                spec["resources"] = {**(spec.get("resources") or {}), **fields}
            if request.replicas:
                spec["replicas"] = request.replicas
            return {**vcluster, "spec": spec}

        return api.ScaleVClusterResponse(**await self._operate(call, Verb.SCALE, {}, change))

    async def suspend(self, call: AdmittedCall) -> Message:
        arguments = arguments_of(call.request)
        return api.SuspendVClusterResponse(**await self._operate(call, Verb.SUSPEND, arguments, with_suspended(True)))

    async def resume(self, call: AdmittedCall) -> Message:
        arguments = arguments_of(call.request)
        return api.ResumeVClusterResponse(**await self._operate(call, Verb.RESUME, arguments, with_suspended(False)))

    async def snapshot(self, call: AdmittedCall) -> Message:
        request = call.request
        result = await self._operate(call, Verb.SNAPSHOT, arguments_of(request), unchanged)
        vcluster = result["vcluster"]
        id = result["operation_id"]
        snapshot = api.Snapshot(
            id=snapshot_id(id) if id else "",
            name=request.snapshot_name,
            vcluster_id=vcluster.id,
            vcluster_name=vcluster.name,
            namespace=vcluster.namespace,
            status="SNAPSHOT_STATUS_CREATING",
            description=request.description,
            labels=request.labels,
        )
        return api.SnapshotVClusterResponse(snapshot=snapshot, operation_id=id)

    async def restore(self, call: AdmittedCall) -> Message:
        request = call.request
        found = self.objects.named(SNAPSHOTS, request.snapshot_id) if request.snapshot_id else []
        if not any(project_in(each) == call.project for each in found):
            raise not_found("Snapshot", request.snapshot_id)
        arguments = arguments_of(request)
        if not request.create_new:
            return api.RestoreVClusterResponse(**await self._operate(call, Verb.RESTORE, arguments, unchanged))
        if not request.new_name:
            raise field_invalid(Violation("newName", "a new virtual cluster needs a name"))
        before, carried = (
            found_vcluster(self.objects, request)["spec"],
            DESIRED_FIELDS - {"ingress"},
        )  # its host name is unique
        spec = {key: value for key, value in before.items() if key in carried}
        operation = self._operation(call, Verb.RESTORE, arguments)
        namespace = request.new_namespace or request.namespace
        vcluster = await self._create(call, namespace, request.new_name, {"spec": spec}, operation)
        id = "" if request.validate_only else operation["id"]
        return api.RestoreVClusterResponse(vcluster=self._written(vcluster), operation_id=id)

    async def delete(self, call: AdmittedCall) -> Message:
        request = call.request
        operation = self._operation(call, Verb.DELETE, arguments_of(request))
        try:
            result = await self._operate(call, Verb.DELETE, {}, unchanged, operation)
        except ServiceError as error:
            record = self._record_of(operation)
            if error.code is not Code.NOT_FOUND or record is None:
                raise
            started = value_at(record, "status", "startTime")
            return api.DeleteVClusterResponse(operation_id=operation["id"], delete_time=timestamp_of(started))
        deleted = result["vcluster"].delete_time
        time = deleted if result["vcluster"].HasField("delete_time") else timestamp_of(self.now())
        return api.DeleteVClusterResponse(operation_id=result["operation_id"], delete_time=time)

    async def _operate(
        self,
        call: AdmittedCall,
        verb: Verb,
        arguments: Object,
        change: Callable[[Object], Object],
        operation: Object | None = None,
    ) -> dict[str, Any]:
        """Write the desired state with the operation that brings it about. Raises ServiceError.

        Without a change of the desired state, an update needs no operation.
        """
        request, name = call.request, call.request.name
        operation = operation or self._operation(call, verb, arguments)
        id = "" if request.validate_only else operation["id"]
        with reported("VCluster", name):
            for _ in range(MAX_ATTEMPTS):
                vcluster = self.objects.head(VCLUSTERS, request.namespace, name)
                if vcluster is None:
                    raise not_found("VCluster", name)
                if self._is_repeated(vcluster, operation):
                    return {"vcluster": self.messages.of(vcluster), "operation_id": operation["id"]}
                if request.etag and request.etag != self._written(vcluster).etag:
                    raise etag_mismatch(name, is_header=call.incoming.is_etag_header)
                changed = change(vcluster)
                if verb is Verb.UPDATE and desired_of(changed) == desired_of(vcluster):
                    id = ""
                else:
                    changed = {**changed, "spec": {**changed["spec"], "operation": operation}}
                try:
                    written = await self.client(call.caller).replace(VCLUSTERS, changed, dry_run=request.validate_only)
                except Conflict as error:
                    if service_error(error) is not None:
                        raise
                    await self.objects.wait_for_pending_write(VCLUSTERS, vcluster)
                    continue
                return {"vcluster": self._written(written), "operation_id": id}
        raise ServiceError(Code.ABORTED, "CONCURRENT_WRITES", f"{name} is being changed by others; try again")

    def _written(self, vcluster: Object) -> api.VCluster:
        """Return the message of a response to a write. That of a dry run has the version of another state."""
        return vcluster_message(vcluster, is_compatible=self.messages.is_compatible)

    def _operation(self, call: AdmittedCall, verb: Verb, arguments: Object) -> Object:
        """Return the operation that a request asks for. A repeated request has the same one."""
        fields = json_format.MessageToDict(call.request)
        request_id = call.request.request_id or uuid4().hex
        return {
            "id": operation_id(call.caller.user, f"{verb.value}VCluster", request_id),
            "verb": verb.value,
            "principal": call.caller.user,
            "requestId": request_id,
            "requestDigest": request_digest(call.method, fields),
            **optional("arguments", arguments),
        }

    def _is_repeated(self, vcluster: Object, operation: Object) -> bool:
        """Return whether an operation was requested before. Raises ServiceError if it was another request."""
        requested, journal = value_at(vcluster, "spec", "operation"), value_at(vcluster, "status", "journal")
        record = self._record_of(operation)
        known = [each for each in (requested, journal) if each and each["id"] == operation["id"]]
        digests = [each.get("requestDigest") for each in known]
        if record is not None:
            digests.append(record["spec"].get("requestDigest"))
        if any(each != operation["requestDigest"] for each in digests):
            raise request_id_reused()
        return bool(digests)

    def _record_of(self, operation: Object) -> Object | None:
        found = self.objects.named(OPERATIONS, operation["id"])
        return found[0] if found else None


def is_ready(vcluster: Object | None, uid: str) -> bool:
    """Return whether there is nothing more to wait for after a create."""
    if vcluster is None or uid_of(vcluster) != uid:
        return True
    return value_at(vcluster, "status", "phase") in READY_PHASES and not current_operation(vcluster)


def desired_of(vcluster: Object) -> Object:
    return {key: value for key, value in vcluster["spec"].items() if key in DESIRED_FIELDS}


def unchanged(vcluster: Object) -> Object:
    return vcluster


def with_suspended(is_suspended: bool) -> Callable[[Object], Object]:
    return lambda vcluster: {**vcluster, "spec": {**vcluster["spec"], "suspended": is_suspended}}


def arguments_of(request: Message) -> Object:
    fields: Object = json_format.MessageToDict(request)
    return {key: value for key, value in fields.items() if key not in NOT_ARGUMENTS}
