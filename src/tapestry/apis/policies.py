"""The ResourceLeasingPolicy kind: leased resources, time windows and reclaim rules."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from tapestry.apis.field_types import Key, NodeSelector
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
"""English weekday, long or short, case-insensitive: patterns have no flag for that."""

MAX_SECONDS = 2**31 - 1
"""Maximum of an int32, which Kubernetes uses for seconds."""

TimeZone = Annotated[str, Meta(min_length=1, max_length=64, description="IANA time zone, for example Asia/Shanghai.")]
Amount = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=QUANTITY_PATTERN.replace("[+-]?", "[+]?", 1))]
"""Non-negative quantity."""


class TimeWindow(ApiStruct):
    """Daily time window from `start` to `end`.  If `end` is not after `start`, it ends on the next day.

    It belongs to the day on which it starts.  Equal times mean the whole day.
    """

    start: Annotated[str, Meta(pattern=CLOCK_PATTERN, description="Start time, HH:MM.")]
    end: Annotated[str, Meta(pattern=CLOCK_TO_24_PATTERN, description="End time, HH:MM, up to 24:00.")]
    days: Annotated[
        tuple[Annotated[str, Meta(pattern=DAY_PATTERN)], ...],
        Meta(max_length=7, description="English weekdays, long or short. Empty: every day."),
    ] = ()
    time_zone: TimeZone | None = None


class ResourceLimit(ApiStruct):
    """Limit on the leased amount of one resource: the lower of quantity and percentage.  Zero leases nothing."""

    resource: Annotated[Key, Meta(description="Resource name: cpu, memory, nvidia.com/gpu.")]
    quantity: Annotated[Amount, Meta(description="Maximum amount.")] | None = None
    percent: Annotated[int, Meta(ge=0, le=100, description="Maximum share of the idle amount.")] | None = None


class TotalLimit(ApiStruct):
    """Limit on the leased amount of one resource, summed over all nodes of a binding."""

    resource: Annotated[Key, Meta(description="Resource name: cpu, memory, pods, nvidia.com/gpu.")]
    quantity: Annotated[Amount, Meta(description="Maximum total amount.")]


class ResourceLeasingPolicySpec(ApiStruct):
    """Nodes and resources to lease, the times of leasing, and the rules for reclaiming."""

    cluster: Annotated[str, Meta(min_length=1, max_length=253, description="Name or clusterID of the ClusterBinding.")]
    node_selector: NodeSelector | None = None
    time_windows: Annotated[tuple[TimeWindow, ...], Meta(max_length=64, description="Empty: always open.")] = ()
    time_zone: TimeZone | None = None
    resource_limits: Annotated[
        tuple[ResourceLimit, ...],
        as_map("resource"),
        Meta(max_length=64, description="Limits per node. Other resources have no limit."),
    ] = ()
    total_limits: Annotated[
        tuple[TotalLimit, ...],
        as_map("resource"),
        Meta(
            max_length=64,
            description="Limits on the total of all nodes of a binding, divided in proportion to their leases.",
        ),
    ] = ()
    force_reclaim: Annotated[bool, Meta(description="At the deadline, delete remaining pods.")] = False
    graceful_reclaim_period_seconds: Annotated[
        int, Meta(ge=0, le=MAX_SECONDS, description="Seconds from the end of a window to the deadline.")
    ] = 0
    evict_during_grace: Annotated[bool, Meta(description="During the grace period, evict pods within budgets.")] = False


class PolicyLease(ApiStruct):
    """Amount that one virtual cluster leases under an owner's policy."""

    virtual_cluster: Annotated[str, Meta(description="Label value of the virtual cluster.")]
    cluster_binding: Annotated[str, Meta(description="ClusterBinding of this cluster.")]
    active: Annotated[bool, Meta(description="True while a window is open.")]
    nodes: Annotated[int, Meta(description="Number of nodes leased now.")]
    leased: Annotated[dict[str, str], Meta(description="Total amount leased now.")]


class ResourceLeasingPolicyStatus(ApiStruct):
    phase: Annotated[str, Meta(description="Summary of the conditions.")] | None = None
    conditions: Conditions = ()
    observed_generation: int | None = None
    active: Annotated[bool, Meta(description="True while a window is open.")] | None = None
    next_change: Annotated[datetime, Meta(description="Next opening or closing of a window.")] | None = None
    nodes: Annotated[int, Meta(description="Number of nodes leased now. 0 while closed.")] | None = None
    leased: Annotated[dict[str, str], Meta(description="Total amount leased now.")] | None = None
    last_good: (
        Annotated[dict[str, Any], Meta(description="Last valid spec, in effect while the spec is invalid.")] | None
    ) = None
    leases: Annotated[
        tuple[PolicyLease, ...],
        as_map("virtualCluster", "clusterBinding"),
        Meta(description="On an owner's policy: leases of each virtual cluster."),
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
