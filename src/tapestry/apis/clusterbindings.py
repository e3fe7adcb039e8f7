"""The ClusterBinding kind: one physical cluster that has joined the virtual cluster."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.apis.field_types import DnsLabel, Name, NodeSelector, SecretReference
from tapestry.apis.hostclusters import HostClusterSpec
from tapestry.apis.names import virtual_cluster_label
from tapestry.kube.api_types import AS_SET, IMMUTABLE, ApiStruct, Conditions, cel_rule
from tapestry.kube.crds import AGE, Column, Kind, decode_spec
from tapestry.kube.objects import Object, labels_of, name_of, uid_of
from tapestry.kube.resources import Resource

UNBIND_GRACE_SECONDS = 30
"""Default of `spec.unbindGraceSeconds`."""
LAST_SEEN_INTERVAL = timedelta(minutes=5)
"""Maximum age of `status.lastSeen` while the physical cluster responds and nothing else changes."""

MetadataKey = Annotated[
    str,
    Meta(
        max_length=317,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/(\*|[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$",
    ),
]
HandlePattern = Annotated[str, Meta(min_length=1, max_length=1024)]


class AllowedVolumes(ApiStruct):
    """PersistentVolumes that may be used in the physical cluster.  A volume must match the driver and the class."""

    drivers: Annotated[tuple[Name, ...], AS_SET, Meta(description="Allowed CSI drivers.")] = ()
    storage_classes: Annotated[tuple[Name, ...], AS_SET, Meta(description="Allowed classes. Empty: any.")] = ()
    volume_handles: Annotated[
        tuple[HandlePattern, ...],
        AS_SET,
        Meta(
            max_length=64,
            description=(
                "Patterns of allowed volume handles, in which * matches any text. "
                "A volume that was provisioned for the mounted claim needs no match."
            ),
        ),
    ] = ()


class SyncBack(ApiStruct):
    """Selection of the copies of ConfigMaps and Secrets whose changes are synced back to the virtual cluster."""

    namespaces: Annotated[
        tuple[DnsLabel, ...],
        AS_SET,
        Meta(description="Virtual namespaces whose objects may opt in with the annotation tapestry.io/sync-back."),
    ] = ()


class VirtualEndpoints(ApiStruct):
    """Addresses at which pods on leased nodes reach the virtual cluster."""

    api: Annotated[str, Meta(description="host:port of the virtual API server.")] | None = None
    dns: Annotated[str, Meta(description="IP address of the virtual DNS server.")] | None = None


class ContainerResources(ApiStruct):
    """Requests and limits of a container."""

    requests: Annotated[dict[str, str], Meta(description="Amounts that are reserved, by resource.")] = field(
        default_factory=dict
    )
    limits: Annotated[dict[str, str], Meta(description="Amounts that may be used at most, by resource.")] = field(
        default_factory=dict
    )


class Toleration(ApiStruct):
    """Toleration of a pod for a taint."""

    key: Annotated[str, Meta(max_length=317, description="Key of the taint. Empty: all.")] = ""
    operator: Annotated[Literal["Exists", "Equal"], Meta(description="Comparison of the value.")] = "Equal"
    value: Annotated[str, Meta(max_length=63, description="Value of the taint.")] = ""
    effect: Annotated[
        Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"], Meta(description="Effect of the taint. Empty: all.")
    ] = ""


class SyncerPods(ApiStruct):
    """Pods of the binding's syncer.  Fields that are not set have the values of the manager's configuration."""

    image: Annotated[str, Meta(min_length=1, max_length=512, description="Image of the syncer.")] | None = None
    replicas: (
        Annotated[
            int,
            Meta(ge=0, le=10, description="Number of pods; one is active. Not set: `kubectl scale` may change it."),
        ]
        | None
    ) = None
    profile: (
        Annotated[
            Literal["small", "medium", "large"],
            Meta(description="Resources by the size of the cluster: up to 100 nodes, up to 1,000 nodes, more nodes."),
        ]
        | None
    ) = None
    resources: Annotated[ContainerResources, Meta(description="Resources that override the profile.")] | None = None
    args: Annotated[
        tuple[str, ...], Meta(max_length=64, description="Arguments after those of the template, which they override.")
    ] = ()
    node_selector: Annotated[dict[str, str], Meta(description="Labels of the nodes that the pods may run on.")] = field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=32, description="Tolerations of the pods.")] = ()
    autoscale: Annotated[
        Literal["none", "vertical"],
        Meta(description="`vertical` lets a VerticalPodAutoscaler set the resources."),
    ] = "none"


class TenantSync(ApiStruct):
    """Kinds that are synced between a plane and its host cluster, besides pods and what they refer to."""

    nodes: Annotated[
        bool,
        Meta(
            description="True: the plane has a Node for each leased node of the host cluster. "
            "False: only for those on which its pods run."
        ),
    ] = False
    node_selector: NodeSelector | None = None
    persistent_volumes: Annotated[
        bool,
        Meta(
            description="Let the host cluster provision claims of the plane. False: new claims get no volume, and "
            "existing ones keep theirs."
        ),
    ] = True
    storage_classes: Annotated[
        bool,
        Meta(
            description="Show the storage classes that the HostCluster offers in the plane. False: claims may name "
            "them, but the plane does not list them."
        ),
    ] = True
    ingresses: Annotated[bool, Meta(description="Create Ingresses of the plane in the host cluster.")] = False
    priority_classes: Annotated[
        bool, Meta(description="Give pods priorities within the range that the HostCluster allows.")
    ] = False
    network_policies: Annotated[bool, Meta(description="Create NetworkPolicies of the plane in the host cluster.")] = (
        False
    )
    disruption_budgets: Annotated[
        bool, Meta(description="Create PodDisruptionBudgets of the plane in the host cluster.")
    ] = False


class Isolation(ApiStruct):
    """Isolation of a tenant in its host cluster."""

    mode: Annotated[
        Literal["full", "lite"],
        Meta(
            description="`full`: network policies, the Pod Security level restricted, and no Services that are "
            "reachable from outside. `lite`: the level baseline, and Services of all types."
        ),
    ] = "full"
    node_ports: Annotated[bool, Meta(description="Allow node ports. Not set: only in mode lite.")] | None = None
    external_ips: Annotated[bool, Meta(description="Allow externalIPs. Not set: only in mode lite.")] | None = None
    external_names: (
        Annotated[bool, Meta(description="Allow Services of type ExternalName. Not set: only in mode lite.")] | None
    ) = None

    @property
    def allows_node_ports(self) -> bool:
        return self.mode == "lite" if self.node_ports is None else self.node_ports

    @property
    def allows_external_ips(self) -> bool:
        return self.mode == "lite" if self.external_ips is None else self.external_ips

    @property
    def allows_external_names(self) -> bool:
        return self.mode == "lite" if self.external_names is None else self.external_names


IpAddress = Annotated[str, Meta(min_length=2, max_length=45, pattern="^[0-9a-fA-F:.]+$")]


class TenantDns(ApiStruct):
    """DNS settings of a tenant's pods."""

    service_ip: Annotated[str, Meta(max_length=45, description="Address of the DNS Service. Empty: any.")] = ""
    nameservers: Annotated[
        tuple[IpAddress, ...], Meta(max_length=2, description="More name servers of pods, after that of the tenant.")
    ] = ()
    searches: Annotated[tuple[Name, ...], Meta(max_length=16, description="More search domains of pods.")] = ()
    options: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(max_length=16, description="Resolver options of pods, as `ndots:2`."),
    ] = ()


class ClusterBindingSpec(ApiStruct):
    """Access to a physical cluster and the rules for using it."""

    __rules__ = (
        cel_rule(
            "has(self.secretRef) != has(self.hostCluster)",
            "or hostCluster is required, and not both",
            field_path=".secretRef",
        ),
        cel_rule(
            "has(self.hostCluster) == has(self.virtualCluster)",
            "and hostCluster belong together: the pods of the plane run in the host cluster",
            field_path=".virtualCluster",
        ),
        cel_rule(
            "has(self.hostCluster) == has(oldSelf.hostCluster) && (!has(self.hostCluster) || "
            "self.hostCluster == oldSelf.hostCluster && self.virtualCluster == oldSelf.virtualCluster && "
            "self.placement == oldSelf.placement)",
            "and virtualCluster and placement may not change; create another binding",
            field_path=".hostCluster",
        ),
        cel_rule(
            "!has(oldSelf.mountNamespace) || has(self.mountNamespace) && self.mountNamespace == oldSelf.mountNamespace",
            "may not change once it is set: objects in the old namespace would be lost",
            field_path=".mountNamespace",
        ),
    )

    cluster_id: Annotated[
        str,
        Meta(max_length=24, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", description="ID, unique among bindings."),
        IMMUTABLE,
    ] = field(name="clusterID")
    secret_ref: SecretReference | None = None
    virtual_cluster: (
        Annotated[
            str,
            Meta(min_length=1, max_length=63, description="Id of the plane whose pods run in the host cluster."),
        ]
        | None
    ) = None
    host_cluster: (
        Annotated[str, Meta(min_length=1, max_length=253, description="HostCluster of the plane's pods.")] | None
    ) = None
    sync: TenantSync = TenantSync()
    placement: Annotated[
        Literal["host", "virtual"],
        Meta(
            description="Scheduler of the pods of a plane: `host` is that of the host cluster, `virtual` that of the "
            "plane."
        ),
    ] = "host"
    isolation: Isolation = Isolation()
    quota: Annotated[
        dict[str, str],
        Meta(description="Hard limits of the tenant's namespace in the host cluster, as in a ResourceQuota."),
    ] = field(default_factory=dict)
    dns: TenantDns = TenantDns()
    service_account_name: Annotated[
        str,
        Meta(
            max_length=253,
            description="ServiceAccount of the pods of a plane in the host cluster, one of `serviceAccounts` of the"
            " HostCluster. Pods never get its token. Empty: `default`.",
        ),
    ] = ""
    api_host: Annotated[
        str,
        Meta(
            max_length=253,
            description="Host name of an Ingress in the host cluster that leads to the API of the plane: NAME.DOMAIN"
            " with `apiIngressDomain` of the HostCluster. Empty: there is none.",
        ),
    ] = ""
    default_storage_class: Annotated[
        str,
        Meta(
            max_length=253,
            description="Storage class of claims of the plane that name none; one that the HostCluster offers. Empty: "
            "the default class of the host cluster, if the HostCluster offers it.",
        ),
    ] = ""
    workloads: Annotated[
        Literal["Run", "Drained"],
        Meta(description="Drained: the pods of the plane stay Pending, and nothing of them runs in the host cluster."),
    ] = "Run"
    drain_timeout_seconds: Annotated[
        int, Meta(ge=0, le=86400, description="Seconds that pods may take to terminate when they are drained.")
    ] = 60
    mount_namespace: Annotated[DnsLabel, Meta(description="Physical namespace for all synced objects.")] | None = None
    node_selector: NodeSelector | None = None
    service_namespaces: Annotated[
        tuple[DnsLabel, ...], AS_SET, Meta(description="Virtual namespaces whose Services are synced.")
    ] = ()
    disable_node_default_taint: Annotated[
        bool, Meta(description="Omit the default taint, so that pods need no toleration for virtual nodes.")
    ] = False
    pod_priority_class_name: (
        Annotated[str, Meta(max_length=253, description="PriorityClass of twins. Default: tapestry-leased.")] | None
    ) = None
    running_daemonset_by_default: Annotated[
        bool, Meta(description="Run pods of DaemonSets unless an annotation overrides it.")
    ] = False
    direct_scheduling: Annotated[bool, Meta(description="Set nodeName of twins, bypassing the scheduler.")] = False
    pod_security: Annotated[
        Literal["privileged", "baseline", "restricted"],
        Meta(description="Pod Security Standard that pods must meet."),
    ] = "baseline"
    on_partition: Annotated[
        Literal["Hold", "Evict"],
        Meta(description="Pods of an unreachable cluster: keep them, or evict them after their tolerationSeconds."),
    ] = "Hold"
    allowed_volumes: AllowedVolumes = AllowedVolumes()
    allowed_metadata: Annotated[
        tuple[MetadataKey, ...],
        AS_SET,
        Meta(
            max_length=64,
            description="Pod labels and annotations to copy to twins in addition: a key, or `prefix/*`. "
            "Keys without a prefix are always copied. Keys under `tapestry.io/` are never copied.",
        ),
    ] = ()
    unbind_grace_seconds: Annotated[
        int, Meta(ge=0, le=86400, description="Seconds for pods to terminate after the binding is deleted.")
    ] = UNBIND_GRACE_SECONDS
    virtual_endpoints: VirtualEndpoints = VirtualEndpoints()
    sync_back: SyncBack = SyncBack()
    syncer: SyncerPods = SyncerPods()

    @property
    def kubeconfig_secret(self) -> SecretReference:
        """Reference to the kubeconfig of a binding that is not a tenant."""
        assert self.secret_ref is not None, "a tenant uses the kubeconfig of its HostCluster"
        return self.secret_ref

    @property
    def is_tenant(self) -> bool:
        """True if the binding connects a plane with a host cluster."""
        return self.virtual_cluster is not None

    @property
    def schedules_on_host(self) -> bool:
        """True if the scheduler of the host cluster chooses the nodes of pods."""
        return self.is_tenant and self.placement == "host"


class ClusterBindingStatus(ApiStruct):
    phase: Literal["Pending", "Ready", "Failed", "Deleting"] | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    identity: Annotated[str, Meta(description="UID of the physical kube-system namespace.")] | None = None
    nodes: Annotated[int, Meta(description="Number of virtual nodes.")] | None = None
    pods: Annotated[int, Meta(description="Number of pods on virtual nodes.")] | None = None
    leased: Annotated[dict[str, str], Meta(description="Total leased by nodes that are open now.")] | None = None
    used: Annotated[dict[str, str], Meta(description="Total requested by pods on virtual nodes.")] | None = None
    usage: (
        Annotated[
            dict[str, str],
            Meta(description="Of a tenant: pods, namespaces, services, and the requests of its pods and claims."),
        ]
        | None
    ) = None
    last_seen: (
        Annotated[
            datetime,
            Meta(
                description="Time of the last response of the physical API server. Exact while it is unreachable,"
                " otherwise up to five minutes old. Leases of virtual nodes record it within ten seconds."
            ),
        ]
        | None
    ) = None
    next_change: Annotated[datetime, Meta(description="Next time at which a window opens or closes.")] | None = None
    credentials_expire: Annotated[datetime, Meta(description="Expiry of the kubeconfig token.")] | None = None
    time_zone: Annotated[str, Meta(description="Default time zone of windows.")] | None = None


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
"""Reasons of the condition Permitted that the syncer sets and clears.  The manager does not change them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A ClusterBinding of one virtual cluster, decoded once per reconcile."""

    name: str
    uid: str
    virtual_cluster: str
    """Label value of the virtual cluster."""
    spec: ClusterBindingSpec
    manager_namespace: str = keys.SYSTEM_NAMESPACE
    """Namespace of the manager and the syncers in the virtual cluster; empty for a tenant, which has none there."""
    host: HostClusterSpec | None = None
    """Offer of the host cluster to a tenant; None for other bindings."""

    def owner_labels(self) -> dict[str, str]:
        """Return the labels that mark a physical object as owned by this binding."""
        return {
            keys.MANAGED_BY: keys.TAPESTRY,
            keys.VIRTUAL_CLUSTER: self.virtual_cluster,
            keys.CLUSTER_BINDING_UID: self.uid,
        }

    def owns(self, obj: Object) -> bool:
        """Return whether both owner labels match.  Every other physical object is foreign."""
        labels = labels_of(obj)
        return (
            labels.get(keys.VIRTUAL_CLUSTER) == self.virtual_cluster
            and labels.get(keys.CLUSTER_BINDING_UID) == self.uid
        )


def binding_of(
    obj: Object,
    virtual_cluster_uid: str,
    manager_namespace: str = keys.SYSTEM_NAMESPACE,
    host: HostClusterSpec | None = None,
) -> Binding:
    """Return the binding in `obj`.  Raise InvalidSpec if the spec does not decode."""
    virtual_cluster, spec = virtual_cluster_label(virtual_cluster_uid), decode_spec(CLUSTER_BINDING, obj)
    return Binding(name_of(obj), uid_of(obj), virtual_cluster, spec, manager_namespace, host)


def is_tenant(binding: Object) -> bool:
    """Return whether a binding connects a plane with a host cluster; no syncer is deployed for it."""
    return binding["spec"].get("virtualCluster") is not None
