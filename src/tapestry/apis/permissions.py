"""Permission tables of the components, from which roles, manifests and access checks are built.

A table grants no more than the component needs.  A `Placeholder` stands for a name that is only known later.
`with_names` replaces the placeholders.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, AllowedVolumes
from tapestry.apis.policies import POLICIES
from tapestry.kube.objects import Object
from tapestry.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CSI_NODES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODE_LEASE_NAMESPACE,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_METRICS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SIGNING_REQUESTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    VERTICAL_AUTOSCALERS,
    Resource,
)

SYNCER_ROLE = "tapestry-syncer"
"""ClusterRole of every syncer, with the permissions that cannot be restricted by name."""
SYNC = "sync"
"""Verb on ClusterBindings that no request uses.  The admission policy of syncers checks it: a syncer may change the
nodes, policies and events of the bindings that it may sync."""
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
"""Signer of the certificates of kubelets, and of the kubelet API of virtual nodes."""
IDENTITY_NAMESPACE = "kube-system"
"""Namespace whose UID identifies a cluster."""


class Placeholder(StrEnum):
    """Names that differ between installations or bindings."""

    MANAGER_NAMESPACE = "the manager's namespace"
    KUBECONFIG_NAMESPACE = "a namespace of kubeconfigs"
    KUBECONFIG_SECRET = "the binding's Secret"
    BINDING = "the binding"
    BINDING_UID = "the UID of the binding"
    CLUSTER_ID = "the clusterID of the binding"
    SYNCER_LEASE = "the syncer's Lease"
    SERVING_SECRET = "the Secret with the syncer's serving certificate"
    MOUNT_NAMESPACE = "the mount namespace"
    SYNCER_ACCOUNT = "the syncer's account below"
    SYNCER_ACCOUNT_NAMESPACE = "the namespace of the syncer's account below"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource, in one namespace or all, and on the named objects or all."""

    resource: Resource
    verbs: tuple[str, ...]
    namespace: str = ""
    names: tuple[str, ...] = ()
    subresource: str = ""

    @property
    def rule_resource(self) -> str:
        """Return the resource as RBAC rules name it: `pods`, `pods/status`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        """Return a readable form: `create pods in team-a`, `get namespaces kube-system`."""
        resource = self.resource.name if self.resource is POD_METRICS else self.rule_resource
        words = [",".join(self.verbs), resource, *self.names]
        return " ".join([*words, "in", self.namespace] if self.namespace else words)


SIGNERS = Resource("certificates.k8s.io", "v1", "Signer", "signers", namespaced=False)
"""Signers of certificates, which exist only as names in roles."""
LIST_WATCH = ("list", "watch")
READ_WRITE = ("get", "list", "watch", "create", "patch", "delete")

CALLER_REVIEWS = (
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
"""Permissions to authenticate and authorize clients of /metrics and of virtual nodes."""

LEADER_ELECTION = (
    Permission(LEASES, ("create",), Placeholder.MANAGER_NAMESPACE),
    Permission(LEASES, ("get", "list", "watch", "update"), Placeholder.MANAGER_NAMESPACE, (Placeholder.SYNCER_LEASE,)),
)

SYNCER_IN_VIRTUAL = (
    Permission(POLICIES, LIST_WATCH),
    Permission(POLICIES, ("patch",), subresource="status"),
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Permission(NODES, ("get", "list", "watch", "create")),
    Permission(CSI_NODES, ("list", "watch", "create")),
    Permission(PODS, ("get", "list", "watch", "patch", "delete")),
    Permission(PODS, ("patch",), subresource="status"),
    Permission(SERVICES, ("get", "list", "watch")),
    Permission(ENDPOINT_SLICES, LIST_WATCH),
    Permission(EVENTS, ("create", "patch")),
    Permission(SIGNING_REQUESTS, ("get", "create")),
    *CALLER_REVIEWS,
)
"""Permissions of every syncer in the virtual cluster: the ClusterRole `tapestry-syncer`.  Names cannot restrict these;
the admission policy of syncers restricts the writes."""

SYNCER_BINDING = (
    Permission(CLUSTER_BINDINGS, ("get", "list", "watch", "patch"), names=(Placeholder.BINDING,)),
    Permission(CLUSTER_BINDINGS, ("patch",), names=(Placeholder.BINDING,), subresource="status"),
    Permission(CLUSTER_BINDINGS, (SYNC,), names=(Placeholder.BINDING_UID, Placeholder.BINDING, Placeholder.CLUSTER_ID)),
)
"""Permissions of a syncer on its binding."""

SYNCER_VOLUME_READS = (Permission(PERSISTENT_VOLUMES, ("get", "list", "watch")),)
"""More permissions of a syncer in the virtual cluster, if its binding allows volumes."""

SYNCER_NODES = (
    Permission(NODES, ("patch", "delete")),
    Permission(NODES, ("patch",), subresource="status"),
    Permission(CSI_NODES, ("patch", "delete")),
    Permission(LEASES, ("get", "update", "delete")),
)
"""Permissions of a syncer on the nodes of its binding, granted by their names."""

SYNCER_PODS = (
    Permission(CONFIGMAPS, ("get", "list", "watch")),
    Permission(PODS, ("create",), subresource="eviction"),
)
"""Permissions of a syncer in each namespace with pods on its nodes."""

SYNCER_CLAIMS = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch")),
    Permission(PERSISTENT_VOLUME_CLAIMS, ("patch",), subresource="status"),
)
"""More permissions there, if its binding allows volumes and the pods mount claims."""

SYNCER_SECRETS = (Permission(SECRETS, ("get", "list", "watch")),)
"""Permissions of a syncer on the Secrets that the pods use, granted by their names."""

SYNCER_TOKENS = (Permission(SERVICE_ACCOUNTS, ("create",), subresource="token"),)
"""Permissions of a syncer on the service accounts whose tokens the pods mount, granted by their names."""

SYNCER_AUTHENTICATION = (
    Permission(CONFIGMAPS, ("get", "list", "watch"), IDENTITY_NAMESPACE, ("extension-apiserver-authentication",)),
)
"""Permissions of every syncer on the published CAs of clients, which verify the callers of virtual nodes."""

SYNC_BACK_PERMISSIONS = {
    CONFIGMAPS: (Permission(CONFIGMAPS, ("patch",)),),
    SECRETS: (Permission(SECRETS, ("patch",)),),
}
"""Permissions of a syncer on the objects that the pods use, granted by their names in the namespaces of `syncBack`."""

SYNCER_NODE_LEASES = (Permission(LEASES, ("create", "list"), NODE_LEASE_NAMESPACE),)
"""Permissions of every syncer on node leases.  Installed like those in the host-ports namespace."""

SYNCER_LEADER_ELECTION = LEADER_ELECTION
"""Permissions of a syncer in the manager's namespace."""

SYNCER_SERVING_SECRET = (Permission(SECRETS, LIST_WATCH, Placeholder.MANAGER_NAMESPACE, (Placeholder.SERVING_SECRET,)),)
"""Permissions of a syncer on the Secret with a serving certificate, if there is one."""

SYNCER_HOST_PORTS = (Permission(PODS, ("create",), keys.HOST_PORTS_NAMESPACE),)
"""Permissions of every syncer in the host-ports namespace.  Installed with it, so the manager need not grant them."""

SYNCER_KUBECONFIG = (
    Permission(SECRETS, ("list", "watch", "patch"), Placeholder.KUBECONFIG_NAMESPACE, (Placeholder.KUBECONFIG_SECRET,)),
)
"""Permissions of a syncer on its kubeconfig Secret: it watches the Secret and renews the token in it."""

SYNCER_IN_PHYSICAL = (
    Permission(NODES, ("get", "list", "watch")),
    Permission(PODS, LIST_WATCH),
    Permission(CSI_NODES, LIST_WATCH),
    Permission(POLICIES, LIST_WATCH),
    Permission(POLICIES, ("patch",), subresource="status"),
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Permission(NAMESPACES, LIST_WATCH, names=(Placeholder.MOUNT_NAMESPACE,)),
    Permission(
        SERVICE_ACCOUNTS, ("create",), Placeholder.SYNCER_ACCOUNT_NAMESPACE, (Placeholder.SYNCER_ACCOUNT,), "token"
    ),
    Permission(PODS, ("get", "create", "patch", "delete"), Placeholder.MOUNT_NAMESPACE),
    Permission(PODS, ("get",), Placeholder.MOUNT_NAMESPACE, subresource="log"),
    Permission(POD_METRICS, ("list",), Placeholder.MOUNT_NAMESPACE),
    Permission(EVENTS, LIST_WATCH, Placeholder.MOUNT_NAMESPACE),
    Permission(PODS, ("patch",), Placeholder.MOUNT_NAMESPACE, subresource="ephemeralcontainers"),
    Permission(PODS, ("patch",), Placeholder.MOUNT_NAMESPACE, subresource="resize"),
    Permission(CONFIGMAPS, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(SECRETS, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(SERVICES, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(ENDPOINT_SLICES, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
)
"""Permissions of a syncer in the physical cluster."""

SYNCER_VOLUMES = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch", "create", "delete"), Placeholder.MOUNT_NAMESPACE),
    Permission(PERSISTENT_VOLUMES, READ_WRITE),
)
"""More permissions of a syncer in the physical cluster, if its binding allows volumes.  These are cluster-scoped."""

SYNCER_STREAMS = tuple(
    Permission(PODS, ("create", "get"), Placeholder.MOUNT_NAMESPACE, subresource=subresource)
    for subresource in ("exec", "attach", "portforward")
)
"""More permissions of a syncer in the physical cluster, unless the owner declines them.  A binding needs none of them.
SPDY requires `create`, and WebSocket requires `get`."""

JOINER = (
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE, Placeholder.MOUNT_NAMESPACE)),
    Permission(SERVICE_ACCOUNTS, ("list",), Placeholder.MOUNT_NAMESPACE),
    Permission(SERVICE_ACCOUNTS, ("create",), Placeholder.MOUNT_NAMESPACE, (Placeholder.SYNCER_ACCOUNT,), "token"),
)
"""Permissions of `tapestry join --prepared` in the physical cluster."""

OPTIONAL_FEATURES = {
    **{permission.resource: "volumes are not synced" for permission in SYNCER_VOLUMES},
    POD_METRICS: "the usage of pods and virtual nodes is unknown",
}
"""Resources that only one feature needs, and what happens without permissions on them.  Everything else works."""

SYNCER_DEPLOYMENTS = (
    Permission(DEPLOYMENTS, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    Permission(DISRUPTION_BUDGETS, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    Permission(VERTICAL_AUTOSCALERS, ("get", "create", "patch", "delete"), Placeholder.MANAGER_NAMESPACE),
)
"""Permissions of the manager in the cluster that syncers run in."""

MANAGER_PERMISSIONS = (
    Permission(CLUSTER_BINDINGS, ("get", "list", "watch", "patch")),
    Permission(CLUSTER_BINDINGS, ("patch",), subresource="status"),
    Permission(POLICIES, LIST_WATCH),
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Permission(CLUSTER_ROLES, (*READ_WRITE, "bind", "escalate")),
    Permission(CLUSTER_ROLE_BINDINGS, READ_WRITE),
    Permission(ROLES, (*READ_WRITE, "bind", "escalate")),
    Permission(ROLE_BINDINGS, READ_WRITE),
    Permission(ADMISSION_POLICIES, LIST_WATCH),
    Permission(ADMISSION_POLICY_BINDINGS, LIST_WATCH),
    Permission(NODES, ("list", "watch", "delete")),
    Permission(PODS, ("list", "watch", "delete")),
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get",)),
    Permission(PERSISTENT_VOLUMES, ("get",)),
    Permission(SIGNING_REQUESTS, LIST_WATCH),
    Permission(SIGNING_REQUESTS, ("patch",), subresource="approval"),
    Permission(SIGNERS, ("approve",), names=(SERVING_SIGNER,)),
    Permission(EVENTS, ("create", "patch")),
    *CALLER_REVIEWS,
    Permission(SERVICES, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    *SYNCER_DEPLOYMENTS,
    Permission(SERVICE_ACCOUNTS, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    Permission(LEASES, ("get", "list", "watch", "create", "update"), Placeholder.MANAGER_NAMESPACE),
    Permission(SECRETS, ("list", "watch", "patch", "delete"), Placeholder.KUBECONFIG_NAMESPACE),
)
"""Permissions of the manager.  It may write any role; its admission policy restricts that to the roles of syncers."""


MANAGER_TOKEN_PERMISSIONS = (
    Permission(SERVICE_ACCOUNTS, ("create",), Placeholder.MANAGER_NAMESPACE, subresource="token"),
)
"""More permissions of a manager whose syncers run in another cluster: it issues their tokens."""

MANAGER_IN_MANAGEMENT = (
    *SYNCER_DEPLOYMENTS,
    Permission(SECRETS, ("get", "list", "create", "patch", "delete"), Placeholder.MANAGER_NAMESPACE),
)
"""Permissions of the manager in another cluster that syncers run in: also on the Secrets with their credentials."""


def syncer_physical_permissions(allowed: AllowedVolumes) -> tuple[Permission, ...]:
    """Return the physical permissions of a syncer whose binding allows these volumes."""
    return (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES) if allowed.drivers else SYNCER_IN_PHYSICAL


def with_names(permissions: Iterable[Permission], names: Mapping[Placeholder, str]) -> list[Permission]:
    """Return `permissions` with placeholders replaced.  Permissions with a placeholder that has no name are omitted."""

    def name(text: str) -> str:
        return names[text] if isinstance(text, Placeholder) else text

    return [
        replace(permission, namespace=name(permission.namespace), names=tuple(map(name, permission.names)))
        for permission in permissions
        if all(text in names for text in (permission.namespace, *permission.names) if isinstance(text, Placeholder))
    ]


def with_object_names(permissions: Iterable[Permission], names: Iterable[str]) -> list[Permission]:
    """Return `permissions` on these objects only: none without a name, because a rule without names allows all."""
    ordered = tuple(sorted(names))
    return [replace(permission, names=ordered) for permission in permissions] if ordered else []


def policy_rules(permissions: Iterable[Permission]) -> list[Object]:
    """Return the PolicyRules of a role.  The role determines the namespace in which they apply."""
    return [
        {
            "apiGroups": [permission.resource.group],
            "resources": [permission.rule_resource],
            "verbs": list(permission.verbs),
            **({"resourceNames": list(permission.names)} if permission.names else {}),
        }
        for permission in permissions
    ]


def single_permissions(permissions: Iterable[Permission]) -> list[Permission]:
    """Split permissions into one verb and at most one name each, as access reviews require."""
    return [
        replace(permission, verbs=(verb,), names=(name,) if name else ())
        for permission in permissions
        for verb, name in product(permission.verbs, permission.names or ("",))
    ]


def resource_attributes(permission: Permission) -> Object:
    (verb,) = permission.verbs
    attributes = {
        "verb": verb,
        "group": permission.resource.group,
        "version": permission.resource.version,
        "resource": permission.resource.plural,
        "subresource": permission.subresource,
        "namespace": permission.namespace,
        "name": "".join(permission.names),
    }
    return {key: value for key, value in attributes.items() if value}
