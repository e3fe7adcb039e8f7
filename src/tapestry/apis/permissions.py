"""What each component may do: one table each, of which roles are made, manifests are printed and rights are checked.

A table says as little as the component needs.  Where it needs a right in a place that is only known later, the table
has a word for the place, and `placed` puts the name in.
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
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CSI_NODES,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)

SYNCER_ROLE = "tapestry-syncer"
"""The ClusterRole of every syncer, and the only one that the manager may bind."""
SYNC_BACK_ROLE = "tapestry-sync-back"
"""The ClusterRole that lets a syncer change ConfigMaps and Secrets.  Nobody is bound to it: a namespace that wants
changes to come up binds it to the account of the syncer."""
IDENTITY_NAMESPACE = "kube-system"
"""Its UID tells one cluster from another."""


class Placeholder(StrEnum):
    """Words for names that differ from one installation, or one binding, to the next."""

    MANAGER_NAMESPACE = "the manager's namespace"
    KUBECONFIG_NAMESPACE = "a namespace of kubeconfigs"
    KUBECONFIG_SECRET = "the binding's Secret"
    SYNCER_LEASE = "the syncer's Lease"
    MOUNT_NAMESPACE = "the mount namespace"
    SYNCER_ACCOUNT = "the syncer's account below"
    SYNCER_ACCOUNT_NAMESPACE = "the namespace of the syncer's account below"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource: in one namespace or in all, on the objects named or on all."""

    resource: Resource
    verbs: tuple[str, ...]
    namespace: str = ""
    names: tuple[str, ...] = ()
    subresource: str = ""

    @property
    def rule_resource(self) -> str:
        """`pods`, `pods/status`: as rules name it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        """`create pods in team-a`, `get namespaces kube-system`: as people say it."""
        words = [",".join(self.verbs), self.rule_resource, *self.names]
        return " ".join([*words, "in", self.namespace] if self.namespace else words)


LIST_WATCH = ("list", "watch")
READ_WRITE = ("get", "list", "watch", "create", "patch", "delete")

CALLER_REVIEWS = (
    Permission(TOKEN_REVIEWS, ("create",)),
    Permission(SUBJECT_ACCESS_REVIEWS, ("create",)),
)
"""To tell who calls, and whether they may: who reads /metrics, and who calls a virtual node."""

LEADER_ELECTION = (
    Permission(LEASES, ("create",), Placeholder.MANAGER_NAMESPACE),
    Permission(LEASES, ("get", "list", "watch", "update"), Placeholder.MANAGER_NAMESPACE, (Placeholder.SYNCER_LEASE,)),
)

SYNCER_IN_VIRTUAL = (
    Permission(CLUSTER_BINDINGS, ("get", "list", "watch", "patch")),
    Permission(CLUSTER_BINDINGS, ("patch",), subresource="status"),
    Permission(POLICIES, LIST_WATCH),
    Permission(POLICIES, ("patch",), subresource="status"),
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Permission(NODES, READ_WRITE),
    Permission(NODES, ("patch",), subresource="status"),
    Permission(CSI_NODES, ("list", "watch", "create", "patch", "delete")),
    Permission(LEASES, ("get", "list", "create", "update", "delete")),
    Permission(PODS, ("get", "list", "watch", "patch", "delete")),
    Permission(PODS, ("patch",), subresource="status"),
    Permission(PODS, ("create",), subresource="eviction"),
    Permission(CONFIGMAPS, ("get", "list", "watch")),
    Permission(SECRETS, ("get", "list", "watch")),
    Permission(SERVICE_ACCOUNTS, ("create",), subresource="token"),
    Permission(SERVICES, ("get", "list", "watch")),
    Permission(ENDPOINT_SLICES, LIST_WATCH),
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch")),
    Permission(PERSISTENT_VOLUME_CLAIMS, ("patch",), subresource="status"),
    Permission(PERSISTENT_VOLUMES, ("get",)),
    Permission(EVENTS, ("create", "patch")),
    *CALLER_REVIEWS,
)
"""Of a syncer in the virtual cluster: the ClusterRole `tapestry-syncer`."""

SYNC_BACK_PERMISSIONS = (
    Permission(CONFIGMAPS, ("patch",)),
    Permission(SECRETS, ("patch",)),
)
"""Of a syncer in a virtual namespace that takes changes from below: the ClusterRole `tapestry-sync-back`."""

SYNCER_LEADER_ELECTION = LEADER_ELECTION
"""Of a syncer in the manager's namespace."""

SYNCER_HOST_PORTS = (Permission(PODS, ("create",), keys.HOST_PORTS_NAMESPACE),)
"""Of every syncer where pods stand for host ports; installed with the namespace, so that nobody has to hand it on."""

SYNCER_KUBECONFIG = (
    Permission(SECRETS, ("list", "watch", "patch"), Placeholder.KUBECONFIG_NAMESPACE, (Placeholder.KUBECONFIG_SECRET,)),
)
"""Of a syncer where its kubeconfig is: it follows the Secret, and renews the token in it."""

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
    Permission(EVENTS, LIST_WATCH, Placeholder.MOUNT_NAMESPACE),
    Permission(PODS, ("patch",), Placeholder.MOUNT_NAMESPACE, subresource="ephemeralcontainers"),
    Permission(PODS, ("patch",), Placeholder.MOUNT_NAMESPACE, subresource="resize"),
    Permission(CONFIGMAPS, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(SECRETS, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(SERVICES, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
    Permission(ENDPOINT_SLICES, READ_WRITE, Placeholder.MOUNT_NAMESPACE),
)
"""Of a syncer in the physical cluster."""

SYNCER_VOLUMES = (
    Permission(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch", "create", "delete"), Placeholder.MOUNT_NAMESPACE),
    Permission(PERSISTENT_VOLUMES, READ_WRITE),
)
"""Of a syncer in the physical cluster, too, where its binding lets volumes cross: these belong to no namespace."""

VOLUME_KINDS = frozenset(right.resource for right in SYNCER_VOLUMES)
"""Kinds without whose rights everything but volumes works."""

MANAGER_PERMISSIONS = (
    Permission(CLUSTER_BINDINGS, ("get", "list", "watch", "patch")),
    Permission(CLUSTER_BINDINGS, ("patch",), subresource="status"),
    Permission(POLICIES, LIST_WATCH),
    Permission(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Permission(CLUSTER_ROLE_BINDINGS, READ_WRITE),
    Permission(CLUSTER_ROLES, ("bind",), names=(SYNCER_ROLE,)),
    Permission(NODES, ("list", "delete")),
    Permission(PODS, ("list", "delete")),
    Permission(EVENTS, ("create", "patch")),
    *CALLER_REVIEWS,
    Permission(DEPLOYMENTS, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    Permission(SERVICE_ACCOUNTS, READ_WRITE, Placeholder.MANAGER_NAMESPACE),
    Permission(LEASES, ("get", "list", "watch", "create", "update"), Placeholder.MANAGER_NAMESPACE),
    Permission(ROLES, READ_WRITE, Placeholder.KUBECONFIG_NAMESPACE),
    Permission(ROLE_BINDINGS, READ_WRITE, Placeholder.KUBECONFIG_NAMESPACE),
    Permission(SECRETS, ("list", "watch", "patch", "delete"), Placeholder.KUBECONFIG_NAMESPACE),
)
"""Of the manager.  What it hands on in Roles it has to hold itself: elections at home, and to patch Secrets."""


def syncer_physical_permissions(allowed: AllowedVolumes) -> tuple[Permission, ...]:
    """The rights in the physical cluster of the syncer of a binding that lets these volumes cross."""
    return (*SYNCER_IN_PHYSICAL, *SYNCER_VOLUMES) if allowed.drivers else SYNCER_IN_PHYSICAL


def with_names(permissions: Iterable[Permission], names: Mapping[Placeholder, str]) -> list[Permission]:
    """`rights` with the names of places; one about a place that has no name here is not needed, and left out."""

    def name(word: str) -> str:
        return names[word] if isinstance(word, Placeholder) else word

    return [
        replace(right, namespace=name(right.namespace), names=tuple(map(name, right.names)))
        for right in permissions
        if all(word in names for word in (right.namespace, *right.names) if isinstance(word, Placeholder))
    ]


def policy_rules(permissions: Iterable[Permission]) -> list[Object]:
    """The PolicyRules of a role; which namespace they hold in is for the role to say."""
    return [
        {
            "apiGroups": [right.resource.group],
            "resources": [right.rule_resource],
            "verbs": list(right.verbs),
            **({"resourceNames": list(right.names)} if right.names else {}),
        }
        for right in permissions
    ]


def single_permissions(permissions: Iterable[Permission]) -> list[Permission]:
    """The same rights, each with one verb and at most one name: what can be asked about in one review."""
    return [
        replace(right, verbs=(verb,), names=(name,) if name else ())
        for right in permissions
        for verb, name in product(right.verbs, right.names or ("",))
    ]


def resource_attributes(permission: Permission) -> Object:
    """What an access review asks about a single right."""
    (verb,) = permission.verbs
    found = {
        "verb": verb,
        "group": permission.resource.group,
        "version": permission.resource.version,
        "resource": permission.resource.plural,
        "subresource": permission.subresource,
        "namespace": permission.namespace,
        "name": "".join(permission.names),
    }
    return {key: value for key, value in found.items() if value}
