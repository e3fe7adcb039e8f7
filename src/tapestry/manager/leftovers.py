"""What a binding left below when it was ended by force, remembered until it is gone.

    by force          before the binding goes, the Secret with its kubeconfig is marked: whose things may be where
    marked            its cluster is asked, less and less often, until it answers; if it is the one that was bound,
                      everything goes there that is provably that binding's
    nothing is left   the mark goes, and with it the Secret, where `tapestry join` made it and no binding uses it

A cluster that joined again meanwhile is bound under another UID, and what it has now is left alone.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, SecretReference
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
    key_of,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
    with_type_meta,
)
from tapestry.kube.resources import NAMESPACES, SECRETS
from tapestry.manager.binding_errors import BindingError
from tapestry.manager.connectivity import Connect, access_from_secret, cached_secret
from tapestry.process.logs import logger

log = logger(__name__)

ANSWER_SECONDS = 30.0
"""For a cluster to say which one it is."""
CLEANUP_POLL_INTERVAL = 5.0
"""How often a cluster is looked at while something that was deleted is still there."""
RECHECK_SECONDS = 300.0
"""How often, while another cluster answers in its place."""


class Leftover(msgspec.Struct, frozen=True, rename="camel"):
    """Where things of one binding may be left."""

    binding: str
    uid: str
    virtual_cluster: str
    mount_namespace: str
    identity: str
    """Of the physical cluster."""

    def __str__(self) -> str:
        where = f"namespace {self.mount_namespace} of cluster {self.identity}"
        return f"what ClusterBinding {self.binding} ({self.uid}) left in {where}"


def leftover_of(binding: Object, virtual_cluster_uid: str) -> Leftover | None:
    """What a binding may leave behind; nothing, if it never got to know its cluster."""
    mount, identity = value_at(binding, "spec", "mountNamespace"), value_at(binding, "status", "identity")
    if not mount or not identity:
        return None
    return Leftover(name_of(binding), uid_of(binding), virtual_cluster_label(virtual_cluster_uid), mount, identity)


def leftovers_in(secret: Object | None) -> list[Leftover]:
    """What the mark of a Secret says; one that nobody can read says nothing."""
    text = annotations_of(secret).get(keys.LEFT_BEHIND) if secret is not None else None
    try:
        return msgspec.json.decode(text or "[]", type=list[Leftover])
    except msgspec.DecodeError:
        return []


def leftovers_patch(leftovers: Iterable[Leftover]) -> Object:
    """The patch that makes a Secret say so."""
    found = list(leftovers)
    return {"metadata": {"annotations": {keys.LEFT_BEHIND: msgspec.json.encode(found).decode() if found else None}}}


async def record_leftover(client: Client, secret: Object | None, binding: Object) -> None:
    """Mark the Secret of a binding that is about to go by force.  Without one, nobody can ever look there again."""
    if secret is None:
        return
    leftover = leftover_of(binding, uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE)))
    known = leftovers_in(secret)
    if leftover is not None and leftover not in known:
        await client.patch(SECRETS, secret, leftovers_patch([*known, leftover]))


async def update_leftovers(client: Client, secret: Object, left: Sequence[Leftover]) -> None:
    """Let the mark say what is left; if that is nothing, a Secret that `join` made for no other use goes with it."""
    if left or not await is_unused_secret(client, secret):
        await client.patch(SECRETS, secret, leftovers_patch(left))
    else:
        await client.delete(SECRETS, secret)


async def is_unused_secret(client: Client, secret: Object) -> bool:
    made_for = {(each.virtual_cluster, safe_label_value(each.binding)) for each in leftovers_in(secret)}
    labels = labels_of(secret)
    if (labels.get(keys.VIRTUAL_CLUSTER), labels.get(keys.CLUSTER_BINDING)) not in made_for:
        return False
    here = {"name": name_of(secret), "namespace": namespace_of(secret)}
    return all(value_at(each, "spec", "secretRef") != here for each in await client.list(CLUSTER_BINDINGS))


async def remove_leftovers(physical: Client, leftovers: Iterable[Leftover]) -> tuple[list[Leftover], list[str]]:
    """Remove what there is of each; returns those that are not done yet, and the objects that were still there."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            identity = uid_of(await physical.get(NAMESPACES, IDENTITY_NAMESPACE))
    except TimeoutError as error:
        message = f"the cluster did not answer within {ANSWER_SECONDS:g} s"
        raise TransportError(message, maybe_sent=False) from error
    left, objects = [], []
    for each in leftovers:
        labels = owner_selector(each.virtual_cluster, each.uid)
        found = await delete_owned(physical, each.mount_namespace, labels) if each.identity == identity else []
        objects += found
        if found or each.identity != identity:
            left.append(each)
    return left, objects


@dataclass(frozen=True)
class LeftoverReconciler:
    """Sweeps clusters that were left by force, once they are back; keyed as the Secrets of their kubeconfigs."""

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
            return None  # its going wakes us
        try:
            access = access_from_secret(
                secret,
                SecretReference(name_of(secret), namespace_of(secret) or ""),
                allow_loopback=self.allow_loopback,
            )
        except BindingError as fault:
            raise Terminal(fault.reason, fault.message) from fault
        async with self.physical_client(access) as physical:
            left, objects = await remove_leftovers(physical, leftovers)
        if left != leftovers:
            await update_leftovers(self.manager.client, secret, left)
            self.record_removal(secret, [each for each in leftovers if each not in left])
        if left and not objects:
            log.warning("another cluster answers than the one that was left", secret=key, server=access.server)
            return Result(requeue_after=RECHECK_SECONDS)
        return Result(requeue_after=CLEANUP_POLL_INTERVAL) if left else None

    async def has_binding(self, leftover: Leftover) -> bool:
        """Whether the binding has yet to go."""
        binding = await self.manager.client.find(CLUSTER_BINDINGS, leftover.binding)
        return binding is not None and uid_of(binding) == leftover.uid

    def physical_client(self, access: Access) -> Client:
        """A client of the physical cluster that writes only while the manager leads."""
        fence = self.manager.elector.fence if self.manager.elector else None
        return Client(self.connect(access), fence=fence, audit=self.manager.audit, identity=self.manager.identity)

    def record_removal(self, secret: Object, done: Iterable[Leftover]) -> None:
        for each in done:
            log.info("removed what was left", secret=key_of(secret), binding=each.binding, cluster=each.identity)
            self.manager.events.normal(with_type_meta(SECRETS, secret), "LeftoversRemoved", f"{each} is gone")
