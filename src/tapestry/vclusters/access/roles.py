"""Roles in projects, and the role that each method needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum


class Role(IntEnum):
    """Role of a caller in a project. A role includes all lower ones."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    EDITOR = 3
    ADMIN = 4
    PLATFORM_ADMIN = 5
    """Admin of every project, and of what belongs to no project."""


VIEWER, OPERATOR, EDITOR, ADMIN, PLATFORM_ADMIN = list(Role)[1:]

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
    "ProxyVCluster": OPERATOR,
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
    "GetQuotaUsage": ADMIN,
    "ListAuditEvents": ADMIN,
    "GetAuditEvent": ADMIN,
    "CreateProject": PLATFORM_ADMIN,
    "DeleteProject": PLATFORM_ADMIN,
    "UpdateQuota": PLATFORM_ADMIN,
    "ExportAuditEvents": PLATFORM_ADMIN,
    "VerifyAudit": PLATFORM_ADMIN,
    "GetHostCluster": PLATFORM_ADMIN,
    "ListHostClusters": PLATFORM_ADMIN,
    "CreateHostCluster": PLATFORM_ADMIN,
    "DeleteHostCluster": PLATFORM_ADMIN,
    "CheckHostCluster": PLATFORM_ADMIN,
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
class Scope:
    """Limit of an access key: its user's rights, but only in some projects, and with no higher role."""

    projects: frozenset[str] | None = None
    """Projects in which the key is valid. None means all."""
    role: Role = PLATFORM_ADMIN


@dataclass(frozen=True)
class Caller:
    """An authenticated caller, with the roles that projects and the platform give to its user at this moment."""

    user: str
    credential: str
    """Id of the access key, or fingerprint of the certificate."""
    is_platform_admin: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)

    def role_in(self, project: str) -> Role:
        """Return the role in a project. An empty project stands for what belongs to none."""
        if self.scope.projects is not None and project not in self.scope.projects:
            return Role.NONE
        role = PLATFORM_ADMIN if self.is_platform_admin else self.roles.get(project, Role.NONE)
        return min(role, self.scope.role)


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
