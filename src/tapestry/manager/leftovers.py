"""Cleanup of physical objects after a forced unjoin, when the cluster is reachable again.

    forced unjoin     before the binding is deleted, an annotation on its kubeconfig Secret records the leftovers
    annotated Secret  the cluster is contacted with backoff; if it is the bound one, the binding's objects are deleted
    nothing left      the annotation is removed; a Secret that `tapestry join` created and no binding uses is deleted

A cluster that joined again meanwhile is bound under another UID.  Its new objects are not deleted.

The functions that remove a binding's syncer and, if forced, its virtual nodes and pods read from the server, never from
caches.  Each does what is possible now and returns whether it is done.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.field_types import SecretReference
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.ownership import delete_owned, owner_selector
from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager, Result, Terminal
from tapestry.kube.errors import TransportError
from tapestry.kube.names import safe_label_value
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
    with_type_meta,
)
from tapestry.kube.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS, SECRETS
from tapestry.manager.connectivity import Connect, access_from_secret, cached_secret
from tapestry.manager.syncers import SyncerDeployer
from tapestry.manager.validation import BindingError
from tapestry.process.logs import logger

log = logger(__name__)

IDENTITY_TIMEOUT = 30.0
"""Timeout for reading the identity of a cluster, in seconds."""
CLEANUP_POLL_INTERVAL = 5.0
"""Interval of checks while deleted objects still exist."""
RECHECK_SECONDS = 300.0
"""Interval of checks while the kubeconfig leads to a different cluster."""


class Leftover(msgspec.Struct, frozen=True, rename="camel"):
    """The place where objects of one deleted binding may be left."""

    binding: str
    uid: str
    virtual_cluster: str
    mount_namespace: str
    identity: str
    """UID of kube-system of the physical cluster."""

    def __str__(self) -> str:
        where = f"namespace {self.mount_namespace} of cluster {self.identity}"
        return f"objects of ClusterBinding {self.binding} ({self.uid}) in {where}"


def leftover_of(binding: Object, virtual_cluster_uid: str) -> Leftover | None:
    """Return what a binding may leave behind, or None if it never identified its cluster."""
    mount, identity = value_at(binding, "spec", "mountNamespace"), value_at(binding, "status", "identity")
    if not mount or not identity:
        return None
    return Leftover(name_of(binding), uid_of(binding), virtual_cluster_label(virtual_cluster_uid), mount, identity)


def leftovers_in(secret: Object | None) -> list[Leftover]:
    """Return the leftovers in a Secret's annotation.  An invalid annotation counts as empty."""
    text = annotations_of(secret).get(keys.LEFT_BEHIND) if secret is not None else None
    try:
        return msgspec.json.decode(text or "[]", type=list[Leftover])
    except msgspec.DecodeError:
        return []


def leftovers_patch(leftovers: Iterable[Leftover]) -> Object:
    """Return the patch for a Secret's annotation."""
    entries = list(leftovers)
    return {"metadata": {"annotations": {keys.LEFT_BEHIND: msgspec.json.encode(entries).decode() if entries else None}}}


async def record_leftover(client: Client, secret: Object | None, binding: Object) -> None:
    """Record the leftovers of a binding in its Secret.  Without a Secret, they cannot be cleaned up."""
    if secret is None:
        return
    leftover = leftover_of(binding, uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE)))
    recorded = leftovers_in(secret)
    if leftover is not None and leftover not in recorded:
        await client.patch(SECRETS, secret, leftovers_patch([*recorded, leftover]))


async def update_leftovers(client: Client, secret: Object, left: Sequence[Leftover]) -> None:
    """Update the annotation.  If nothing is left and only `join` used the Secret, delete the Secret."""
    if left or not await is_unused_secret(client, secret):
        await client.patch(SECRETS, secret, leftovers_patch(left))
    else:
        await client.delete(SECRETS, secret)


async def is_unused_secret(client: Client, secret: Object) -> bool:
    owners = {(each.virtual_cluster, safe_label_value(each.binding)) for each in leftovers_in(secret)}
    labels = labels_of(secret)
    if (labels.get(keys.VIRTUAL_CLUSTER), labels.get(keys.CLUSTER_BINDING)) not in owners:
        return False
    reference = {"name": name_of(secret), "namespace": namespace_of(secret)}
    return all(value_at(each, "spec", "secretRef") != reference for each in await client.list(CLUSTER_BINDINGS))


async def remove_leftovers(physical: Client, leftovers: Iterable[Leftover]) -> tuple[list[Leftover], list[str]]:
    """Delete the objects of each leftover.  Return the leftovers that are not done, and the objects found."""
    try:
        async with asyncio.timeout(IDENTITY_TIMEOUT):
            identity = uid_of(await physical.get(NAMESPACES, IDENTITY_NAMESPACE))
    except TimeoutError as error:
        message = f"the cluster did not respond within {IDENTITY_TIMEOUT:g} s"
        raise TransportError(message, maybe_sent=False) from error
    remaining, objects = [], []
    for leftover in leftovers:
        labels = owner_selector(leftover.virtual_cluster, leftover.uid)
        deleted = (
            await delete_owned(physical, leftover.mount_namespace, labels) if leftover.identity == identity else []
        )
        objects += deleted
        if deleted or leftover.identity != identity:
            remaining.append(leftover)
    return remaining, objects


@dataclass(frozen=True)
class LeftoverReconciler:
    """Clean up clusters after forced unjoins.  Keys are those of the kubeconfig Secrets."""

    manager: Manager
    secrets: Sequence[Informer]
    connect: Connect
    allow_loopback: bool = False

    async def reconcile(self, key: str) -> Result | None:
        secret = cached_secret(self.secrets, key)
        leftovers = leftovers_in(secret)
        if secret is None or not leftovers:
            return None
        if any([await self.has_binding(each) for each in leftovers]):
            return None  # its deletion triggers another reconcile
        try:
            access = access_from_secret(
                secret,
                SecretReference(name_of(secret), namespace_of(secret) or ""),
                allow_loopback=self.allow_loopback,
            )
        except BindingError as error:
            raise Terminal(error.reason, error.message) from error
        async with self.physical_client(access) as physical:
            remaining, objects = await remove_leftovers(physical, leftovers)
        if remaining != leftovers:
            await update_leftovers(self.manager.client, secret, remaining)
            self.record_removal(secret, [each for each in leftovers if each not in remaining])
        if remaining and not objects:
            log.warning("leftovers: kubeconfig leads to a different cluster", secret=key, server=access.server)
            return Result(requeue_after=RECHECK_SECONDS)
        return Result(requeue_after=CLEANUP_POLL_INTERVAL) if remaining else None

    async def has_binding(self, leftover: Leftover) -> bool:
        """Return whether the binding still exists."""
        binding = await self.manager.client.find(CLUSTER_BINDINGS, leftover.binding)
        return binding is not None and uid_of(binding) == leftover.uid

    def physical_client(self, access: Access) -> Client:
        """Return a client of the physical cluster that writes only while the manager leads."""
        fence = self.manager.elector.fence if self.manager.elector else None
        return Client(self.connect(access), fence=fence, audit=self.manager.audit, identity=self.manager.identity)

    def record_removal(self, secret: Object, done: Iterable[Leftover]) -> None:
        for each in done:
            log.info("leftovers removed", secret=key_of(secret), binding=each.binding, cluster=each.identity)
            self.manager.events.normal(with_type_meta(SECRETS, secret), "LeftoversRemoved", f"deleted {each}")


MAX_NAMED_PODS = 20
"""Maximum number of pods that an event names."""


async def remove_syncer(deployer: SyncerDeployer, binding: Object) -> bool:
    """Delete the Deployment, and after it all other objects of the binding's syncer.  Shared roles stay."""
    objects = await deployer.live_objects(binding)
    deployments = [(resource, obj) for resource, obj in objects if resource is DEPLOYMENTS]
    for resource, obj in deployments or objects:
        if not is_deleting(obj):
            await deployer.remove(resource, obj)
    return not objects


async def remove_virtual_nodes(client: Client, binding: Object, on_pods: Callable[[Sequence[Object]], None]) -> bool:
    """Delete the binding's virtual nodes and their pods, without a grace period.

    `on_pods` is called with the pods before they are deleted.
    """
    nodes = await virtual_nodes(client, binding)
    pods = [pod for node in nodes for pod in await client.list(PODS, fields=f"spec.nodeName={name_of(node)}")]
    if pods:
        on_pods(pods)
    for pod in pods:
        if not is_deleting(pod) or value_at(pod, "metadata", "deletionGracePeriodSeconds"):
            await client.delete_if_exists(PODS, pod, grace_seconds=0)
    for node in nodes:
        await client.delete_if_exists(NODES, node, grace_seconds=0)
    return not nodes or not await virtual_nodes(client, binding)


async def virtual_nodes(client: Client, binding: Object) -> list[Object]:
    return await client.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}")


def leftover_message(binding: Object, pods: Sequence[Object]) -> str:
    """Describe the objects that may remain in the physical cluster, and how to find them."""
    named = ", ".join(key_of(pod) for pod in pods[:MAX_NAMED_PODS])
    more = f" and {len(pods) - MAX_NAMED_PODS} more" if len(pods) > MAX_NAMED_PODS else ""
    twins = f"twins of the pods {named}{more}" if pods else "copies for its pods"
    mount = value_at(binding, "spec", "mountNamespace", default="?")
    selector = f"{keys.CLUSTER_BINDING_UID}={uid_of(binding)}"
    return (
        f"namespace {mount} of the physical cluster may still contain {twins}; find objects with the label {selector}"
    )
