"""The methods of the contract for operations: running and waiting ones in virtual clusters, and records of others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from tapestry.apis.operations import OPERATIONS
from tapestry.apis.vclusters import VCLUSTERS, OperationRequest
from tapestry.client.client import Client
from tapestry.kube.errors import Conflict
from tapestry.kube.objects import Object, name_of, namespace_of, value_at
from tapestry.vclusters.access.roles import Caller, Role
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.api_errors import service_error
from tapestry.vclusters.errors import Code, ServiceError, not_found, precondition_failed
from tapestry.vclusters.gateway import AdmittedCall, Respond
from tapestry.vclusters.management_errors import reported
from tapestry.vclusters.model import ended_operation, running_operation, waiting_operation
from tapestry.vclusters.orchestrator import journal_of, waiting_request
from tapestry.vclusters.pages import Pager
from tapestry.vclusters.stored_objects import StoredObjects

MAX_ATTEMPTS = 20
"""Attempts to write an object that others write at the same time."""
DEFAULT_WAIT_SECONDS = 300
MAX_WAIT_SECONDS = 3600


@dataclass(frozen=True)
class OperationService:
    client: Callable[[Caller], Client]
    """Client of the management API in the name of a caller."""
    objects: StoredObjects
    pager: Pager

    def methods(self) -> Mapping[str, Respond]:
        return {
            "GetOperation": self.get,
            "ListOperations": self.list,
            "WaitOperation": self.wait,
            "CancelOperation": self.cancel,
            "DeleteOperation": self.delete,
        }

    def project_of(self, method: str, request: Any) -> str | None:
        """Return the project in which a request acts: empty if in none, and None if what it names does not exist."""
        if method == "ListOperations":
            project: str = request.project
            return project
        found = self._find(request.id)
        return found.project if found is not None else None

    def _find(self, id: str) -> api.Operation | None:
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

    def _found(self, id: str) -> api.Operation:
        found = self._find(id)
        if found is None:
            raise not_found("Operation", id)
        return found

    async def get(self, call: AdmittedCall) -> Message:
        return self._found(call.request.id)

    async def list(self, call: AdmittedCall) -> Message:
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

    async def wait(self, call: AdmittedCall) -> Message:
        request, found = call.request, self._found(call.request.id)
        vcluster = self.objects.with_uid(VCLUSTERS, found.vcluster_id)
        if found.done or vcluster is None:
            return found

        def has_ended(vcluster: Object | None) -> bool:
            return vcluster is None or request.id not in operation_ids(vcluster)

        await self.objects.wait_until(VCLUSTERS, vcluster, has_ended, wait_seconds(call))
        return self._find(request.id) or found

    async def cancel(self, call: AdmittedCall) -> Message:
        id = call.request.id
        for _ in range(MAX_ATTEMPTS):
            found = self._found(id)
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
            return self._find(id) or found
        raise ServiceError(Code.ABORTED, "CONCURRENT_WRITES", f"operation {id} is changing; try again")

    async def delete(self, call: AdmittedCall) -> Message:
        id = call.request.id
        if not self._found(id).done:
            raise precondition_failed("OPERATION_RUNNING", id, f"operation {id} has not ended; cancel it first")
        with reported("Operation", id):
            for each in self.objects.named(OPERATIONS, id):
                await self.client(call.caller).delete(OPERATIONS, each, dry_run=call.request.validate_only)
        return api.DeleteOperationResponse()


def wait_seconds(call: AdmittedCall) -> float:
    """Return how long a call waits at most. Its answer must arrive before the deadline of the caller."""
    limits = [call.request.timeout_seconds or DEFAULT_WAIT_SECONDS, MAX_WAIT_SECONDS]
    return min(*limits, *([call.incoming.timeout * 0.9] if call.incoming.timeout else []))


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
