"""The methods of the contract for virtual clusters, snapshots and operations.

Reads come from the store of the management API in this process. Writes go to the management API in the name of the
caller, whom the gateway has authorized, and its admission decides about them as about those of kubectl. A write says
what is desired, and which operation is to bring it about. The orchestrator does the rest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from google.protobuf import json_format
from google.protobuf.message import Message

from tapestry.apis.operations import OPERATIONS, SNAPSHOTS
from tapestry.apis.vclusters import VCLUSTERS, OperationRequest, Phase, Verb
from tapestry.apiserver.core.requests import MASTERS_GROUP, CallOrigin, User
from tapestry.apiserver.core.store import Compacted, WatchEvent
from tapestry.apiserver.serving.request_handler import RequestHandler
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.errors import AlreadyExists, ApiError, Conflict
from tapestry.kube.objects import Object, labels_of, name_of, namespace_of, object_named, uid_of, value_at, version_of
from tapestry.kube.resources import NAMESPACES
from tapestry.kube.selectors import LabelSelector, SelectorError, parse_label_selector
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import (
    Code,
    ServiceError,
    Violation,
    etag_mismatch,
    field_invalid,
    not_found,
    phase_not_allowed,
    precondition_failed,
    request_id_reused,
    resource_version_expired,
    unavailable,
)
from tapestry.vclusters.gateway import AdmittedCall
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import (
    VClusterMessages,
    current_operation,
    ended_operation,
    phase_number,
    running_operation,
    snapshot_message,
    spec_fields,
    timestamp_of,
    vcluster_message,
    waiting_operation,
)
from tapestry.vclusters.operations import operation_id, request_digest, snapshot_id
from tapestry.vclusters.orchestrator import journal_of, waiting_request
from tapestry.vclusters.pages import Pager
from tapestry.vclusters.policy import service_error
from tapestry.vclusters.spec_updates import DESIRED_FIELDS, mask_of, updated_spec
from tapestry.vclusters.stored_objects import StoredObjects
from tapestry.vclusters.vcluster_kubeconfigs import VClusterKubeconfigs

DEFAULT_PROJECT = "default"
"""Project of a virtual cluster whose request names none, in a namespace that belongs to none."""
MAX_ATTEMPTS = 20
"""Attempts to write an object that others write at the same time."""
DEFAULT_WAIT_SECONDS = 300
MAX_WAIT_SECONDS = 3600
DEFAULT_KUBECONFIG_HOURS = 24
MAX_KUBECONFIG_HOURS = 30 * 24
KUBECONFIG_FORMATS = ("", "default", "token")
READY_PHASES = frozenset({Phase.RUNNING, Phase.ERROR})
NOT_ARGUMENTS = ("name", "namespace", "validateOnly", "etag", "requestId", "resources", "replicas")
VERBS: Mapping[str, Verb] = {f"{each.value}VCluster": each for each in Verb}
Respond = Callable[[AdmittedCall], Any]


@dataclass(frozen=True)
class VClusterService:
    """Virtual clusters, snapshots and operations."""

    handler: RequestHandler
    """The management API."""
    objects: StoredObjects
    pager: Pager
    kubeconfigs: VClusterKubeconfigs
    now: Callable[[], datetime]
    messages: VClusterMessages = field(default_factory=VClusterMessages)

    def methods(self) -> Mapping[str, Respond]:
        return {
            "CreateVCluster": self.create,
            "GetVCluster": self.get,
            "ListVClusters": self.list,
            "UpdateVCluster": self.update,
            "DeleteVCluster": self.delete,
            "ScaleVCluster": self.scale,
            "SuspendVCluster": self.suspend,
            "ResumeVCluster": self.resume,
            "SnapshotVCluster": self.snapshot,
            "RestoreVCluster": self.restore,
            "GetVClusterKubeconfig": self.kubeconfig,
            "ListSnapshots": self.list_snapshots,
            "GetSnapshot": self.get_snapshot,
            "DeleteSnapshot": self.delete_snapshot,
            "GetOperation": self.get_operation,
            "ListOperations": self.list_operations,
            "WaitOperation": self.wait_operation,
            "CancelOperation": self.cancel_operation,
            "DeleteOperation": self.delete_operation,
        }

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        if method == "CreateVCluster":
            claimed = self._project_of_namespace(request.namespace)
            if claimed and request.project not in ("", claimed):
                return None
            return claimed or request.project or DEFAULT_PROJECT
        if method in ("ListVClusters", "ListOperations"):
            project: str = request.project
            return project
        if method in ("WatchVCluster", "ListSnapshots"):
            return ""
        if method in ("GetSnapshot", "DeleteSnapshot"):
            return project_in(self._find_snapshot(request))
        if method.endswith("Operation"):
            found = self._find_operation(request.id)
            return found.project if found is not None else None
        vcluster = self._find(request)
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

    # -- reads of virtual clusters

    def _find(self, request: Any) -> Object | None:
        if id := getattr(request, "id", ""):
            return self.objects.with_uid(VCLUSTERS, id)
        return self.objects.get(VCLUSTERS, request.namespace, request.name)

    def _found(self, request: Any) -> Object:
        found = self._find(request)
        if found is None:
            raise not_found("VCluster", request.name)
        return found

    async def get(self, call: AdmittedCall) -> Message:
        vcluster = self._found(call.request)
        if not call.request.include_kubeconfig:
            return api.GetVClusterResponse(vcluster=self.messages.of(vcluster))
        issued = await self._issue(call, vcluster, DEFAULT_KUBECONFIG_HOURS)
        response = api.GetVClusterResponse(vcluster=self.messages.of(vcluster))
        response.vcluster.status.kubeconfig = issued.in_base64
        return response

    async def list(self, call: AdmittedCall) -> Message:
        request, caller = call.request, call.caller
        selector = selector_of(request.label_selector)
        phases = frozenset(request.phases)

        checks: list[Callable[[Object], bool]] = [lambda each: is_visible(caller, each)]
        if request.project:
            checks.append(lambda each: project_in(each) == request.project)
        if request.owner:
            checks.append(lambda each: value_at(each, "spec", "owner") == request.owner)
        if phases:
            checks.append(lambda each: self._phase(each) in phases)
        if request.label_selector:
            checks.append(lambda each: selector.matches(labels_of(each)))

        def list_at(revision: int) -> list[Object]:
            found = self.objects.at_revision(VCLUSTERS, request.namespace, revision)
            for check in checks:
                found = list(filter(check, found))
            return found

        filters = {
            "method": call.method,
            "user": caller.user,
            "namespace": request.namespace,
            "labels": request.label_selector,
            "phases": sorted(phases),
            "owner": request.owner,
            "project": request.project,
        }
        page = self.pager.page(request, self.objects.revision, list_at, filters, request.order_by)
        return api.ListVClustersResponse(
            vclusters=[self.messages.of(each) for each in page.items],
            next_page_token=page.next_token,
            total_count=page.total,
        )

    def _phase(self, vcluster: Object) -> int:
        phase = value_at(vcluster, "status", "phase")
        number: int = phase_number(phase, is_compatible=self.messages.is_compatible)
        return number

    async def watch(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        """Yield all virtual clusters that match, or those that have changed since a version, and all later changes."""
        request, store = call.request, self.objects.store
        selector = selector_of(request.label_selector)

        def matches(vcluster: Object | None) -> bool:
            return (
                vcluster is not None
                and is_visible(call.caller, vcluster)
                and request.name in ("", name_of(vcluster))
                and selector.matches(labels_of(vcluster))
            )

        after = version_in(request.resource_version, self.objects.revision)
        existing = self.objects.all(VCLUSTERS, request.namespace) if not request.resource_version else []
        try:
            subscription = store.watch(VCLUSTERS.name, request.namespace, after=after)
        except Compacted as error:
            raise resource_version_expired(error.oldest) from error
        try:
            for each in existing:
                if matches(each):
                    yield api.WatchVClusterResponse(type="WATCH_EVENT_TYPE_ADDED", vcluster=self.messages.of(each))
            while True:
                for event in await subscription.next_events():
                    if (response := self._watch_response(event, matches)) is not None:
                        yield response
                if subscription.dropped:
                    raise resource_version_expired(self.objects.revision)
                if subscription.is_finished:
                    raise unavailable("the service is stopping; watch again from the last version")
        finally:
            store.unwatch(VCLUSTERS.name, subscription)

    def _watch_response(self, event: WatchEvent, matches: Callable[[Object | None], bool]) -> Message | None:
        old = self.objects.decoded(event.old) if event.old is not None else None
        new = self.objects.decoded(event.new) if event.new is not None else None
        was, is_now = matches(old), matches(new)
        if is_now and new is not None:
            type = "WATCH_EVENT_TYPE_MODIFIED" if was else "WATCH_EVENT_TYPE_ADDED"
            return api.WatchVClusterResponse(type=type, vcluster=self.messages.of(new))
        if not was or old is None:
            return None
        last = api.VCluster()
        last.CopyFrom(self.messages.of(old))
        last.resource_version = str(event.revision)
        return api.WatchVClusterResponse(type="WATCH_EVENT_TYPE_DELETED", vcluster=last)

    async def kubeconfig(self, call: AdmittedCall) -> Message:
        request = call.request
        if request.format not in KUBECONFIG_FORMATS:
            raise field_invalid(Violation("format", "must be default or token"))
        hours = request.validity_hours or DEFAULT_KUBECONFIG_HOURS
        if not 0 < hours <= MAX_KUBECONFIG_HOURS:
            raise field_invalid(Violation("validityHours", f"must be from 1 to {MAX_KUBECONFIG_HOURS}"))
        issued = await self._issue(call, self._found(request), hours)
        return api.GetVClusterKubeconfigResponse(
            kubeconfig=issued.in_base64,
            api_server_endpoint=issued.server,
            expires_at=timestamp_of(issued.expires),
        )

    async def _issue(self, call: AdmittedCall, vcluster: Object, hours: int) -> Any:
        phase = value_at(vcluster, "status", "phase") or Phase.PENDING
        if phase in (Phase.PENDING, Phase.SUSPENDED, Phase.DELETING):
            raise phase_not_allowed(name_of(vcluster), "GetKubeconfig", Phase(phase), [Phase.RUNNING])
        with reported("VCluster", name_of(vcluster)):
            return await self.kubeconfigs.issue(vcluster, call.caller, timedelta(hours=hours))

    # -- writes of virtual clusters

    def client(self, caller: Caller) -> Client:
        """Return a client of the management API for a caller whom the gateway has authorized."""
        user = User(caller.user, (MASTERS_GROUP,))
        return Client(InProcessTransport(self.handler, user, CallOrigin.SERVICE))

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
            seconds = request.timeout_seconds or DEFAULT_WAIT_SECONDS
            await self._until(vcluster, lambda each: is_ready(each, uid_of(vcluster)), seconds, call)
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
        spec = {key: value for key, value in self._found(request)["spec"].items() if key in DESIRED_FIELDS}
        operation = self._operation(call, Verb.RESTORE, arguments)
        namespace = request.new_namespace or request.namespace
        vcluster = await self._create(call, namespace, request.new_name, {"spec": spec}, operation)
        id = "" if request.validate_only else operation["id"]
        return api.RestoreVClusterResponse(vcluster=self._written(vcluster), operation_id=id)

    async def delete(self, call: AdmittedCall) -> Message:
        request = call.request
        operation = self._operation(call, Verb.DELETE, arguments_of(request))
        if self._find(request) is None:
            record = self._record_of(operation)
            if record is None:
                raise not_found("VCluster", request.name)
            started = value_at(record, "status", "startTime")
            return api.DeleteVClusterResponse(operation_id=operation["id"], delete_time=timestamp_of(started))
        result = await self._operate(call, Verb.DELETE, {}, unchanged, operation)
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

    async def _until(
        self, vcluster: Object, is_reached: Callable[[Object | None], bool], seconds: float, call: AdmittedCall
    ) -> None:
        """Wait until a virtual cluster is as desired. Return at the end of the time, too."""
        store, namespace, name = self.objects.store, namespace_of(vcluster) or "", name_of(vcluster)
        limits = [seconds, MAX_WAIT_SECONDS, *([call.incoming.timeout * 0.9] if call.incoming.timeout else [])]
        await store.wait_for_revision(int(version_of(vcluster) or 0), min(limits))
        subscription = store.watch(VCLUSTERS.name, namespace, name)
        try:
            async with asyncio.timeout(min(limits)):
                while not is_reached(self.objects.get(VCLUSTERS, namespace, name)):
                    await subscription.next_events()
                    if subscription.dropped or subscription.is_finished:
                        return
        except TimeoutError:
            return
        finally:
            store.unwatch(VCLUSTERS.name, subscription)

    # -- snapshots

    def _find_snapshot(self, request: Any) -> Object | None:
        if request.id:
            return next(iter(self.objects.named(SNAPSHOTS, request.id)), None)
        namespace = getattr(request, "namespace", "")  # a deletion needs the id
        names = self.objects.all(SNAPSHOTS, namespace) if namespace else []
        return next((each for each in names if value_at(each, "spec", "displayName") == request.name), None)

    async def get_snapshot(self, call: AdmittedCall) -> Message:
        found = self._find_snapshot(call.request)
        if found is None:
            raise not_found("Snapshot", call.request.id)
        return api.GetSnapshotResponse(snapshot=snapshot_message(found))

    async def list_snapshots(self, call: AdmittedCall) -> Message:
        request = call.request
        selector = selector_of(request.label_selector)

        def list_at(revision: int) -> list[Object]:
            return [
                each
                for each in self.objects.at_revision(SNAPSHOTS, request.namespace, revision)
                if is_visible(call.caller, each)
                and request.vcluster_name in ("", each["spec"]["vcluster"])
                and selector.matches(labels_of(each))
            ]

        filters = {"method": call.method, "user": call.caller.user, "namespace": request.namespace}
        filters |= {"vcluster": request.vcluster_name, "labels": request.label_selector}
        page = self.pager.page(request, self.objects.revision, list_at, filters, "-create_time")
        return api.ListSnapshotsResponse(
            snapshots=[snapshot_message(each) for each in page.items],
            next_page_token=page.next_token,
            total_count=page.total,
        )

    async def delete_snapshot(self, call: AdmittedCall) -> Message:
        request = call.request
        found = next(iter(self.objects.named(SNAPSHOTS, request.id)), None)
        if found is None:
            raise not_found("Snapshot", request.id)
        if request.etag and request.etag != snapshot_message(found).etag:
            raise etag_mismatch(request.id, is_header=call.incoming.is_etag_header)
        with reported("Snapshot", request.id):
            await self.client(call.caller).delete(SNAPSHOTS, found, dry_run=request.validate_only)
        return api.DeleteSnapshotResponse(delete_time=timestamp_of(self.now()))

    # -- operations

    def _find_operation(self, id: str) -> api.Operation | None:
        """Return an operation: running and waiting ones are in their virtual clusters, others have a record.

        A record is written shortly before the result, so an operation has not ended while it is in a journal.
        """
        if not id:
            return None
        record = next(iter(self.objects.named(OPERATIONS, id)), None)
        if record is not None:
            vcluster = self.objects.get(VCLUSTERS, namespace_of(record) or "", record["spec"]["vcluster"])
            journal = journal_of(vcluster) if vcluster is not None else None
            if vcluster is not None and journal is not None and journal.id == id:
                return running_operation(vcluster, journal)
            return ended_operation(record)
        found = (each for each in self.objects.all(VCLUSTERS) if id in operation_ids(each))
        return next((each for vcluster in found for each in current_operations(vcluster) if each.id == id), None)

    def _found_operation(self, id: str) -> api.Operation:
        found = self._find_operation(id)
        if found is None:
            raise not_found("Operation", id)
        return found

    async def get_operation(self, call: AdmittedCall) -> Message:
        return self._found_operation(call.request.id)

    async def list_operations(self, call: AdmittedCall) -> Message:
        request, found = call.request, {}

        def list_at(revision: int) -> list[Object]:
            vclusters = self.objects.at_revision(VCLUSTERS, request.namespace, revision)
            current = [each for vcluster in vclusters for each in current_operations(vcluster)]
            running = {value_at(vcluster, "status", "journal", "id") for vcluster in vclusters}
            records = self.objects.at_revision(OPERATIONS, request.namespace, revision)
            ended = [each for each in records if name_of(each) not in running]
            known = {name_of(each) for each in ended}
            messages = [*map(ended_operation, ended), *(each for each in current if each.id not in known)]
            found.update({each.id: each for each in messages if is_listed(each)})
            return [operation_key(each) for each in found.values()]

        def is_listed(operation: api.Operation) -> bool:
            return (
                call.caller.role_in(operation.project) >= Role.VIEWER
                and request.vcluster_name in ("", operation.vcluster_name)
                and request.project in ("", operation.project)
            )

        filters = {"method": call.method, "user": call.caller.user, "namespace": request.namespace}
        filters |= {"vcluster": request.vcluster_name, "project": request.project}
        page = self.pager.page(request, self.objects.revision, list_at, filters, "-create_time")
        return api.ListOperationsResponse(
            operations=[found[name_of(each)] for each in page.items],
            next_page_token=page.next_token,
            total_count=page.total,
        )

    async def wait_operation(self, call: AdmittedCall) -> Message:
        request, found = call.request, self._found_operation(call.request.id)
        vcluster = self.objects.with_uid(VCLUSTERS, found.vcluster_id)
        if found.done or vcluster is None:
            return found
        seconds = request.timeout_seconds or DEFAULT_WAIT_SECONDS
        await self._until(vcluster, lambda each: each is None or request.id not in operation_ids(each), seconds, call)
        return self._find_operation(request.id) or found

    async def cancel_operation(self, call: AdmittedCall) -> Message:
        id = call.request.id
        for _ in range(MAX_ATTEMPTS):
            found = self._found_operation(id)
            vcluster = self.objects.with_uid(VCLUSTERS, found.vcluster_id)
            if found.done or found.cancel_requested or vcluster is None:
                return found
            if value_at(vcluster, "spec", "operation", "id") != id:
                raise precondition_failed("NOT_CANCELLABLE", id, "another operation waits for it already")
            operation = {**vcluster["spec"]["operation"], "cancelled": True}
            cancelled = {**vcluster, "spec": {**vcluster["spec"], "operation": operation}}
            with reported("Operation", id):
                try:
                    client = self.client(call.caller)
                    await client.replace(VCLUSTERS, cancelled, dry_run=call.request.validate_only)
                except Conflict as error:
                    if service_error(error) is not None:
                        raise
                    await self.objects.wait_for_pending_write(VCLUSTERS, vcluster)
                    continue
            return self._find_operation(id) or found
        raise ServiceError(Code.ABORTED, "CONCURRENT_WRITES", f"operation {id} is changing; try again")

    async def delete_operation(self, call: AdmittedCall) -> Message:
        id = call.request.id
        if not self._found_operation(id).done:
            raise precondition_failed("OPERATION_RUNNING", id, f"operation {id} has not ended; cancel it first")
        with reported("Operation", id):
            for each in self.objects.named(OPERATIONS, id):
                await self.client(call.caller).delete(OPERATIONS, each, dry_run=call.request.validate_only)
        return api.DeleteOperationResponse()


def project_in(obj: Object | None) -> str | None:
    """Return the project of an object; None without an object."""
    if obj is None:
        return None
    project: str = value_at(obj, "spec", "project", default="")
    return project


def is_visible(caller: Caller, obj: Object) -> bool:
    return caller.role_in(project_in(obj) or "") >= Role.VIEWER


def is_ready(vcluster: Object | None, uid: str) -> bool:
    """Return whether there is nothing more to wait for after a create."""
    if vcluster is None or uid_of(vcluster) != uid:
        return True
    return value_at(vcluster, "status", "phase") in READY_PHASES and not current_operation(vcluster)


def operation_ids(vcluster: Object) -> set[str]:
    """Return the ids of the operations of a virtual cluster that run or wait."""
    waiting, running = waiting_request(vcluster), value_at(vcluster, "status", "journal", "id")
    return {each for each in (waiting.id if waiting is not None else None, running) if each}


def current_operations(vcluster: Object) -> Iterator[api.Operation]:
    journal, waiting = journal_of(vcluster), waiting_request(vcluster)
    if journal is not None:
        yield running_operation(vcluster, journal)
    if is_waiting_for(waiting, journal.id if journal is not None else ""):
        yield waiting_operation(vcluster)


def is_waiting_for(waiting: OperationRequest | None, running: str) -> bool:
    return waiting is not None and waiting.id != running


def operation_key(operation: api.Operation) -> Object:
    """Return an object by which an operation is sorted."""
    time = operation.create_time.ToJsonString()
    return {"metadata": {"name": operation.id, "creationTimestamp": time}}


def desired_of(vcluster: Object) -> Object:
    return {key: value for key, value in vcluster["spec"].items() if key in DESIRED_FIELDS}


def unchanged(vcluster: Object) -> Object:
    return vcluster


def with_suspended(is_suspended: bool) -> Callable[[Object], Object]:
    return lambda vcluster: {**vcluster, "spec": {**vcluster["spec"], "suspended": is_suspended}}


def optional(name: str, value: Any) -> Object:
    return {name: value} if value else {}


def arguments_of(request: Message) -> Object:
    fields: Object = json_format.MessageToDict(request)
    return {key: value for key, value in fields.items() if key not in NOT_ARGUMENTS}


def selector_of(text: str) -> LabelSelector:
    try:
        return parse_label_selector(text)
    except SelectorError as error:
        raise field_invalid(Violation("labelSelector", str(error))) from error


def version_in(text: str, current: int) -> int:
    """Return the version from which a watch continues. Raises ServiceError."""
    if not text:
        return current
    if not text.isdecimal() or len(text) > 19 or int(text) > current:
        raise field_invalid(Violation("resourceVersion", "must be that of an event or of a virtual cluster"))
    return int(text)
