"""The kinds Project, Quota and AccessKey: who may use virtual clusters, and how many."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from tapestry.apis.field_types import DnsLabel, Name
from tapestry.apis.vclusters import LongText, Quantity, Text
from tapestry.kube.api_types import IMMUTABLE, ApiStruct, as_map, cel_rule
from tapestry.kube.crds import AGE, Column, Kind
from tapestry.kube.resources import Resource

Count = Annotated[int, Meta(ge=0)]


RoleName = Literal["viewer", "operator", "editor", "admin"]
"""Role in a project. Each has the rights of those before it."""


class Member(ApiStruct):
    """A user or a group with a role in the project."""

    kind: Literal["User", "Group"]
    name: Name
    role: RoleName


class ProjectSpec(ApiStruct):
    """A group of virtual clusters with the same members and quota."""

    display_name: Text | None = None
    description: LongText | None = None
    members: Annotated[
        tuple[Member, ...], as_map("kind", "name"), Meta(max_length=1000, description="Who may use the project.")
    ] = ()
    host_clusters: Annotated[
        tuple[Name, ...],
        Meta(max_length=256, description="HostClusters that its virtual clusters may use. Empty: all."),
    ] = ()


class ProjectStatus(ApiStruct):
    vclusters: int | None = None
    observed_generation: int | None = None


PROJECTS = Resource("tapestry.io", "v1alpha1", "Project", "projects", namespaced=False)
PROJECT: Kind[ProjectSpec] = Kind(
    PROJECTS,
    ProjectSpec,
    ProjectStatus,
    description="A group of virtual clusters with the same members and quota.",
    short_names=("vcproj",),
    categories=("tapestry",),
    columns=(Column("Name", ".spec.displayName"), Column("VClusters", ".status.vclusters", "integer"), AGE),
)


class QuotaLimits(ApiStruct):
    """Limits. What is not set is not limited."""

    vclusters: Count | None = None
    running_vclusters: Annotated[Count, Meta(description="Virtual clusters that are not suspended.")] | None = None
    cpu_requests: Quantity | None = None
    cpu_limits: Quantity | None = None
    memory_requests: Quantity | None = None
    memory_limits: Quantity | None = None
    storage: Quantity | None = None
    snapshots: Count | None = None
    snapshot_bytes: Quantity | None = None
    concurrent_operations: Count | None = None


class QuotaSpec(ApiStruct):
    """Limits of one project."""

    project: Annotated[DnsLabel, IMMUTABLE, Meta(description="Project with these limits.")]
    limits: Annotated[QuotaLimits, Meta(description="Limits of the whole project.")] = QuotaLimits()
    user_limits: Annotated[QuotaLimits, Meta(description="Limits of each owner in the project.")] = QuotaLimits()


class QuotaStatus(ApiStruct):
    """A report. Writes are checked against the virtual clusters themselves."""

    used: Annotated[dict[str, str], Meta(description="Usage by the name of the limit.")] | None = None
    update_time: datetime | None = None
    observed_generation: int | None = None


QUOTAS = Resource("tapestry.io", "v1alpha1", "Quota", "quotas", namespaced=False)
QUOTA: Kind[QuotaSpec] = Kind(
    QUOTAS,
    QuotaSpec,
    QuotaStatus,
    description="Limits of the virtual clusters of a project.",
    short_names=("vcquota",),
    categories=("tapestry",),
    columns=(
        Column("Project", ".spec.project"),
        Column("VClusters", ".status.used.vclusters"),
        Column("Limit", ".spec.limits.vclusters", "integer"),
        AGE,
    ),
)


class Scope(ApiStruct):
    """Role of an access key in a project."""

    project: DnsLabel
    role: RoleName


class AccessKeySpec(ApiStruct):
    """A key with which a program calls the service. Only a hash of it is stored."""

    __rules__ = (
        cel_rule("!self.platformAdmin || size(self.scopes) == 0", "the key of a platform admin has no scopes"),
    )

    principal: Annotated[Name, IMMUTABLE, Meta(description="Name of the user that the key stands for.")]
    secret_sha256: Annotated[str, IMMUTABLE, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    scopes: Annotated[
        tuple[Scope, ...],
        as_map("project"),
        Meta(max_length=100, description="Projects in which the key is valid, and the highest role that it has there."),
    ] = ()
    platform_admin: Annotated[bool, IMMUTABLE, Meta(description="Everything is allowed.")] = False
    description: LongText | None = None
    expire_time: Annotated[datetime, Meta(description="Time after which the key is invalid.")] | None = None


class AccessKeyStatus(ApiStruct):
    last_used_time: datetime | None = None


ACCESS_KEYS = Resource("tapestry.io", "v1alpha1", "AccessKey", "accesskeys", namespaced=False)
ACCESS_KEY: Kind[AccessKeySpec] = Kind(
    ACCESS_KEYS,
    AccessKeySpec,
    AccessKeyStatus,
    description="A key with which a program calls the service of virtual clusters.",
    short_names=("vckey",),
    columns=(
        Column("Principal", ".spec.principal"),
        Column("Expires", ".spec.expireTime", "date"),
        Column("Last used", ".status.lastUsedTime", "date"),
        Column("Description", ".spec.description", priority=1),
        AGE,
    ),
)
