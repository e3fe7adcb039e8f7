"""ResourceLeasingPolicy: what an owner or an operator lends, when, and how it is taken back."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from tapestry.apis.clusterbindings import Key, NodeSelector
from tapestry.kube.api_types import QUANTITY_PATTERN, ApiStruct, Conditions, as_map
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.resources import Resource

CLOCK_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
CLOCK_TO_24_PATTERN = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
DAY_PATTERN = (
    "^([Mm][Oo][Nn]([Dd][Aa][Yy])?|[Tt][Uu][Ee]([Ss][Dd][Aa][Yy])?|[Ww][Ee][Dd]([Nn][Ee][Ss][Dd][Aa][Yy])?"
    "|[Tt][Hh][Uu]([Rr][Ss][Dd][Aa][Yy])?|[Ff][Rr][Ii]([Dd][Aa][Yy])?|[Ss][Aa][Tt]([Uu][Rr][Dd][Aa][Yy])?"
    "|[Ss][Uu][Nn]([Dd][Aa][Yy])?)$"
)
"""An English day, long or short, in any case: patterns have no flag for that."""

MAX_SECONDS = 2**31 - 1
"""As many as Kubernetes keeps in a number of seconds."""

TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="An IANA name, such as Asia/Shanghai.")]
Amount = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=QUANTITY_PATTERN.replace("[+-]?", "[+]?", 1))]
"""A quantity that is not negative."""


class TimeWindow(ApiStruct):
    """From `start` up to `end` on the wall clock; one that ends at or before its start ends on the next day.

    It belongs to the day it starts on.  Equal ends are the whole day.
    """

    start: Annotated[str, Meta(pattern=CLOCK_PATTERN, description="HH:MM.")]
    end: Annotated[str, Meta(pattern=CLOCK_TO_24_PATTERN, description="HH:MM, up to 24:00.")]
    days: Annotated[
        tuple[Annotated[str, Meta(pattern=DAY_PATTERN)], ...],
        Meta(max_length=7, description="English names, long or short; none is every day."),
    ] = ()
    time_zone: TimeZone | None = None


class ResourceLimit(ApiStruct):
    """The most that is lent of one resource: the smaller of a quantity and a part of what is idle.  Zero is zero."""

    resource: Annotated[Key, Meta(description="Such as cpu, memory, nvidia.com/gpu.")]
    quantity: Annotated[Amount, Meta(description="At most so much.")] | None = None
    percent: Annotated[int, Meta(ge=0, le=100, description="Of what is idle.")] | None = None


class TotalLimit(ApiStruct):
    """The most that is lent of one resource, of all nodes of a binding together."""

    resource: Annotated[Key, Meta(description="Such as cpu, memory, pods, nvidia.com/gpu.")]
    quantity: Annotated[Amount, Meta(description="At most so much, of all nodes together.")]


class ResourceLeasingPolicySpec(ApiStruct):
    """What is lent of which nodes, when, and on which terms it is taken back."""

    cluster: Annotated[str, Meta(min_length=1, max_length=253, description="The ClusterBinding's name or clusterID.")]
    node_selector: NodeSelector | None = None
    time_windows: Annotated[tuple[TimeWindow, ...], Meta(max_length=64, description="None is always.")] = ()
    time_zone: TimeZone | None = None
    resource_limits: Annotated[
        tuple[ResourceLimit, ...],
        as_map("resource"),
        Meta(max_length=64, description="A resource that is not named is lent whole."),
    ] = ()
    total_limits: Annotated[
        tuple[TotalLimit, ...],
        as_map("resource"),
        Meta(
            max_length=64,
            description="The most of all nodes of a binding together, divided in proportion to their leases.",
        ),
    ] = ()
    force_reclaim: Annotated[bool, Meta(description="At the deadline, take back what pods still hold.")] = False
    graceful_reclaim_period_seconds: Annotated[
        int, Meta(ge=0, le=MAX_SECONDS, description="From the end of a window to the deadline.")
    ] = 0
    evict_during_grace: Annotated[bool, Meta(description="From the edge on, try evictions, so that budgets hold.")] = (
        False
    )


class PolicyLease(ApiStruct):
    """What one virtual cluster has leased under an owner's policy."""

    virtual_cluster: Annotated[str, Meta(description="Its hash, as in labels.")]
    cluster_binding: Annotated[str, Meta(description="Its name for this cluster.")]
    active: Annotated[bool, Meta(description="Whether a window is open.")]
    nodes: Annotated[int, Meta(description="That the policy lends now.")]
    leased: Annotated[dict[str, str], Meta(description="Of these, in all.")]


class ResourceLeasingPolicyStatus(ApiStruct):
    phase: Annotated[str, Meta(description="A summary of the conditions.")] | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    active: Annotated[bool, Meta(description="Whether a window is open.")] | None = None
    next_change: Annotated[datetime, Meta(description="When one opens or closes next.")] | None = None
    nodes: Annotated[int, Meta(description="That it lends now; none while it is closed.")] | None = None
    leased: Annotated[dict[str, str], Meta(description="Of these, in all.")] | None = None
    last_good: (
        Annotated[dict[str, Any], Meta(description="The spec that counts while this one is not valid.")] | None
    ) = None
    leases: Annotated[
        tuple[PolicyLease, ...],
        as_map("virtualCluster", "clusterBinding"),
        Meta(description="Of an owner's policy: what each virtual cluster has leased."),
    ] = ()


POLICIES = Resource(
    "cloud.tencent.com", "v1beta1", "ResourceLeasingPolicy", "resourceleasingpolicies", namespaced=False
)
POLICY: Kind[ResourceLeasingPolicySpec] = Kind(
    POLICIES,
    ResourceLeasingPolicySpec,
    ResourceLeasingPolicyStatus,
    description="Rules under which the nodes of a physical cluster are leased.",
    short_names=("rlp",),
    categories=("tapestry",),
    columns=(
        Column("Cluster", ".spec.cluster"),
        Column("Valid", '.status.conditions[?(@.type=="Valid")].status'),
        Column("Active", ".status.active", "boolean"),
        Column("Next-Change", ".status.nextChange"),
        Column("Nodes", ".status.nodes", "integer"),
        Column("Leased-CPU", ".status.leased.cpu"),
        AGE,
    ),
)
