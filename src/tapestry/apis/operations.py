"""The kinds Operation and Snapshot, which the orchestrator of virtual clusters writes."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from tapestry.apis.field_types import DnsLabel, Name
from tapestry.apis.vclusters import MAX_ERROR, MAX_STEPS, JournalStep, LongText, Phase, RequestId, Text, Verb
from tapestry.kube.api_types import IMMUTABLE, ApiStruct
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.resources import Resource

MAX_OPERATIONS = 50
"""Maximum number of Operations of one virtual cluster."""
MAX_OPERATION_DAYS = 7


class OperationError(ApiStruct):
    """Error with which an operation ended."""

    code: Annotated[Text, Meta(description="Name of a gRPC status code.")]
    reason: Annotated[Text, Meta(description="Reason for programs.")]
    message: Annotated[str, Meta(max_length=MAX_ERROR)]


class OperationSpec(ApiStruct):
    """An operation that has ended. The running one is in the journal of its virtual cluster."""

    verb: Annotated[Verb, IMMUTABLE]
    vcluster: Annotated[Name, IMMUTABLE, Meta(description="Name of the virtual cluster.")]
    vcluster_uid: Annotated[Text, IMMUTABLE, Meta(description="UID of the virtual cluster.")]
    project: Annotated[DnsLabel, IMMUTABLE]
    principal: Annotated[Text, IMMUTABLE, Meta(description="Name of the user who requested it.")]
    request_id: Annotated[RequestId, IMMUTABLE] = ""
    request_digest: Annotated[str, IMMUTABLE, Meta(max_length=64)] = ""


class OperationStatus(ApiStruct):
    result: Annotated[Literal["Succeeded", "Failed", "Cancelled"], Meta(description="How it ended.")] | None = None
    phase_from: Phase | None = None
    phase_to: Phase | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    steps: Annotated[tuple[JournalStep, ...], Meta(max_length=MAX_STEPS)] = ()
    error: OperationError | None = None
    snapshot: Annotated[Text, Meta(description="Name of the Snapshot that it made.")] | None = None


OPERATIONS = Resource("tapestry.io", "v1alpha1", "Operation", "operations", namespaced=True)
OPERATION: Kind[OperationSpec] = Kind(
    OPERATIONS,
    OperationSpec,
    OperationStatus,
    description="An operation on a virtual cluster that has ended.",
    short_names=("vcop",),
    columns=(
        Column("Verb", ".spec.verb"),
        Column("VCluster", ".spec.vcluster"),
        Column("Result", ".status.result"),
        Column("Requested by", ".spec.principal", priority=1),
        Column("Error", ".status.error.message", priority=1),
        AGE,
    ),
)


class SnapshotSpec(ApiStruct):
    """A snapshot of the objects of a virtual cluster at one revision."""

    vcluster: Annotated[Name, IMMUTABLE, Meta(description="Name of the virtual cluster.")]
    vcluster_uid: Annotated[Text, IMMUTABLE, Meta(description="UID of the virtual cluster.")]
    project: Annotated[DnsLabel, IMMUTABLE]
    owner: Annotated[Text, IMMUTABLE, Meta(description="Owner of the virtual cluster, for whom it counts.")] = ""
    display_name: Annotated[Text, Meta(description="Name that the user gave it.")] | None = None
    description: LongText | None = None
    expire_time: Annotated[datetime, Meta(description="Time at which the snapshot is deleted.")] | None = None


class SnapshotStatus(ApiStruct):
    phase: Annotated[Literal["Creating", "Ready", "Failed", "Deleting"], Meta(description="Its state.")] | None = None
    message: Annotated[str, Meta(max_length=MAX_ERROR)] | None = None
    size_bytes: Annotated[int, Meta(ge=0)] | None = None
    storage_uri: Annotated[str, Meta(max_length=1024)] | None = None
    checksum_sha256: Annotated[str, Meta(max_length=64)] | None = None
    object_count: Annotated[int, Meta(ge=0)] | None = None
    revision: Annotated[int, Meta(ge=0)] | None = None
    kubernetes_version: Text | None = None


SNAPSHOTS = Resource("tapestry.io", "v1alpha1", "Snapshot", "snapshots", namespaced=True)
SNAPSHOT: Kind[SnapshotSpec] = Kind(
    SNAPSHOTS,
    SnapshotSpec,
    SnapshotStatus,
    description="A snapshot of a virtual cluster.",
    short_names=("vcsnap",),
    categories=("tapestry",),
    columns=(
        Column("VCluster", ".spec.vcluster"),
        Column("Name", ".spec.displayName"),
        Column("Status", ".status.phase"),
        Column("Bytes", ".status.sizeBytes", "integer"),
        Column("Expires", ".spec.expireTime", "date"),
        AGE,
    ),
)
