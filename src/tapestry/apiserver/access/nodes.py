"""The Node authorizer: a kubelet may use its own Node, its pods, and what these refer to.

A kubelet is a user `system:node:<name>` in the group `system:nodes`.  The authorizer only adds rights; what it does not
allow may still be allowed by a role.  Rights that depend on the content of a write are limited by the admission plugin
NodeRestriction (`admission/node_restriction`): here a node may update any Node, there only its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tapestry.apiserver.access.bootstrap_roles import expected
from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.access.rbac import Rule, rules_of
from tapestry.apiserver.access.references import (
    ATTACHMENTS,
    CLAIMS,
    CONFIG_MAPS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
    SERVICE_ACCOUNTS,
    VOLUMES,
)
from tapestry.apiserver.requests import Target, User
from tapestry.apiserver.server import Attributes
from tapestry.kube.selectors import SelectorError, parse_field_selector

GROUP, PREFIX = "system:nodes", "system:node:"
ROLE = "system:node"
LEASES, CSI_NODES = "leases.coordination.k8s.io", "csinodes.storage.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"
READING = ("get", "list", "watch")
OWN_OBJECT = ("get", "create", "update", "patch", "delete")
WRITING_STATUS = ("update", "patch")


def node_of(user: User) -> str | None:
    """The name of the node that a user is, which may be empty; None where the user is no node."""
    return user.name.removeprefix(PREFIX) if user.name.startswith(PREFIX) and GROUP in user.groups else None


def node_rules() -> tuple[Rule, ...]:
    """What every node may do: the rules of the ClusterRole `system:node`."""
    roles = (obj for plural, obj in expected() if plural == "clusterroles" and obj["metadata"]["name"] == ROLE)
    return rules_of(next(roles))


def selects(fields: str, field: str, value: str) -> bool:
    """Whether a field selector chooses only objects with that value of a field."""
    try:
        terms = parse_field_selector(fields).terms
    except SelectorError:
        return False
    return any(term.field == field and term.equal and term.value == value for term in terms)


@dataclass(frozen=True)
class NodeAuthorizer:
    """Decides what nodes may do."""

    graph: NodeGraph
    rules: tuple[Rule, ...]

    def objection(self, asked: Attributes) -> str | None:
        """None where a node may do that; otherwise why not, which is empty where there is nothing to say."""
        node = node_of(asked.user)
        if node is None:
            return ""
        if not node:
            return f'unknown node for user "{asked.user.name}"'
        target = asked.target
        check = CHECKS.get(target.row.resource.name) if target is not None else None
        if target is not None and check is not None:
            return check(self, node, asked, target)
        return None if any(rule.allows(asked) for rule in self.rules) else ""

    def related(self, node: str, target: Target) -> str | None:
        if not target.name:
            return "No Object name found"
        if self.graph.reaches(node, (target.row.resource.name, target.namespace, target.name)):
            return None
        return f"no relationship found between node '{node}' and this object"

    def read_one(self, node: str, asked: Attributes, target: Target) -> str | None:
        """Secrets and ConfigMaps: also a list or a watch of a single one."""
        if asked.verb not in READING:
            return "can only read resources of this type"
        if target.subresource:
            return "cannot read subresource"
        if not target.namespace:
            return "can only read namespaced object of this type"
        return self.related(node, target)

    def get(self, node: str, asked: Attributes, target: Target) -> str | None:
        if asked.verb != "get":
            return "can only get individual resources of this type"
        return "cannot get subresource" if target.subresource else self.related(node, target)

    def claim(self, node: str, asked: Attributes, target: Target) -> str | None:
        if target.subresource != "status":
            return self.get(node, asked, target)
        if asked.verb not in WRITING_STATUS:
            return "can only get/update/patch this type"
        return self.related(node, target)

    def service_account(self, node: str, asked: Attributes, target: Target) -> str | None:
        if asked.verb == "get" and not target.subresource:
            return self.read_one(node, asked, target)
        if asked.verb != "create" or not target.name:
            return "can only create tokens for individual service accounts"
        if target.subresource != "token":
            return "can only create token subresource of serviceaccount"
        return self.related(node, target)

    def lease(self, node: str, asked: Attributes, target: Target) -> str | None:
        if asked.verb not in OWN_OBJECT:
            return "can only get, create, update, patch, or delete a node lease"
        if target.namespace != LEASE_NAMESPACE:
            return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
        if asked.verb != "create" and target.name != node:  # a new name is for NodeRestriction to check
            return "can only access node lease with the same name as the requesting node"
        return None

    def csi_node(self, node: str, asked: Attributes, target: Target) -> str | None:
        if asked.verb not in OWN_OBJECT:
            return "can only get, create, update, patch, or delete a CSINode"
        if target.subresource:
            return "cannot authorize CSINode subresources"
        if asked.verb != "create" and target.name != node:
            return "can only access CSINode with the same name as the requesting node"
        return None

    def resource_slice(self, node: str, asked: Attributes, target: Target) -> str | None:
        if target.subresource:
            return "cannot authorize ResourceSlice subresources"
        match asked.verb:
            case "create":
                return None
            case "get" | "update" | "patch" | "delete":
                return self.related(node, target)
            case "list" | "watch" | "deletecollection" if selects(asked.fields, "spec.nodeName", node):
                return None
        return "can only list/watch/deletecollection resourceslices with nodeName field selector"

    def node(self, node: str, asked: Attributes, target: Target) -> str | None:
        match asked.verb, target.subresource:
            case ("create" | "update" | "patch", "") | ("update" | "patch", "status"):
                return None
            case ("get" | "list" | "watch", "") if target.name == node:
                return None
            case ("get" | "list" | "watch", ""):
                read = f"read '{target.name}'" if target.name else "read all nodes"
                return f"node '{node}' cannot {read}, only its own Node object"
        return ""

    def pod(self, node: str, asked: Attributes, target: Target) -> str | None:
        match asked.verb, target.subresource:
            case ("create" | "delete", "") | ("update" | "patch", "status") | ("create", "eviction"):
                return None
            case ("get", ""):
                return self.related(node, target)
            case ("list" | "watch", ""):
                if selects(asked.fields, "spec.nodeName", node):
                    return None
                if target.name:
                    return self.related(node, target)
                return "can only list/watch pods with spec.nodeName field selector"
        return ""


Check = Callable[[NodeAuthorizer, str, Attributes, Target], str | None]
CHECKS: Mapping[str, Check] = {
    SECRETS: NodeAuthorizer.read_one,
    CONFIG_MAPS: NodeAuthorizer.read_one,
    CLAIMS: NodeAuthorizer.claim,
    VOLUMES: NodeAuthorizer.get,
    RESOURCE_CLAIMS: NodeAuthorizer.get,
    ATTACHMENTS: NodeAuthorizer.get,
    SERVICE_ACCOUNTS: NodeAuthorizer.service_account,
    LEASES: NodeAuthorizer.lease,
    CSI_NODES: NodeAuthorizer.csi_node,
    RESOURCE_SLICES: NodeAuthorizer.resource_slice,
    NODES: NodeAuthorizer.node,
    PODS: NodeAuthorizer.pod,
}
"""Resources of which a node may use some objects; of all others, what `system:node` allows."""
