"""The HostCluster kind: a cluster in which the pods of planes run, with what its owner offers to tenants."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, field

from tapestry.apis import keys
from tapestry.apis.field_types import Name, NodeSelector, SecretReference
from tapestry.kube.api_types import ApiStruct, Conditions, as_map
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.resources import Resource

Address = Annotated[str, Meta(max_length=253)]


class OfferedStorageClass(ApiStruct):
    """A storage class of the host cluster that tenants may use."""

    name: Annotated[Name, Meta(description="Name of the class in planes.")]
    host_name: Annotated[
        str,
        Meta(
            max_length=253,
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
            description="Name of the class in the host cluster. Empty: the same.",
        ),
    ] = ""

    @property
    def name_in_host(self) -> str:
        return self.host_name or self.name


class PriorityRange(ApiStruct):
    """Priorities that tenants may give to their pods, as classes of the host cluster in ascending order."""

    classes: Annotated[
        tuple[Name, ...],
        Meta(max_length=16, description="PriorityClasses of the host cluster, from the lowest to the highest."),
    ] = ()


class HostClusterSpec(ApiStruct):
    """Access to a host cluster, and what it offers to tenants."""

    secret_ref: SecretReference
    node_selector: NodeSelector | None = None
    priority_class_name: Annotated[str, Meta(max_length=253, description="PriorityClass of tenants' pods.")] = (
        keys.PRIORITY_CLASS
    )
    priority_range: PriorityRange = PriorityRange()
    storage_classes: Annotated[
        tuple[OfferedStorageClass, ...],
        as_map("name"),
        Meta(max_length=64, description="Storage classes that tenants may use. Empty: tenants have no volumes."),
    ] = ()
    ingress_class: Annotated[
        str, Meta(max_length=253, description="Class of tenants' Ingresses. Empty: tenants may have none.")
    ] = ""
    ingress_domain: Annotated[
        str,
        Meta(
            max_length=253,
            description="Domain of tenants' Ingresses: a host is NAME.ID.DOMAIN, where ID is the id of the plane.",
        ),
    ] = ""
    ingress_namespace: Annotated[
        str,
        Meta(
            max_length=63,
            description="Namespace of the ingress controller in the host cluster, from which it connects to pods of"
            " isolated tenants that have Ingresses.",
        ),
    ] = ""
    api_ingress_domain: Annotated[
        str,
        Meta(
            max_length=190,
            pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
            description="Domain of Ingresses of the class `ingressClass` that lead to the APIs of planes: a host is"
            " NAME.DOMAIN. Their controller has to pass TLS through. Empty: there are none.",
        ),
    ] = ""
    api_ingress_annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=16)]],
        Meta(max_length=8, description="Annotations of these Ingresses by which the controller passes TLS through."),
    ] = field(default_factory=dict)
    service_accounts: Annotated[
        tuple[Name, ...],
        Meta(
            max_length=64,
            description="Names of ServiceAccounts that tenants may give to their pods. Each tenant has its own ones,"
            " without rights. Empty: pods have the account `default`.",
        ),
    ] = ()
    api_address: Annotated[
        Address, Meta(description="IP address at which pods of the host cluster reach the process of the planes.")
    ] = ""
    dns_address: Annotated[
        Address, Meta(description="IP address at which pods reach its DNS resolver. Empty: the same address.")
    ] = ""
    dns_upstreams: Annotated[
        tuple[
            Annotated[str, Meta(max_length=54, pattern=r"^([0-9.]+|[0-9a-fA-F:]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?$")],
            ...,
        ],
        Meta(
            max_length=3,
            description="DNS servers of names outside of planes, as ADDRESS or ADDRESS:PORT. Empty: those of the"
            " process.",
        ),
    ] = ()
    private_ranges: Annotated[
        tuple[Annotated[str, Meta(max_length=49, pattern="^[0-9a-fA-F:.]+(/[0-9]{1,3})?$")], ...],
        Meta(
            max_length=64,
            description="Address ranges, besides private ones, that pods of tenants with isolation `full` do not reach,"
            " for example public addresses of nodes and pods.",
        ),
    ] = ()
    pod_ranges: Annotated[
        tuple[Annotated[str, Meta(max_length=49, pattern="^[0-9a-fA-F:.]+(/[0-9]{1,3})?$")], ...],
        Meta(
            max_length=16,
            description="Address ranges of pods to which the process of the planes has a route. It calls webhooks and"
            " API servers in them directly, and all others by port-forward.",
        ),
    ] = ()
    allow_loopback: Annotated[
        bool, Meta(description="Allow a kubeconfig that leads to this machine, for tests and local worlds.")
    ] = False
    labels: Annotated[
        dict[str, str], Meta(description="Labels by which the placement of virtual clusters selects host clusters.")
    ] = field(default_factory=dict)


class HostClusterStatus(ApiStruct):
    conditions: Conditions = ()
    observed_generation: int | None = None
    identity: Annotated[str, Meta(description="UID of the kube-system namespace of the host cluster.")] | None = None
    version: Annotated[str, Meta(description="Kubernetes version of the host cluster.")] | None = None
    nodes: Annotated[int, Meta(description="Number of selected nodes.")] | None = None
    open_nodes: Annotated[int, Meta(description="Number of nodes whose lease is open.")] | None = None
    capacity: (
        Annotated[
            dict[str, str],
            Meta(description="Resources that policies lease to tenants in their windows, of all selected nodes."),
        ]
        | None
    ) = None
    tenants: Annotated[int, Meta(description="Number of planes whose pods run there.")] | None = None
    last_seen: Annotated[datetime, Meta(description="Time of the last response.")] | None = None


HOST_CLUSTERS = Resource("tapestry.io", "v1alpha1", "HostCluster", "hostclusters", namespaced=False)
HOST_CLUSTER: Kind[HostClusterSpec] = Kind(
    HOST_CLUSTERS,
    HostClusterSpec,
    HostClusterStatus,
    description="A cluster in which the pods of planes run.",
    categories=("tapestry",),
    columns=(
        Column("Reachable", '.status.conditions[?(@.type=="Reachable")].status'),
        Column("Nodes", ".status.nodes", "integer"),
        Column("Open", ".status.openNodes", "integer"),
        Column("Tenants", ".status.tenants", "integer"),
        Column("Version", ".status.version", priority=1),
        AGE,
    ),
)
