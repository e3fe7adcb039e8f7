"""The VCluster kind: a virtual cluster with its desired state, and the journal of its running operation.

The fields of the spec have the names of `proto/vcluster/api/v1/vcluster_api.proto`. A field that is not set is None.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tapestry.apis.field_types import Name
from tapestry.kube.api_types import IMMUTABLE, QUANTITY_PATTERN, ApiStruct, Conditions
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.resources import Resource

MAX_HELM_VALUES = 256 << 10
MAX_OUTBOX = 50
"""Maximum number of entries of the outbox."""
MAX_ERROR = 1 << 10
"""Maximum length of an error in a journal or an Operation."""
MAX_STEPS = 24
OPERATION_ID_PATTERN = "^op-[a-z2-7]{26}$"
Quantity = Annotated[str, Meta(max_length=32, pattern=QUANTITY_PATTERN.replace("[+-]?", "[+]?", 1))]
LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Text = Annotated[str, Meta(max_length=253)]
LongText = Annotated[str, Meta(max_length=4096)]
Texts = dict[str, Annotated[str, Meta(max_length=4096)]]
Cidr = Annotated[str, Meta(max_length=49, pattern="^[0-9a-fA-F:.]+/[0-9]{1,3}$")]
OperationId = Annotated[str, Meta(pattern=OPERATION_ID_PATTERN, max_length=29)]
RequestId = Annotated[str, Meta(max_length=128)]


class Phase(StrEnum):
    """Phase of a virtual cluster."""

    PENDING = "Pending"
    CREATING = "Creating"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMING = "Resuming"
    SCALING = "Scaling"
    UPDATING = "Updating"
    SNAPSHOTTING = "Snapshotting"
    RESTORING = "Restoring"
    DELETING = "Deleting"
    ERROR = "Error"


class Verb(StrEnum):
    """Action of an operation."""

    CREATE = "Create"
    UPDATE = "Update"
    SCALE = "Scale"
    SUSPEND = "Suspend"
    RESUME = "Resume"
    SNAPSHOT = "Snapshot"
    RESTORE = "Restore"
    DELETE = "Delete"


class ResourceRequirements(ApiStruct):
    """Share and limits of the control plane."""

    cpu_request: Quantity | None = None
    cpu_limit: Quantity | None = None
    memory_request: Quantity | None = None
    memory_limit: Quantity | None = None
    ephemeral_storage_request: Quantity | None = None
    ephemeral_storage_limit: Quantity | None = None


class DnsConfig(ApiStruct):
    nameservers: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    searches: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()
    options: Annotated[tuple[Text, ...], Meta(max_length=32)] = ()


class NetworkConfig(ApiStruct):
    pod_cidr: Cidr | None = None
    service_cidr: Cidr | None = None
    enable_network_policies: bool = False
    dns_service_ip: Text | None = None
    dns: DnsConfig | None = None


class StorageConfig(ApiStruct):
    default_storage_class: Text | None = None
    enable_persistence: Annotated[
        bool, Meta(description="Keep the objects when the process restarts. Otherwise they are in memory only.")
    ] = True
    persistence_size: Annotated[Quantity, Meta(description="Maximum size of all objects.")] | None = None
    persistence_storage_class: Text | None = None


class SyncConfig(ApiStruct):
    """Resources that are synced with the host cluster, besides pods and what they need."""

    sync_nodes: bool = False
    sync_persistent_volumes: bool = False
    sync_storage_classes: bool = False
    sync_ingresses: bool = False
    sync_priority_classes: bool = False
    sync_network_policies: bool = False
    sync_pod_disruption_budgets: bool = False
    custom_resources: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()


class PluginConfig(ApiStruct):
    name: Name
    version: Text | None = None
    config: LongText | None = None
    enabled: bool = False


class TlsConfig(ApiStruct):
    enabled: bool = False
    secret_name: Text | None = None
    use_cert_manager: bool = False
    issuer_name: Text | None = None


class IngressConfig(ApiStruct):
    """Ingress of the host cluster that leads to the API of the virtual cluster."""

    enabled: bool = False
    ingress_class: Text | None = None
    hostname: Text | None = None
    tls: TlsConfig | None = None
    annotations: Annotated[Texts, Meta(max_length=64)] = field(default_factory=dict)


class ServiceAccountConfig(ApiStruct):
    """Account of the pods in the host cluster. They never get its token."""

    name: Text | None = None
    annotations: Annotated[Texts, Meta(max_length=64)] = field(default_factory=dict)
    automount_token: bool = False


class OperationRequest(ApiStruct):
    """The operation that the orchestrator is to carry out next, or that it carries out."""

    id: Annotated[OperationId, Meta(description="Name of its Operation object.")]
    verb: Verb
    principal: Annotated[Text, Meta(description="Name of the user who requested it.")]
    request_id: Annotated[RequestId, Meta(description="Id by which the user may repeat the request.")] = ""
    request_digest: Annotated[str, Meta(max_length=64, description="Hash of the request.")] = ""
    arguments: Annotated[dict[str, Any], Meta(max_length=32, description="Arguments of the verb.")] = field(
        default_factory=dict
    )
    cancelled: Annotated[bool, Meta(description="Stop the operation at its next step, and undo what it did.")] = False


class VClusterSpec(ApiStruct):
    """Desired state of a virtual cluster."""

    project: Annotated[
        str, IMMUTABLE, Meta(pattern=f"^$|{LABEL}", max_length=63, description="Project. Empty: that of the namespace.")
    ] = ""
    owner: Annotated[Text, IMMUTABLE, Meta(description="User who created the virtual cluster.")] = ""
    engine: Annotated[
        Literal["native"],
        IMMUTABLE,
        Meta(description="Implementation. native: a plane of this installation, with the syncer of a tenant."),
    ] = "native"
    host_cluster: (
        Annotated[Name, Meta(description="HostCluster in which its pods run. Empty: the placement decides.")] | None
    ) = None
    suspended: Annotated[bool, Meta(description="Run nothing, and keep all objects.")] = False
    expire_time: Annotated[datetime, Meta(description="Time at which the virtual cluster is deleted.")] | None = None
    deletion_protection: Annotated[bool, Meta(description="Reject deletions.")] = False
    kubernetes_version: Annotated[str, Meta(max_length=64, pattern=r"^v?[0-9]+\.[0-9]+(\.[0-9]+)?$")] | None = None
    distro: Literal["k3s", "k8s", "k0s", "eks"] | None = None
    resources: ResourceRequirements | None = None
    replicas: Annotated[int, Meta(ge=1, le=100)] = 1
    enable_ha: bool = False
    network: NetworkConfig | None = None
    storage: StorageConfig | None = None
    sync: SyncConfig | None = None
    ingress: IngressConfig | None = None
    service_account: ServiceAccountConfig | None = None
    isolation_mode: Literal["full", "lite"] | None = None
    plugins: Annotated[tuple[PluginConfig, ...], Meta(max_length=32)] = ()
    helm_values: Annotated[str, Meta(max_length=MAX_HELM_VALUES)] | None = None
    operation: OperationRequest | None = None


class JournalStep(ApiStruct):
    """One step of an operation."""

    name: Annotated[str, Meta(max_length=63)]
    state: Literal["Pending", "Running", "Done", "Failed", "Compensated"]
    attempt: Annotated[int, Meta(ge=1)] = 1
    start_time: datetime | None = None
    end_time: datetime | None = None
    deadline: datetime | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR)] | None = None


class Journal(ApiStruct):
    """The running operation: enough to continue it in another process."""

    id: OperationId
    verb: Verb
    phase_from: Phase
    start_time: datetime
    principal: Text
    request_id: RequestId = ""
    request_digest: Annotated[str, Meta(max_length=64)] = ""
    arguments: Annotated[dict[str, Any], Meta(max_length=32)] = field(default_factory=dict)
    steps: Annotated[tuple[JournalStep, ...], Meta(max_length=MAX_STEPS)] = ()
    data: Annotated[
        dict[str, Annotated[str, Meta(max_length=256)]],
        Meta(max_length=16, description="Results of earlier steps that later ones need."),
    ] = field(default_factory=dict)
    cancelled: bool = False
    error: Annotated[str, Meta(max_length=MAX_ERROR)] | None = None


class OutboxEntry(ApiStruct):
    """A notification that was not delivered yet. Entries of one kind may be merged."""

    kind: Annotated[str, Meta(max_length=63)]
    sequence: Annotated[int, Meta(ge=1)]
    time: datetime
    merged: Annotated[int, Meta(ge=0, description="Number of older entries that this one replaces.")] = 0
    data: Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=16)] = field(default_factory=dict)


class ResourceUsage(ApiStruct):
    cpu_usage: Text | None = None
    memory_usage: Text | None = None
    storage_usage: Text | None = None
    pod_count: int = 0
    namespace_count: int = 0
    service_count: int = 0


class SnapshotInfo(ApiStruct):
    """The last snapshot."""

    id: Text
    name: Text
    create_time: datetime | None = None
    size_bytes: int = 0
    status: Text | None = None


class VClusterStatus(ApiStruct):
    phase: Annotated[Phase, Meta(description="Phase of the virtual cluster.")] | None = None
    message: Annotated[LongText, Meta(description="Reason of the phase, for people.")] | None = None
    reason: Annotated[Text, Meta(description="Reason of the phase, for programs.")] | None = None
    conditions: Conditions = ()
    journal: Annotated[Journal, Meta(description="The running operation.")] | None = None
    outbox: Annotated[tuple[OutboxEntry, ...], Meta(max_length=MAX_OUTBOX)] = ()
    last_sequence: Annotated[int, Meta(description="Number of notifications so far.")] | None = None
    last_operation: Annotated[Text, Meta(description="Name of the last Operation that ended.")] | None = None
    host_cluster: Annotated[Text, Meta(description="HostCluster in which its pods run.")] | None = None
    plane: Annotated[Text, Meta(description="Name of its plane.")] | None = None
    api_server_endpoint: Annotated[Text, Meta(description="URL of its Kubernetes API.")] | None = None
    kubernetes_version: Annotated[Text, Meta(description="Version that it provides.")] | None = None
    current_usage: ResourceUsage | None = None
    ready_replicas: int = 0
    total_replicas: int = 0
    ready_time: datetime | None = None
    last_snapshot: SnapshotInfo | None = None
    observed_generation: int | None = None


VCLUSTERS = Resource("tapestry.io", "v1alpha1", "VCluster", "vclusters", namespaced=True)
VCLUSTER: Kind[VClusterSpec] = Kind(
    VCLUSTERS,
    VClusterSpec,
    VClusterStatus,
    description="A virtual cluster.",
    short_names=("vc",),
    categories=("tapestry",),
    columns=(
        Column("Phase", ".status.phase"),
        Column("Project", ".spec.project"),
        Column("Owner", ".spec.owner", priority=1),
        Column("Host", ".status.hostCluster"),
        Column("Version", ".status.kubernetesVersion"),
        Column("Operation", ".status.journal.verb"),
        Column("Endpoint", ".status.apiServerEndpoint", priority=1),
        Column("Message", ".status.message", priority=1),
        AGE,
    ),
)
