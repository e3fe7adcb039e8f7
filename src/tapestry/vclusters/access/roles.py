"""Roles in projects, and the role that each method needs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from tapestry.apis.projects import AccessKeySpec, ProjectSpec, RoleName


class Role(IntEnum):
    """Role of a caller in a project, in order: a role includes all lower ones."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4
    PLATFORM_ADMIN = 5
    """Admin of every project, and of what belongs to no project."""


VIEWER, OPERATOR, EDITOR, ADMIN, PLATFORM_ADMIN = list(Role)[1:]

PROXY_METHOD = "ProxyVCluster"
"""A request to the API of a virtual cluster through the service. It is no RPC."""
MIN_ROLES: dict[str, Role] = {
    "GetVCluster": VIEWER,
    "ListVClusters": VIEWER,
    "WatchVCluster": VIEWER,
    "ListSnapshots": VIEWER,
    "GetSnapshot": VIEWER,
    "GetOperation": VIEWER,
    "ListOperations": VIEWER,
    "WaitOperation": VIEWER,
    "GetProject": VIEWER,
    "ListProjects": VIEWER,
    "SuspendVCluster": OPERATOR,
    "ResumeVCluster": OPERATOR,
    "SnapshotVCluster": OPERATOR,
    "GetVClusterKubeconfig": OPERATOR,
    PROXY_METHOD: OPERATOR,
    "CancelOperation": OPERATOR,
    "CreateVCluster": EDITOR,
    "UpdateVCluster": EDITOR,
    "ScaleVCluster": EDITOR,
    "RestoreVCluster": EDITOR,
    "DeleteVCluster": ADMIN,
    "DeleteSnapshot": ADMIN,
    "DeleteOperation": ADMIN,
    "UpdateProject": ADMIN,
    "GetQuota": ADMIN,
    "ListQuotas": ADMIN,
    "ListAuditRecords": ADMIN,
    "CreateProject": PLATFORM_ADMIN,
    "DeleteProject": PLATFORM_ADMIN,
    "UpdateQuota": PLATFORM_ADMIN,
    "ExportAuditRecords": PLATFORM_ADMIN,
    "VerifyAuditRecords": PLATFORM_ADMIN,
    "GetHostCluster": PLATFORM_ADMIN,
    "ListHostClusters": PLATFORM_ADMIN,
    "CreateHostCluster": PLATFORM_ADMIN,
    "DeleteHostCluster": PLATFORM_ADMIN,
    "UpdateHostCluster": PLATFORM_ADMIN,
}
"""Methods by the role that they need. From PLATFORM_ADMIN on, they act on what belongs to no project."""
OWN_KEY_METHODS = frozenset({"CreateAccessKey", "GetAccessKey", "ListAccessKeys", "DeleteAccessKey"})
"""Methods of access keys, of which each caller manages its own."""
KUBECONFIG_ROLES = {OPERATOR: "view", EDITOR: "edit", ADMIN: "cluster-admin", PLATFORM_ADMIN: "cluster-admin"}
"""ClusterRole in a virtual cluster that a credential for it gives, by the role of the caller."""


class Decision(Enum):
    """Decision about a request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """The caller sees the project, but its role does not include the method."""
    HIDDEN = "hidden"
    """The caller does not see the project, so nothing in it exists for the caller."""


@dataclass(frozen=True)
class Caller:
    """An authenticated caller, with the roles that its user has at this moment."""

    user: str
    credential: str
    """Id of the access key, or fingerprint of the certificate."""
    is_platform_admin: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)
    """Role of the user, by project."""
    scopes: Mapping[str, Role] | None = None
    """Highest role of the credential, by project; it is not valid in others. None: no limit."""

    def role_in(self, project: str) -> Role:
        """Return the role in a project. An empty project stands for what belongs to none."""
        role = PLATFORM_ADMIN if self.is_platform_admin else self.roles.get(project, Role.NONE)
        return role if self.scopes is None else min(role, self.scopes.get(project, Role.NONE))


def role_of(name: RoleName) -> Role:
    return Role[name.upper()]


def roles_in_projects(projects: Iterable[tuple[str, ProjectSpec]], user: str, groups: Iterable[str]) -> dict[str, Role]:
    """Return the highest role of a user in each project of which it, or one of its groups, is a member."""
    names = {("User", user), *(("Group", group) for group in groups)}
    found: dict[str, Role] = {}
    for project, spec in projects:
        roles = [role_of(each.role) for each in spec.members if (each.kind, each.name) in names]
        if roles:
            found[project] = max(roles)
    return found


def scopes_of(key: AccessKeySpec) -> dict[str, Role] | None:
    """Return the limits of an access key, or None if it has the full rights of its user."""
    return {each.project: role_of(each.role) for each in key.scopes} or None


def decide(caller: Caller, method: str, project: str = "") -> Decision:
    """Decide whether a caller may call a method on what belongs to a project."""
    if method in OWN_KEY_METHODS:
        return Decision.ALLOWED
    needed = MIN_ROLES[method]
    role = caller.role_in(project)
    if role >= needed:
        return Decision.ALLOWED
    if role == Role.NONE and needed < PLATFORM_ADMIN:
        return Decision.HIDDEN
    return Decision.DENIED
