"""ClusterBinding: a physical cluster that has joined."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.apis.names import virtual_cluster_label
from tapestry.kube.api_types import AS_SET, IMMUTABLE, ApiStruct, Conditions, cel_rule
from tapestry.kube.crds import AGE, Column, Kind, decode_spec
from tapestry.kube.objects import Object, labels_of, name_of, uid_of
from tapestry.kube.resources import Resource
from tapestry.kube.schemas import to_unstructured

LAST_SEEN_INTERVAL = timedelta(minutes=5)
"""How old `status.lastSeen` may become while the physical cluster answers and nothing else changes."""

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Key = Annotated[str, Meta(min_length=1, max_length=317)]  # a prefix of 253, a slash, a name of 63
MetadataKey = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/(\*|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
    ),
]
DnsLabel = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
HandlePattern = Annotated[str, Meta(min_length=1, max_length=1024)]


class SecretReference(ApiStruct):
    """Where the kubeconfig is: under the key `kubeconfig` of this Secret."""

    name: Annotated[Name, Meta(description="Of the Secret.")]
    namespace: Annotated[DnsLabel, Meta(description="One that the manager reads kubeconfigs from.")]


class SelectorRequirement(ApiStruct):
    key: Annotated[Key, Meta(description="A label, or `metadata.name` among fields.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], Meta(description="How it is compared.")
    ]
    values: Annotated[tuple[str, ...], Meta(description="With what.")] = ()


class NodeSelectorTerm(ApiStruct):
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], Meta(description="What labels must be, all of it.")
    ] = ()
    match_fields: Annotated[tuple[SelectorRequirement, ...], Meta(description="What fields must be, all of it.")] = ()


class NodeSelector(ApiStruct):
    """Which nodes, as in a pod's required node affinity: one of the terms must hold."""

    node_selector_terms: Annotated[
        tuple[NodeSelectorTerm, ...], Meta(min_length=1, description="Of which one must hold.")
    ]


class AllowedVolumes(ApiStruct):
    """Which PersistentVolumes may cross: those of a driver and, where classes are named, of a class named here."""

    drivers: Annotated[tuple[Name, ...], AS_SET, Meta(description="CSI drivers.")] = ()
    storage_classes: Annotated[tuple[Name, ...], AS_SET, Meta(description="None is any.")] = ()
    volume_handles: Annotated[
        tuple[HandlePattern, ...],
        AS_SET,
        Meta(
            max_length=64,
            description=(
                "Volume handles that may cross, in which * matches any text. "
                "Volumes that were provisioned for the claim that is mounted need none."
            ),
        ),
    ] = ()


class SyncBack(ApiStruct):
    """Which changes to copies of ConfigMaps and Secrets in the physical cluster go up to the virtual one."""

    namespaces: Annotated[
        tuple[DnsLabel, ...],
        AS_SET,
        Meta(description="Virtual namespaces whose objects may opt in with the annotation tapestry.io/sync-back."),
    ] = ()


class VirtualEndpoints(ApiStruct):
    """Where pods on leased nodes reach the virtual cluster."""

    api: Annotated[str, Meta(description="host:port of its API server.")] | None = None
    dns: Annotated[str, Meta(description="Address of its DNS server.")] | None = None


class ClusterBindingSpec(ApiStruct):
    """How to reach a physical cluster, and what may be done there."""

    __rules__ = (
        cel_rule(
            "!has(oldSelf.mountNamespace) || has(self.mountNamespace) && self.mountNamespace == oldSelf.mountNamespace",
            "may not change once it is set: what was mounted there would be lost",
            field_path=".mountNamespace",
        ),
    )

    cluster_id: Annotated[
        str,
        Meta(max_length=24, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="Unique among the bindings."),
        IMMUTABLE,
    ] = field(name="clusterID")
    secret_ref: SecretReference
    mount_namespace: Annotated[DnsLabel, Meta(description="Where everything of ours lives below.")] | None = None
    node_selector: NodeSelector | None = None
    service_namespaces: Annotated[
        tuple[DnsLabel, ...], AS_SET, Meta(description="Virtual namespaces whose Services are known below.")
    ] = ()
    disable_node_default_taint: Annotated[
        bool, Meta(description="Let pods that tolerate nothing run on its virtual nodes, too.")
    ] = False
    pod_priority_class_name: (
        Annotated[str, Meta(max_length=253, description="Of twins; without one, tapestry-leased.")] | None
    ) = None
    running_daemonset_by_default: Annotated[
        bool, Meta(description="Run pods of DaemonSets, unless they say otherwise.")
    ] = False
    direct_scheduling: Annotated[bool, Meta(description="Bind twins by nodeName, past the physical scheduler.")] = False
    pod_security: Annotated[
        Literal["privileged", "baseline", "restricted"],
        Meta(description="The Pod Security Standard that pods have to meet."),
    ] = "baseline"
    on_partition: Annotated[
        Literal["Hold", "Evict"],
        Meta(description="Pods whose cluster is out of reach: they stay, or go when they tolerate it no longer."),
    ] = "Hold"
    allowed_volumes: AllowedVolumes = AllowedVolumes()
    allowed_metadata: Annotated[
        tuple[MetadataKey, ...],
        AS_SET,
        Meta(
            max_length=64,
            description="Labels and annotations of pods that are also copied below: a key, or `prefix/*`. "
            "Keys without a prefix are always copied, those under `tapestry.io/` never.",
        ),
    ] = ()
    unbind_grace_seconds: Annotated[
        int, Meta(ge=0, le=86400, description="For pods to end, when the binding is deleted.")
    ] = 30
    virtual_endpoints: VirtualEndpoints = VirtualEndpoints()
    sync_back: SyncBack = SyncBack()


class ClusterBindingStatus(ApiStruct):
    phase: Literal["Pending", "Ready", "Failed", "Deleting"] | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    identity: Annotated[str, Meta(description="UID of kube-system below: which cluster this is.")] | None = None
    nodes: Annotated[int, Meta(description="Virtual ones.")] | None = None
    pods: Annotated[int, Meta(description="On these.")] | None = None
    leased: Annotated[dict[str, str], Meta(description="In all, of nodes that are open now.")] | None = None
    used: Annotated[dict[str, str], Meta(description="What pods request of it.")] | None = None
    last_seen: (
        Annotated[
            datetime,
            Meta(
                description="When the physical API server last answered: of one that is silent the time itself, else"
                " one of the last five minutes.  Leases of virtual nodes have it within ten seconds."
            ),
        ]
        | None
    ) = None
    next_change: Annotated[datetime, Meta(description="When a window opens or closes next.")] | None = None
    credentials_expire: Annotated[datetime, Meta(description="When its token does.")] | None = None
    time_zone: Annotated[str, Meta(description="Of windows that name none, as its syncer has it.")] | None = None


CLUSTER_BINDINGS = Resource("cloud.tencent.com", "v1beta1", "ClusterBinding", "clusterbindings", namespaced=False)
CLUSTER_BINDING: Kind[ClusterBindingSpec] = Kind(
    CLUSTER_BINDINGS,
    ClusterBindingSpec,
    ClusterBindingStatus,
    description="A physical cluster whose idle capacity is leased.",
    short_names=("cb",),
    categories=("tapestry",),
    columns=(
        Column("Cluster-ID", ".spec.clusterID"),
        Column("Phase", ".status.phase"),
        Column("Leasing", '.status.conditions[?(@.type=="Leasing")].reason'),
        Column("Nodes", ".status.nodes", "integer"),
        Column("Leased-CPU", ".status.leased.cpu"),
        Column("Used-CPU", ".status.used.cpu"),
        Column("Pods", ".status.pods", "integer"),
        Column("Last-Seen", ".status.lastSeen", "date", priority=1),
        AGE,
    ),
)

SYNCER_REASONS = frozenset({keys.PRIORITY_CLASS_MISSING, keys.POD_SECURITY_STRICTER})
"""Reasons of the condition Permitted that the syncer sets and clears.  The manager leaves them as they are."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A ClusterBinding of one virtual cluster, read once per pass."""

    name: str
    uid: str
    virtual_cluster: str
    """The label value for the virtual cluster that it binds to."""
    spec: ClusterBindingSpec

    def owner_labels(self) -> dict[str, str]:
        """What a physical object of ours carries."""
        return {
            keys.MANAGED_BY: keys.TAPESTRY,
            keys.VIRTUAL_CLUSTER: self.virtual_cluster,
            keys.CLUSTER_BINDING_UID: self.uid,
        }

    def owns(self, obj: Object) -> bool:
        """Whether a physical object is ours; everything else is foreign, whatever it says of itself."""
        labels = labels_of(obj)
        return (
            labels.get(keys.VIRTUAL_CLUSTER) == self.virtual_cluster
            and labels.get(keys.CLUSTER_BINDING_UID) == self.uid
        )


def binding_of(obj: Object, virtual_cluster_uid: str) -> Binding:
    """The binding that `obj` describes, in the virtual cluster with that kube-system UID; raises InvalidSpec."""
    return Binding(
        name_of(obj), uid_of(obj), virtual_cluster_label(virtual_cluster_uid), decode_spec(CLUSTER_BINDING, obj)
    )


def node_selector_object(selector: NodeSelector | None) -> Any:
    """A node selector as `tapestry.kube.selectors.node_selector` reads it."""
    return to_unstructured(selector)
