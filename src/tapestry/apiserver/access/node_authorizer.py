"""Node authorizer: lets a kubelet use its own Node, its pods, and the objects that they refer to.

A kubelet is a user `system:node:<name>` in the group `system:nodes`. The authorizer only adds rights: a role may
allow what it does not. The admission plugin NodeRestriction (`admission/node_restriction`) limits rights that depend
on the content of a write: a node may update any Node here, but only its own there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from tapestry.apiserver.access.bootstrap_roles import CLUSTER_ROLES, bootstrap_objects
from tapestry.apiserver.access.node_graph import NodeGraph
from tapestry.apiserver.access.rbac import PolicyRule, rules_of
from tapestry.apiserver.core.references import (
    ATTACHMENTS,
    CLAIMS,
    CONFIG_MAPS,
    CSI_NODES,
    LEASE_NAMESPACE,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
    SERVICE_ACCOUNTS,
    VOLUMES,
    node_name_of_user,
)
from tapestry.apiserver.core.requests import Attributes, Target
from tapestry.apiserver.core.store import Key
from tapestry.kube.selectors import SelectorError, parse_field_selector

NODE_ROLE = "system:node"
READ_VERBS = ("get", "list", "watch")
OWN_OBJECT_VERBS = ("get", "create", "update", "patch", "delete")
STATUS_VERBS = ("update", "patch")


@cache
def node_rules() -> tuple[PolicyRule, ...]:
    """Return the rules of the ClusterRole `system:node`, which apply to all nodes."""
    return rules_of(bootstrap_objects()[Key(CLUSTER_ROLES, "", NODE_ROLE)])


def selects_only(field_selector: str, field: str, value: str) -> bool:
    """Return whether a field selector matches only objects with that value of a field."""
    try:
        terms = parse_field_selector(field_selector).terms
    except SelectorError:
        return False
    return any(term.field == field and term.equal and term.value == value for term in terms)


@dataclass(frozen=True)
class NodeAuthorizer:
    graph: NodeGraph
    rules: tuple[PolicyRule, ...]

    def denial_reason(self, attributes: Attributes) -> str | None:
        """Return None if the user is a node and may do this; otherwise the reason, which may be empty."""
        node = node_name_of_user(attributes.user)
        if node is None:
            return ""
        if not node:
            return f'unknown node for user "{attributes.user.name}"'
        target = attributes.target
        check = CHECKS.get(target.info.resource.name) if target is not None else None
        if target is not None and check is not None:
            return check(self, node, attributes, target)
        return None if any(rule.allows(attributes) for rule in self.rules) else ""

    def authorize_reference(self, node: str, target: Target) -> str | None:
        if not target.name:
            return "No Object name found"
        if self.graph.reaches(node, (target.info.resource.name, target.namespace, target.name)):
            return None
        return f"no relationship found between node '{node}' and this object"

    def authorize_read(self, node: str, attributes: Attributes, target: Target) -> str | None:
        """Authorize reads of Secrets and ConfigMaps, including a list or a watch of a single one."""
        if attributes.verb not in READ_VERBS:
            return "can only read resources of this type"
        if target.subresource:
            return "cannot read subresource"
        if not target.namespace:
            return "can only read namespaced object of this type"
        return self.authorize_reference(node, target)

    def authorize_get(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if attributes.verb != "get":
            return "can only get individual resources of this type"
        return "cannot get subresource" if target.subresource else self.authorize_reference(node, target)

    def authorize_claim(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if target.subresource != "status":
            return self.authorize_get(node, attributes, target)
        if attributes.verb not in STATUS_VERBS:
            return "can only get/update/patch this type"
        return self.authorize_reference(node, target)

    def authorize_service_account(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if attributes.verb == "get" and not target.subresource:
            return self.authorize_read(node, attributes, target)
        if attributes.verb != "create" or not target.name:
            return "can only create tokens for individual service accounts"
        if target.subresource != "token":
            return "can only create token subresource of serviceaccount"
        return self.authorize_reference(node, target)

    def authorize_lease(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if attributes.verb not in OWN_OBJECT_VERBS:
            return "can only get, create, update, patch, or delete a node lease"
        if target.namespace != LEASE_NAMESPACE:
            return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
        if attributes.verb != "create" and target.name != node:  # NodeRestriction checks the name of a new Lease
            return "can only access node lease with the same name as the requesting node"
        return None

    def authorize_csi_node(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if attributes.verb not in OWN_OBJECT_VERBS:
            return "can only get, create, update, patch, or delete a CSINode"
        if target.subresource:
            return "cannot authorize CSINode subresources"
        if attributes.verb != "create" and target.name != node:
            return "can only access CSINode with the same name as the requesting node"
        return None

    def authorize_resource_slice(self, node: str, attributes: Attributes, target: Target) -> str | None:
        if target.subresource:
            return "cannot authorize ResourceSlice subresources"
        match attributes.verb:
            case "create":
                return None
            case "get" | "update" | "patch" | "delete":
                return self.authorize_reference(node, target)
            case "list" | "watch" | "deletecollection" if selects_only(
                attributes.field_selector, "spec.nodeName", node
            ):
                return None
        return "can only list/watch/deletecollection resourceslices with nodeName field selector"

    def authorize_node(self, node: str, attributes: Attributes, target: Target) -> str | None:
        match attributes.verb, target.subresource:
            case ("create" | "update" | "patch", "") | ("update" | "patch", "status"):
                return None
            case ("get" | "list" | "watch", "") if target.name == node:
                return None
            case ("get" | "list" | "watch", ""):
                read = f"read '{target.name}'" if target.name else "read all nodes"
                return f"node '{node}' cannot {read}, only its own Node object"
        return ""

    def authorize_pod(self, node: str, attributes: Attributes, target: Target) -> str | None:
        match attributes.verb, target.subresource:
            case ("create" | "delete", "") | ("update" | "patch", "status") | ("create", "eviction"):
                return None
            case ("get", ""):
                return self.authorize_reference(node, target)
            case ("list" | "watch", ""):
                if selects_only(attributes.field_selector, "spec.nodeName", node):
                    return None
                if target.name:
                    return self.authorize_reference(node, target)
                return "can only list/watch pods with spec.nodeName field selector"
        return ""


Check = Callable[[NodeAuthorizer, str, Attributes, Target], str | None]
CHECKS: Mapping[str, Check] = {
    SECRETS: NodeAuthorizer.authorize_read,
    CONFIG_MAPS: NodeAuthorizer.authorize_read,
    CLAIMS: NodeAuthorizer.authorize_claim,
    VOLUMES: NodeAuthorizer.authorize_get,
    RESOURCE_CLAIMS: NodeAuthorizer.authorize_get,
    ATTACHMENTS: NodeAuthorizer.authorize_get,
    SERVICE_ACCOUNTS: NodeAuthorizer.authorize_service_account,
    LEASES: NodeAuthorizer.authorize_lease,
    CSI_NODES: NodeAuthorizer.authorize_csi_node,
    RESOURCE_SLICES: NodeAuthorizer.authorize_resource_slice,
    NODES: NodeAuthorizer.authorize_node,
    PODS: NodeAuthorizer.authorize_pod,
}
"""Checks for resources of which a node may use some objects. The rules of `system:node` apply to all others."""
