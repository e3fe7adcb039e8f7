"""Objects of the management API as messages of the contract, and specs of messages as those of objects.

A message never has a kubeconfig. Messages are cached by version, so callers must copy one before they change it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tapestry.apis.vclusters import Journal, Phase, Verb
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, namespace_of, uid_of, value_at, version_of
from tapestry.kube.times import parse_time
from tapestry.vclusters.api import vcluster_api_pb2 as api
from tapestry.vclusters.errors import Code
from tapestry.vclusters.lifecycle import reported_phase
from tapestry.vclusters.operations import progress_percent

ETAG_CHARACTERS = 26
SPEC_FIELDS = frozenset(each.json_name for each in api.VClusterSpec.DESCRIPTOR.fields)
CONDITION_FIELDS = ("type", "status", "reason", "message")
MAX_CACHED = 20_000


def timestamp_of(value: str | datetime | None) -> Timestamp | None:
    if isinstance(value, str):
        return parsed_timestamp(value)
    if value is None:
        return None
    result = Timestamp()
    result.FromDatetime(value)
    return result


@lru_cache(maxsize=10_000)
def parsed_timestamp(text: str) -> Timestamp | None:
    """Return a message that callers must not change. Many objects have the same times."""
    return timestamp_of(parse_time(text))


def etag_of(message: Message) -> str:
    """Return a hash of all fields that are set so far."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:ETAG_CHARACTERS]


def phase_number(phase: str | None, *, is_compatible: bool = False) -> Any:
    if not phase:
        return api.PHASE_PENDING
    return api.Phase.Value(f"PHASE_{reported_phase(Phase(phase), is_compatible=is_compatible).name}")


def condition_message(condition: Object) -> api.Condition:
    fields = {each: condition.get(each, "") for each in CONDITION_FIELDS}
    return api.Condition(**fields, last_transition_time=timestamp_of(condition.get("lastTransitionTime")))


# -- virtual clusters


def vcluster_message(vcluster: Object, *, is_compatible: bool = False) -> api.VCluster:
    """Return the message of a VCluster. Its etag changes with all that the message shows, except its version."""
    metadata, spec, status = vcluster["metadata"], vcluster.get("spec") or {}, vcluster.get("status") or {}
    message = api.VCluster(
        id=uid_of(vcluster),
        name=name_of(vcluster),
        namespace=namespace_of(vcluster),
        spec=spec_message(spec),
        status=status_message(status, is_compatible=is_compatible),
        labels=labels_of(vcluster),
        annotations=annotations_of(vcluster),
        create_time=timestamp_of(metadata.get("creationTimestamp")),
        update_time=timestamp_of(update_time(metadata)),
        delete_time=timestamp_of(metadata.get("deletionTimestamp")),
        owner=spec.get("owner", ""),
        project=spec.get("project", ""),
        generation=metadata.get("generation", 0),
        host_cluster=status.get("hostCluster") or spec.get("hostCluster") or "",
        engine=spec.get("engine") or "native",
        current_operation=current_operation(vcluster),
        expire_time=timestamp_of(spec.get("expireTime")),
        deletion_protection=bool(spec.get("deletionProtection")),
    )
    message.etag = etag_of(message)
    message.resource_version = version_of(vcluster)
    return message


def update_time(metadata: Object) -> str | None:
    times = [each["time"] for each in metadata.get("managedFields") or () if each.get("time")]
    return max(times, default=metadata.get("creationTimestamp"))


def current_operation(vcluster: Object) -> str:
    """Return the id of the operation that runs, or else of the one that waits; empty if there is none."""
    running: str = value_at(vcluster, "status", "journal", "id", default="")
    requested = value_at(vcluster, "spec", "operation", "id", default="")
    if running:
        return running
    return requested if requested != value_at(vcluster, "status", "lastOperation") else ""


def spec_message(spec: Object) -> api.VClusterSpec:
    fields = {name: value for name, value in spec.items() if name in SPEC_FIELDS and value not in (None, {}, [])}
    message = api.VClusterSpec()
    json_format.ParseDict(fields, message, ignore_unknown_fields=True)
    return message


def status_message(status: Object, *, is_compatible: bool) -> api.VClusterStatus:
    usage, snapshot = status.get("currentUsage"), status.get("lastSnapshot")
    return api.VClusterStatus(
        phase=phase_number(status.get("phase"), is_compatible=is_compatible),
        message=status.get("message") or "",
        reason=status.get("reason") or "",
        conditions=[condition_message(each) for each in status.get("conditions") or ()],
        api_server_endpoint=status.get("apiServerEndpoint") or "",
        current_usage=json_format.ParseDict(usage, api.ResourceUsage(), ignore_unknown_fields=True) if usage else None,
        ready_replicas=status.get("readyReplicas") or 0,
        total_replicas=status.get("totalReplicas") or 0,
        ready_time=timestamp_of(status.get("readyTime")),
        last_snapshot=json_format.ParseDict(snapshot, api.SnapshotInfo()) if snapshot else None,
        observed_generation=status.get("observedGeneration") or 0,
    )


def spec_fields(message: api.VClusterSpec) -> Object:
    """Return the fields of a spec that a message sets, with the names of the spec of a VCluster.

    The contract cannot tell `enable_persistence: false` from a field that is not set. The objects are in memory only if
    `storage` is set, and requests neither persistence nor a size or class of it.
    """
    fields: Object = json_format.MessageToDict(message)
    storage = fields.get("storage")
    if storage is not None:
        requests = ("enablePersistence", "persistenceSize", "persistenceStorageClass")
        storage["enablePersistence"] = any(storage.get(each) for each in requests)
    return fields


def optional(name: str, value: Any) -> Object:
    """Return a field of a spec; nothing without a value."""
    return {name: value} if value else {}


# -- snapshots and operations


def snapshot_message(snapshot: Object) -> api.Snapshot:
    spec, status = snapshot["spec"], snapshot.get("status") or {}
    message = api.Snapshot(
        id=name_of(snapshot),
        name=spec.get("displayName") or name_of(snapshot),
        vcluster_id=spec["vclusterUid"],
        vcluster_name=spec["vcluster"],
        namespace=namespace_of(snapshot),
        status=api.SnapshotStatus.Value(f"SNAPSHOT_STATUS_{(status.get('phase') or 'Creating').upper()}"),
        size_bytes=status.get("sizeBytes") or 0,
        create_time=timestamp_of(snapshot["metadata"].get("creationTimestamp")),
        expire_time=timestamp_of(spec.get("expireTime")),
        labels=labels_of(snapshot),
        description=spec.get("description") or "",
        storage_uri=status.get("storageUri") or "",
    )
    message.etag = etag_of(message)
    return message


def step_messages(steps: Iterable[Object]) -> list[api.OperationStep]:
    return [
        api.OperationStep(
            name=each["name"],
            state=each["state"],
            attempt=each.get("attempt", 1),
            start_time=timestamp_of(each.get("startTime")),
            end_time=timestamp_of(each.get("endTime")),
            error=each.get("error") or "",
        )
        for each in steps
    ]


def ended_operation(operation: Object) -> api.Operation:
    """Return the message of an operation that has ended."""
    spec, status = operation["spec"], operation.get("status") or {}
    error = status.get("error")
    return api.Operation(
        id=name_of(operation),
        verb=spec["verb"],
        namespace=namespace_of(operation),
        vcluster_name=spec["vcluster"],
        vcluster_id=spec["vclusterUid"],
        project=spec.get("project", ""),
        requested_by=spec["principal"],
        request_id=spec.get("requestId", ""),
        done=True,
        phase_from=phase_number(status.get("phaseFrom")),
        phase_to=phase_number(status["phaseTo"]) if status.get("phaseTo") else api.PHASE_UNSPECIFIED,
        steps=step_messages(status.get("steps") or ()),
        progress_percent=100,
        create_time=timestamp_of(status.get("startTime") or operation["metadata"].get("creationTimestamp")),
        end_time=timestamp_of(status.get("endTime")),
        error=api.OperationError(code=Code[error["code"]].number, reason=error["reason"], message=error["message"])
        if error
        else None,
        snapshot_id=status.get("snapshot") or "",
    )


def running_operation(vcluster: Object, journal: Journal) -> api.Operation:
    """Return the message of the operation in the journal of a virtual cluster."""
    requested = value_at(vcluster, "spec", "operation", default={})
    raw = vcluster["status"]["journal"]
    return api.Operation(
        **operation_target(vcluster),
        id=journal.id,
        verb=journal.verb.value,
        requested_by=journal.principal,
        request_id=journal.request_id,
        cancel_requested=requested.get("id") == journal.id and bool(requested.get("cancelled")),
        phase_from=phase_number(journal.phase_from.value),
        steps=step_messages(raw.get("steps") or ()),
        progress_percent=progress_percent(journal),
        create_time=timestamp_of(journal.start_time),
        snapshot_id=journal.data.get("snapshot", ""),
    )


def waiting_operation(vcluster: Object) -> api.Operation:
    """Return the message of the requested operation, which has not begun."""
    request = vcluster["spec"]["operation"]
    return api.Operation(
        **operation_target(vcluster),
        id=request["id"],
        verb=Verb(request["verb"]).value,
        requested_by=request["principal"],
        request_id=request.get("requestId", ""),
        cancel_requested=bool(request.get("cancelled")),
        phase_from=phase_number(value_at(vcluster, "status", "phase")),
    )


def operation_target(vcluster: Object) -> Mapping[str, Any]:
    return {
        "namespace": namespace_of(vcluster),
        "vcluster_name": name_of(vcluster),
        "vcluster_id": uid_of(vcluster),
        "project": value_at(vcluster, "spec", "project", default=""),
    }


# -- projects, quotas, host clusters and access keys


def project_message(project: Object) -> api.Project:
    spec = project.get("spec") or {}
    message = api.Project(
        name=name_of(project),
        display_name=spec.get("displayName") or "",
        description=spec.get("description") or "",
        members=[api.ProjectMember(**each) for each in spec.get("members") or ()],
        host_clusters=spec.get("hostClusters") or (),
        create_time=timestamp_of(project["metadata"].get("creationTimestamp")),
    )
    message.etag = etag_of(message)
    return message


def quota_message(quota: Object, used: Mapping[str, str]) -> api.Quota:
    spec = quota.get("spec") or {}
    message = api.Quota(
        project=spec["project"],
        limits=texts(spec.get("limits") or {}),
        user_limits=texts(spec.get("userLimits") or {}),
    )
    message.etag = etag_of(message)  # usage changes with every write
    message.used.update(used)
    return message


def texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def host_message(host: Object) -> api.HostCluster:
    spec, status = host.get("spec") or {}, host.get("status") or {}
    message = api.HostCluster(
        name=name_of(host),
        labels=spec.get("labels") or {},
        ingress_class=spec.get("ingressClass") or "",
        ingress_domain=spec.get("ingressDomain") or "",
        create_time=timestamp_of(host["metadata"].get("creationTimestamp")),
    )
    message.etag = etag_of(message)
    message.version = status.get("version") or ""
    message.nodes, message.open_nodes = status.get("nodes") or 0, status.get("openNodes") or 0
    message.tenants = status.get("tenants") or 0
    message.conditions.extend(condition_message(each) for each in status.get("conditions") or ())
    return message


def access_key_message(key: Object) -> api.AccessKey:
    spec, status = key["spec"], key.get("status") or {}
    message = api.AccessKey(
        id=name_of(key),
        principal=spec["principal"],
        scopes=[api.AccessKeyScope(**each) for each in spec.get("scopes") or ()],
        platform_admin=bool(spec.get("platformAdmin")),
        description=spec.get("description") or "",
        expire_time=timestamp_of(spec.get("expireTime")),
        create_time=timestamp_of(key["metadata"].get("creationTimestamp")),
    )
    message.etag = etag_of(message)
    last_used = timestamp_of(status.get("lastUsedTime"))
    if last_used is not None:
        message.last_used_time.CopyFrom(last_used)
    return message


@dataclass(frozen=True)
class VClusterMessages:
    """Messages of VClusters, cached by UID and version."""

    is_compatible: bool = False
    _cached: OrderedDict[tuple[str, str], api.VCluster] = field(default_factory=OrderedDict)

    def of(self, vcluster: Object) -> api.VCluster:
        """Return the message, which the caller must not change."""
        key = uid_of(vcluster), version_of(vcluster)
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = vcluster_message(vcluster, is_compatible=self.is_compatible)
            if len(self._cached) > MAX_CACHED:
                self._cached.popitem(last=False)
        return found
