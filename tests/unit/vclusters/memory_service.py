"""A small lifecycle service in memory behind real listeners, for tests of the client and of commands."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2

from tapestry.kube.objects import object_named
from tapestry.process.addresses import Address
from tapestry.vclusters.access.roles import Caller
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Code, ServiceError, Violation, field_invalid, not_found
from tapestry.vclusters.gateway import AdmittedCall
from tapestry.vclusters.rest import serve_rest
from tapestry.vclusters.rest_routes import RPCS
from tapestry.vclusters.vcluster_kubeconfigs import plugin_of

from .gateway_world import FAST, EchoService, GatewayWorld, gateway_world

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: plane
clusters: [{name: plane, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: short-lived}}]
contexts: [{name: plane, context: {cluster: plane, user: me}}]
"""
PHASES = {
    "Create": api.PHASE_RUNNING,
    "Scale": api.PHASE_RUNNING,
    "Update": api.PHASE_RUNNING,
    "Suspend": api.PHASE_SUSPENDED,
    "Resume": api.PHASE_RUNNING,
    "Snapshot": api.PHASE_RUNNING,
    "Restore": api.PHASE_RUNNING,
    "Delete": api.PHASE_UNSPECIFIED,
}


@dataclass
class MemoryService(EchoService):
    """Virtual clusters in memory. An operation ends at the second look at it, and fails if `failure` is set."""

    clusters: dict[str, api.VCluster] = field(default_factory=dict)
    operations: dict[str, api.Operation] = field(default_factory=dict)
    snapshots: dict[str, api.Snapshot] = field(default_factory=dict)
    stored: dict[str, Message] = field(default_factory=dict)
    """Projects, quotas, host clusters and access keys, by kind and name."""
    events: list[api.WatchVClusterResponse] = field(default_factory=list)
    failure: str = ""
    unavailable: int = 0
    """Number of requests that fail before the next success."""
    effects: dict[str, Message] = field(default_factory=dict)
    """Response to each request id."""

    def project_of(self, method: str, request: Message) -> str | None:
        fields = request.DESCRIPTOR.fields_by_name
        if "namespace" in fields and getattr(request, "namespace", ""):
            return super().project_of(method, request)
        return ""

    async def call(self, call: AdmittedCall) -> Message:
        self.calls.append(call)
        if self.unavailable:
            self.unavailable -= 1
            raise ServiceError(Code.UNAVAILABLE, "UNAVAILABLE", "starting")
        if self.error is not None:
            raise self.error
        request_id = getattr(call.request, "request_id", "")
        if request_id in self.effects:
            return self.effects[request_id]
        handle = getattr(self, call.method.removesuffix("VCluster").lower(), None)
        response = await handle(call) if handle else self.object_call(call)
        for each in (*getattr(response, "vclusters", ()), *filter(None, [getattr(response, "vcluster", None)])):
            each.etag = hashlib.sha256(each.SerializeToString(deterministic=True)).hexdigest()
        if request_id:
            self.effects[request_id] = response
        return response

    # -- virtual clusters

    def cluster(self, request: Message) -> api.VCluster:
        found = self.clusters.get(request.name)
        if found is None:
            raise not_found("VCluster", request.name)
        return found

    async def get(self, call: AdmittedCall) -> Message:
        return api.GetVClusterResponse(vcluster=self.cluster(call.request))

    async def listvclusters(self, call: AdmittedCall) -> Message:
        """Return pages of two."""
        begin = int(call.request.page_token or 0)
        names = sorted(self.clusters)
        page = [self.clusters[each] for each in names[begin : begin + 2]]
        token = str(begin + 2) if begin + 2 < len(names) else ""
        return api.ListVClustersResponse(vclusters=page, next_page_token=token)

    async def create(self, call: AdmittedCall) -> Message:
        given = call.request
        made = api.VCluster(name=given.name, namespace=given.namespace, spec=given.spec, labels=given.labels)
        made.status.phase, made.owner, made.id = api.PHASE_CREATING, call.caller.user, f"id-{given.name}"
        made.resource_version = "1"
        if given.validate_only:
            return api.CreateVClusterResponse(vcluster=made)
        self.clusters[made.name] = made
        return api.CreateVClusterResponse(vcluster=made, operation_id=self.operation("Create", made, call.caller))

    async def update(self, call: AdmittedCall) -> Message:
        given, changed = call.request, api.VCluster()
        changed.CopyFrom(self.cluster(given))
        if "spec.distro" in given.update_mask.paths:
            raise field_invalid(Violation("spec.distro", "is immutable"))
        given.update_mask.MergeMessage(api.VCluster(spec=given.spec, labels=given.labels), changed, True, True)
        if given.validate_only:
            return api.UpdateVClusterResponse(vcluster=changed)
        self.clusters[given.name] = changed
        return api.UpdateVClusterResponse(vcluster=changed, operation_id=self.operation("Update", changed, call.caller))

    async def scale(self, call: AdmittedCall) -> Message:
        found = self.cluster(call.request)
        found.spec.resources.MergeFrom(call.request.resources)
        return api.ScaleVClusterResponse(vcluster=found, operation_id=self.operation("Scale", found, call.caller))

    async def suspend(self, call: AdmittedCall) -> Message:
        found = self.cluster(call.request)
        return api.SuspendVClusterResponse(vcluster=found, operation_id=self.operation("Suspend", found, call.caller))

    async def resume(self, call: AdmittedCall) -> Message:
        found = self.cluster(call.request)
        return api.ResumeVClusterResponse(vcluster=found, operation_id=self.operation("Resume", found, call.caller))

    async def snapshot(self, call: AdmittedCall) -> Message:
        """Return the snapshot without its id, which the operation has."""
        found = self.cluster(call.request)
        made = api.Snapshot(name=call.request.snapshot_name, vcluster_name=found.name)
        id, operation = f"snap-{len(self.snapshots)}", self.operation("Snapshot", found, call.caller)
        self.operations[operation].snapshot_id = id
        self.snapshots[id] = api.Snapshot(id=id, name=made.name, vcluster_name=found.name, status=2)
        return api.SnapshotVClusterResponse(snapshot=made, operation_id=operation)

    async def restore(self, call: AdmittedCall) -> Message:
        found = self.cluster(call.request)
        return api.RestoreVClusterResponse(vcluster=found, operation_id=self.operation("Restore", found, call.caller))

    async def delete(self, call: AdmittedCall) -> Message:
        found = self.cluster(call.request)
        return api.DeleteVClusterResponse(operation_id=self.operation("Delete", found, call.caller))

    async def getvclusterkubeconfig(self, call: AdmittedCall) -> Message:
        self.cluster(call.request)
        text = KUBECONFIG
        if call.request.format == "exec":
            text = text.replace(
                "{token: short-lived}",
                json.dumps({"exec": plugin_of(object_named(call.request.name, call.request.namespace))}),
            )
        response = api.GetVClusterKubeconfigResponse(kubeconfig=base64.b64encode(text.encode()).decode())
        response.expires_at.FromDatetime(datetime.now(UTC) + timedelta(hours=call.request.validity_hours or 24))
        return response

    async def getsnapshot(self, call: AdmittedCall) -> Message:
        return api.GetSnapshotResponse(snapshot=self.snapshots[call.request.id])

    async def listsnapshots(self, call: AdmittedCall) -> Message:
        return api.ListSnapshotsResponse(snapshots=self.snapshots.values())

    # -- operations

    def operation(self, verb: str, cluster: api.VCluster, caller: Caller) -> str:
        made = api.Operation(id=f"op-{len(self.operations)}", verb=verb, vcluster_name=cluster.name)
        made.namespace, made.requested_by = cluster.namespace, caller.user
        made.steps.add(name="CheckHost", state="Running")
        self.operations[made.id] = made
        return made.id

    async def getoperation(self, call: AdmittedCall) -> Message:
        if call.request.id not in self.operations:
            raise not_found("Operation", call.request.id)
        return self.operations[call.request.id]

    async def listoperations(self, call: AdmittedCall) -> Message:
        return api.ListOperationsResponse(operations=self.operations.values())

    async def waitoperation(self, call: AdmittedCall) -> Message:
        found = self.operations[call.request.id]
        before = api.Operation()
        before.CopyFrom(found)
        self.end(found)
        return before

    def end(self, operation: api.Operation) -> None:
        if operation.done:
            return
        operation.done, operation.progress_percent = True, 100
        operation.steps[0].state = "Failed" if self.failure else "Done"
        cluster = self.clusters[operation.vcluster_name]
        if self.failure:
            operation.error.code, operation.error.message = code_pb2.INTERNAL, self.failure
            operation.error.reason = "STEP_FAILED"
            cluster.status.phase = api.PHASE_ERROR
            return
        cluster.status.phase = PHASES[operation.verb]
        if operation.verb == "Delete":
            del self.clusters[operation.vcluster_name]

    # -- other objects

    def object_call(self, call: AdmittedCall) -> Message:
        """Create, get, list, change or delete an object of a kind that only has fields."""
        verb = next(
            each
            for each in ("Create", "Get", "List", "Update", "Delete", "Cancel", "Verify")
            if call.method.startswith(each)
        )
        kind = call.method.removeprefix(verb).removesuffix("s").lower()
        response = GetMessageClass(RPCS[call.method].output_type)()
        request = call.request
        objects = [each for each in request.DESCRIPTOR.fields if each.message_type is not None]
        if verb == "Verify":
            return self.stored["verification"]
        if verb in ("Create", "Update") and objects:
            given = getattr(request, objects[0].name)
            name = getattr(given, "name", "") or getattr(given, "project", "") or "key-1"
            self.stored[f"{kind}/{name}"] = given
            target = getattr(response, objects[0].name, response)
            target.CopyFrom(given)
            if kind == "accesskey":
                response.key = "tap_secret"
        elif verb == "List":
            items = next((each for each in response.DESCRIPTOR.fields if each.is_repeated), None)
            found = [each for key, each in self.stored.items() if key.startswith(f"{kind}/")]
            getattr(response, items.name).extend(found)
        elif verb == "Get":
            name = getattr(request, "name", "") or getattr(request, "project", "") or getattr(request, "id", "")
            if f"{kind}/{name}" not in self.stored:
                raise not_found(kind, name)
            response.CopyFrom(self.stored[f"{kind}/{name}"])
        return response

    async def stream(self, call: AdmittedCall) -> AsyncGenerator[Message, None]:
        self.calls.append(call)
        if call.method == "ExportAuditRecords":
            yield api.AuditRecord(method="CreateVCluster", principal="alice", sequence=1)
            return
        begin = int(call.request.resource_version or 0)
        for event in self.events:
            if int(event.vcluster.resource_version) > begin:
                yield event
                if event.vcluster.annotations.get("test") == "disconnect":
                    raise ServiceError(Code.UNAVAILABLE, "UNAVAILABLE", "restarting")
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[GatewayWorld, MemoryService, str]]:
    """Serve REST with an empty MemoryService, and yield its URL."""
    service = MemoryService()
    async with gateway_world(folder, service) as world:
        world.gateway.address_rate = FAST
        world.gateway.rates = dict.fromkeys(world.gateway.rates, FAST)
        async with serve_rest(world.gateway, Address("127.0.0.1", 0), None) as address:
            yield world, service, f"http://{address}"
