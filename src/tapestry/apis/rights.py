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
    ACCESS_REVIEWS,
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


class Place(StrEnum):
    """Words for names that differ from one installation, or one binding, to the next."""

    HOME = "the manager's namespace"
    KUBECONFIGS = "a namespace of kubeconfigs"
    KUBECONFIG = "the binding's Secret"
    ELECTION = "the syncer's Lease"
    MOUNT = "the mount namespace"
    ACCOUNT = "the syncer's account below"
    ACCOUNT_NAMESPACE = "the namespace of the syncer's account below"


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on a resource: in one namespace or in all, on the objects named or on all."""

    resource: Resource
    verbs: tuple[str, ...]
    namespace: str = ""
    names: tuple[str, ...] = ()
    subresource: str = ""

    @property
    def kind(self) -> str:
        """`pods`, `pods/status`: as rules name it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    def __str__(self) -> str:
        """`create pods in team-a`, `get namespaces kube-system`: as people say it."""
        words = [",".join(self.verbs), self.kind, *self.names]
        return " ".join([*words, "in", self.namespace] if self.namespace else words)


READ = ("list", "watch")
KEEP = ("get", "list", "watch", "create", "patch", "delete")

CALLERS = (
    Right(TOKEN_REVIEWS, ("create",)),
    Right(ACCESS_REVIEWS, ("create",)),
)
"""To tell who calls, and whether they may: who reads /metrics, and who calls a virtual node."""

ELECTION = (
    Right(LEASES, ("create",), Place.HOME),
    Right(LEASES, ("get", "list", "watch", "update"), Place.HOME, (Place.ELECTION,)),
)

SYNCER_ABOVE = (
    Right(CLUSTER_BINDINGS, ("get", "list", "watch", "patch")),
    Right(CLUSTER_BINDINGS, ("patch",), subresource="status"),
    Right(POLICIES, READ),
    Right(POLICIES, ("patch",), subresource="status"),
    Right(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Right(NODES, KEEP),
    Right(NODES, ("patch",), subresource="status"),
    Right(CSI_NODES, ("list", "watch", "create", "patch", "delete")),
    Right(LEASES, ("get", "list", "create", "update", "delete")),
    Right(PODS, ("get", "list", "watch", "patch", "delete")),
    Right(PODS, ("patch",), subresource="status"),
    Right(PODS, ("create",), subresource="eviction"),
    Right(CONFIGMAPS, ("get", "list", "watch")),
    Right(SECRETS, ("get", "list", "watch")),
    Right(SERVICE_ACCOUNTS, ("create",), subresource="token"),
    Right(SERVICES, ("get", "list", "watch")),
    Right(ENDPOINT_SLICES, READ),
    Right(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch")),
    Right(PERSISTENT_VOLUME_CLAIMS, ("patch",), subresource="status"),
    Right(PERSISTENT_VOLUMES, ("get",)),
    Right(EVENTS, ("create", "patch")),
    *CALLERS,
)
"""Of a syncer in the virtual cluster: the ClusterRole `tapestry-syncer`."""

SYNC_BACK = (
    Right(CONFIGMAPS, ("patch",)),
    Right(SECRETS, ("patch",)),
)
"""Of a syncer in a virtual namespace that takes changes from below: the ClusterRole `tapestry-sync-back`."""

SYNCER_HOME = ELECTION
"""Of a syncer in the manager's namespace."""

SYNCER_HOST_PORTS = (Right(PODS, ("create",), keys.HOST_PORTS_NAMESPACE),)
"""Of every syncer where pods stand for host ports; installed with the namespace, so that nobody has to hand it on."""

SYNCER_KUBECONFIG = (Right(SECRETS, ("list", "watch", "patch"), Place.KUBECONFIGS, (Place.KUBECONFIG,)),)
"""Of a syncer where its kubeconfig is: it follows the Secret, and renews the token in it."""

SYNCER_BELOW = (
    Right(NODES, ("get", "list", "watch")),
    Right(PODS, READ),
    Right(CSI_NODES, READ),
    Right(POLICIES, READ),
    Right(POLICIES, ("patch",), subresource="status"),
    Right(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Right(NAMESPACES, READ, names=(Place.MOUNT,)),
    Right(SERVICE_ACCOUNTS, ("create",), Place.ACCOUNT_NAMESPACE, (Place.ACCOUNT,), "token"),
    Right(PODS, ("get", "create", "patch", "delete"), Place.MOUNT),
    Right(PODS, ("get",), Place.MOUNT, subresource="log"),
    Right(EVENTS, READ, Place.MOUNT),
    Right(PODS, ("patch",), Place.MOUNT, subresource="ephemeralcontainers"),
    Right(PODS, ("patch",), Place.MOUNT, subresource="resize"),
    Right(CONFIGMAPS, KEEP, Place.MOUNT),
    Right(SECRETS, KEEP, Place.MOUNT),
    Right(SERVICES, KEEP, Place.MOUNT),
    Right(ENDPOINT_SLICES, KEEP, Place.MOUNT),
)
"""Of a syncer in the physical cluster."""

SYNCER_VOLUMES = (
    Right(PERSISTENT_VOLUME_CLAIMS, ("get", "list", "watch", "create", "delete"), Place.MOUNT),
    Right(PERSISTENT_VOLUMES, KEEP),
)
"""Of a syncer in the physical cluster, too, where its binding lets volumes cross: these belong to no namespace."""

VOLUME_KINDS = frozenset(right.resource for right in SYNCER_VOLUMES)
"""Kinds without whose rights everything but volumes works."""

MANAGER = (
    Right(CLUSTER_BINDINGS, ("get", "list", "watch", "patch")),
    Right(CLUSTER_BINDINGS, ("patch",), subresource="status"),
    Right(POLICIES, READ),
    Right(NAMESPACES, ("get",), names=(IDENTITY_NAMESPACE,)),
    Right(CLUSTER_ROLE_BINDINGS, KEEP),
    Right(CLUSTER_ROLES, ("bind",), names=(SYNCER_ROLE,)),
    Right(NODES, ("list", "delete")),
    Right(PODS, ("list", "delete")),
    Right(EVENTS, ("create", "patch")),
    *CALLERS,
    Right(DEPLOYMENTS, KEEP, Place.HOME),
    Right(SERVICE_ACCOUNTS, KEEP, Place.HOME),
    Right(LEASES, ("get", "list", "watch", "create", "update"), Place.HOME),
    Right(ROLES, KEEP, Place.KUBECONFIGS),
    Right(ROLE_BINDINGS, KEEP, Place.KUBECONFIGS),
    Right(SECRETS, ("list", "watch", "patch", "delete"), Place.KUBECONFIGS),
)
"""Of the manager.  What it hands on in Roles it has to hold itself: elections at home, and to patch Secrets."""


def syncer_below(allowed: AllowedVolumes) -> tuple[Right, ...]:
    """The rights in the physical cluster of the syncer of a binding that lets these volumes cross."""
    return (*SYNCER_BELOW, *SYNCER_VOLUMES) if allowed.drivers else SYNCER_BELOW


def placed(rights: Iterable[Right], places: Mapping[Place, str]) -> list[Right]:
    """`rights` with the names of places; one about a place that has no name here is not needed, and left out."""

    def name(word: str) -> str:
        return places[word] if isinstance(word, Place) else word

    return [
        replace(right, namespace=name(right.namespace), names=tuple(map(name, right.names)))
        for right in rights
        if all(word in places for word in (right.namespace, *right.names) if isinstance(word, Place))
    ]


def rules(rights: Iterable[Right]) -> list[Object]:
    """The PolicyRules of a role; which namespace they hold in is for the role to say."""
    return [
        {
            "apiGroups": [right.resource.group],
            "resources": [right.kind],
            "verbs": list(right.verbs),
            **({"resourceNames": list(right.names)} if right.names else {}),
        }
        for right in rights
    ]


def single(rights: Iterable[Right]) -> list[Right]:
    """The same rights, each with one verb and at most one name: what can be asked about in one review."""
    return [
        replace(right, verbs=(verb,), names=(name,) if name else ())
        for right in rights
        for verb, name in product(right.verbs, right.names or ("",))
    ]


def attributes(right: Right) -> Object:
    """What an access review asks about a single right."""
    (verb,) = right.verbs
    found = {
        "verb": verb,
        "group": right.resource.group,
        "version": right.resource.version,
        "resource": right.resource.plural,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": "".join(right.names),
    }
    return {key: value for key, value in found.items() if value}
