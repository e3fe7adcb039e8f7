"""Connection to a binding's physical cluster, and reconciler of the binding's status and deletion.

A syncer serves a binding whether or not a manager does. It pins the identity of the cluster behind the kubeconfig (the
UID of its kube-system namespace) and works with no other cluster unless a user approves it.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, LAST_SEEN_INTERVAL, SYNCER_REASONS, Binding
from tapestry.apis.mount_labels import (
    enforced_level,
    is_taken,
    stricter_level,
    taken_message,
    unmarked_message,
    virtual_cluster_of,
)
from tapestry.apis.ownership import delete_owned, owner_selector
from tapestry.apis.priorities import missing_class_message
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.errors import KubeconfigError
from tapestry.client.strict_kubeconfig import strict_access
from tapestry.client.transport import SmallResponseTransport, Transport
from tapestry.controller import ObjectCache, Result, Terminal
from tapestry.kube.conditions import find_condition, new_condition, with_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at, version_of
from tapestry.kube.patches import exact_map_patch, owned_patch
from tapestry.kube.pod_requests import occupies_node
from tapestry.kube.pods import taint_named
from tapestry.kube.quantity import ResourceList
from tapestry.kube.resources import NAMESPACES, NODES
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.config import SyncerConfig
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.drains import drained_condition
from tapestry.syncer.identity import Identity
from tapestry.syncer.lease_cache import LeaseCache
from tapestry.syncer.leasing import LeaseRules, soonest
from tapestry.syncer.partition import Partition
from tapestry.syncer.switchable_transport import SwitchableTransport
from tapestry.syncer.topdown.priority_class import PriorityClassState
from tapestry.syncer.virtual_nodes import leased_amounts

log = logger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = 1.0, 300.0
"""Seconds between attempts to connect."""
MARKED_CONDITION = "MountNamespaceMarked"


@dataclass(slots=True)
class ClusterIdentity:
    """UID of the physical cluster's kube-system namespace; None until it has been read."""

    uid: str | None = None


@dataclass
class Connector:
    """Connect the transports to the physical cluster, again with each new kubeconfig, also on a standby.

    It connects only to the cluster that the binding is pinned to. Pinning is a write and therefore left to the leader.
    If the binding changes to another cluster, Secret or mount namespace, the syncer is outdated: its caches belong to
    the old one.
    """

    identity: Identity
    current_binding: CurrentBinding
    secrets: ObjectCache
    transports: Sequence[SwitchableTransport]
    config: SyncerConfig
    cluster_identity: ClusterIdentity
    connection_key: Object
    """Spec fields that the informers were created for."""
    stop_outdated: Callable[[], None]
    """Stop the syncer so that the process builds a new one."""
    connect: Callable[[Access], Transport]
    on_identity_known: Callable[[], None]
    """Called when the identity behind a kubeconfig is known."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    secret_version: str = field(default="", init=False)
    """Resource version of the Secret that the transports use."""
    connected_uid: str = field(default="", init=False)
    """Identity of the cluster that the transports are connected to."""

    async def run(self) -> None:
        backoff = INITIAL_BACKOFF
        for informer in (self.current_binding.bindings, self.secrets):
            await informer.synced.wait()
        while True:
            await self.changed.wait()
            self.changed.clear()
            try:
                await self.reconnect()
                backoff = INITIAL_BACKOFF
            except (KubeError, Terminal, InvalidSpec) as error:
                log.warning("physical cluster connection failed", error=str(error), pause=backoff)
                if isinstance(error, KubeError):
                    await self.wait_for_change(backoff)
                    backoff = min(backoff * 2, MAX_BACKOFF)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait up to `seconds` for a change. A new kubeconfig is tried at once, the same one after that time."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            self.changed.set()

    async def reconnect(self) -> None:
        obj, binding = self.current_binding.object(), self.current_binding.get()
        if obj is None or binding is None:
            return
        if connection_key_of(obj) != self.connection_key:
            self.stop_outdated()
            return
        secret = kubeconfig_secret(self.secrets, binding, self.config)
        if version_of(secret) != self.secret_version:
            access = access_from_secret(secret, allow_loopback=self.config.allow_loopback)
            identity, mount = await self.probe_cluster(access)
            self.cluster_identity.uid = identity
            self.on_identity_known()
            if value_at(obj, "status", "identity") != identity:
                return
            if self.connected_uid not in ("", identity):
                self.stop_outdated()
                return
            if is_taken(mount, self.identity.virtual_cluster):  # retried: no event signals when it is free
                raise KubeError(taken_message(self.identity.mount_namespace, self.identity.virtual_cluster))
            for transport in self.transports:
                await transport.switch_to(access)
            self.secret_version, self.connected_uid = version_of(secret), identity
            log.info("physical cluster connected", binding=binding.name, server=access.server)

    def on_mount_namespace_change(self, _: Object | None, new: Object | None) -> None:
        """Handle a change of the mount namespace: stop if another virtual cluster owns it."""
        if is_taken(new, self.identity.virtual_cluster):
            log.warning("mount namespace owned by another virtual cluster", binding=self.identity.binding_name)
            self.stop_outdated()

    async def probe_cluster(self, access: Access) -> tuple[str, Object | None]:
        """Return the identity of the kubeconfig's cluster, and the mount namespace there."""
        untrusted = Client(SmallResponseTransport(self.connect(access)))
        try:
            identity = uid_of(await untrusted.get(NAMESPACES, "kube-system"))
            found = await untrusted.list(NAMESPACES, fields=f"metadata.name={self.identity.mount_namespace}")
            return identity, found[0] if found else None
        finally:
            await untrusted.close()


@dataclass(frozen=True)
class BindingReconciler:
    """Maintain the binding of a syncer; keyed by its name."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    lease_cache: LeaseCache
    partition: Partition
    cluster_identity: ClusterIdentity
    priority_class_state: PriorityClassState
    config: SyncerConfig
    now: Callable[[], datetime]
    stop: Callable[[], None]
    """Stop the syncer."""

    async def reconcile(self, _: str) -> Result | None:
        obj = self.current_binding.object()
        if obj is None:
            log.warning("binding deleted, stopping syncer", binding=self.identity.binding_name)
            self.stop()
            return None
        if is_deleting(obj):
            return await self.unbind(obj)
        if keys.SYNCER_FINALIZER not in obj["metadata"].get("finalizers", []):
            finalizers = [*obj["metadata"].get("finalizers", []), keys.SYNCER_FINALIZER]
            await self.clients.virtual.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": finalizers}})
            return None
        binding = self.current_binding.get()
        assert binding is not None
        kubeconfig_secret(self.caches.secrets, binding, self.config)
        if await self.pin(obj):
            return None  # the next pass sees the patched binding
        await self.update_status(obj, binding, self.now())
        return Result(requeue_after=LAST_SEEN_INTERVAL.total_seconds())

    async def pin(self, obj: Object) -> bool:
        """Record the identity of the cluster once; another one is rejected until a user approves it."""
        actual, pinned = self.cluster_identity.uid, value_at(obj, "status", "identity")
        if actual is None or actual == pinned:
            return False
        if pinned is not None and annotations_of(obj).get(keys.APPROVE_IDENTITY) != actual:
            message = f"the cluster is {actual}, bound was {pinned}; approve with {keys.APPROVE_IDENTITY}={actual}"
            self.clients.events.warning(obj, "IdentityChanged", message)
            raise Terminal("IdentityChanged", message)
        await self.clients.virtual.patch(CLUSTER_BINDINGS, obj, {"status": {"identity": actual}}, subresource="status")
        return True

    async def update_status(self, obj: Object, binding: Binding, now: datetime) -> None:
        """Update our part of the binding's status."""
        status = self.binding_status(obj, binding, now)
        patch = owned_patch(obj, {"status": status})
        recorded, seen = value_at(obj, "status", "lastSeen"), self.partition.last_seen()
        if seen is not None and (patch or recorded is None or seen - parse_time(recorded) >= LAST_SEEN_INTERVAL):
            patch = {"status": {**patch.get("status", {}), "lastSeen": timestamp(seen)}}
        metrics.update_binding(binding.name, status)
        if patch:
            await self.clients.virtual.patch(CLUSTER_BINDINGS, obj, patch, subresource="status")

    async def unbind(self, obj: Object) -> Result | None:
        """Remove the finalizer once both clusters contain nothing of the binding."""
        finalizers = obj["metadata"].get("finalizers", [])
        if keys.SYNCER_FINALIZER not in finalizers:
            return None
        if len(self.caches.virtual_nodes.store) or len(self.caches.placeholders.store):
            return None  # their deletion requeues the binding
        if self.is_in_policy_status():
            return None  # so does the change of the policies' status
        if await self.clients.virtual.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={self.identity.binding_uid}"):
            return Result(requeue_after=1)
        if self.partition.transport.is_connected and await self.remove_physical_objects():
            return Result(requeue_after=1)
        remaining = [each for each in finalizers if each != keys.SYNCER_FINALIZER]
        await self.clients.virtual.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": remaining}})
        log.info("binding cleanup finished, finalizer removed", binding=self.identity.binding_name)
        return None

    async def remove_physical_objects(self) -> list[str]:
        """Delete our objects in the physical cluster; return those that were still there."""
        owned = owner_selector(self.identity.virtual_cluster, self.identity.binding_uid)
        return await delete_owned(self.clients.physical, self.identity.mount_namespace, owned)

    def is_in_policy_status(self) -> bool:
        """Return whether a policy status still counts nodes of this binding; an owner's only while it is reachable."""
        name = self.identity.binding_name
        names = name, value_at(self.current_binding.object(), "spec", "clusterID")
        for policy in self.caches.operator_policies.store.list():
            is_ours = value_at(policy, "spec", "cluster") in names and not is_deleting(policy)
            if is_ours and value_at(policy, "status", "nodes"):
                return True
        if self.partition.since is not None or not self.caches.is_physical_synced:
            return False
        statuses = (policy.get("status") or {} for policy in self.caches.owner_policies.store.list())
        leases = (lease for status in statuses for lease in status.get("leases") or ())
        ours = self.identity.virtual_cluster, name
        return any((lease["virtualCluster"], lease["clusterBinding"]) == ours for lease in leases)

    def binding_status(self, obj: Object, binding: Binding, now: datetime) -> Object:
        nodes = self.caches.virtual_nodes.store.list()
        bound = (pod for node in nodes for pod in self.caches.pods_on(name_of(node)))
        pods = [pod for pod in bound if occupies_node(pod.object)]
        leased = ResourceList.total(map(leased_amounts, nodes))
        used = ResourceList.total(pod.requests for pod in pods)
        rules = self.lease_cache.lease_rules(binding)
        changes = [policy.schedule.next_change(now) for policy in (*rules.operator, *rules.owner)]
        change = soonest(*changes)
        conditions = value_at(obj, "status", "conditions", default=[])
        mount, is_class_missing = self.current_binding.mount_namespace(), self.priority_class_state.missing_message
        permitted = permitted_condition(obj, mount, self.identity, is_class_missing is not None)
        drained = drained_condition(obj, binding, self.caches, is_reachable=self.partition.since is None)
        for condition in (permitted, marked_condition(obj, mount, self.identity), drained):
            conditions = with_condition(conditions, condition, now) if condition is not None else conditions
        return {
            "nodes": len(nodes),
            "pods": len(pods),
            "leased": exact_map_patch(value_at(obj, "status", "leased"), leased.texts()),
            "used": exact_map_patch(value_at(obj, "status", "used"), used.texts()),
            "nextChange": timestamp(change) if change else None,
            "timeZone": self.config.time_zone,
            "conditions": with_condition(conditions, leasing_condition(obj, nodes, rules, self.partition.since), now),
        }


def kubeconfig_secret(secrets: ObjectCache, binding: Binding, config: SyncerConfig) -> Object:
    """Return the Secret with the kubeconfig. Raises Terminal if it is not allowed or does not exist."""
    reference = binding.spec.kubeconfig_secret
    if reference.namespace not in config.kubeconfig_namespaces:
        allowed = ", ".join(config.kubeconfig_namespaces)
        message = f"spec.secretRef.namespace: {reference.namespace} is not one of {allowed}"
        raise Terminal("SecretNamespaceNotAllowed", message)
    secret = secrets.store.get(f"{reference.namespace}/{reference.name}")
    if secret is None:
        raise Terminal("SecretMissing", f"there is no Secret {reference.namespace}/{reference.name}")
    return secret


def access_from_secret(secret: Object, *, allow_loopback: bool) -> Access:
    """Return the access of a Secret's kubeconfig. Raises Terminal if it is invalid."""
    data = value_at(secret, "data", "kubeconfig")
    if data is None:
        raise Terminal("KubeconfigMissing", "the Secret has no key `kubeconfig`")
    try:
        return strict_access(base64.b64decode(data, validate=True), allow_loopback=allow_loopback)
    except (KubeconfigError, binascii.Error) as error:
        raise Terminal("KubeconfigInvalid", str(error)) from error


def permitted_condition(obj: Object, mount: Object | None, identity: Identity, is_class_missing: bool) -> Object | None:
    """Return the Permitted condition: a missing priority class, or a Pod Security level that is too loose."""
    current = find_condition(value_at(obj, "status", "conditions"), "Permitted") or {}
    generation = obj["metadata"].get("generation", 0)
    if is_class_missing:
        message = missing_class_message(value_at(obj, "spec", "podPriorityClassName") or keys.PRIORITY_CLASS)
        return new_condition("Permitted", False, keys.PRIORITY_CLASS_MISSING, message, observed_generation=generation)
    level, enforced = value_at(obj, "spec", "podSecurity", default="baseline"), enforced_level(mount)
    if stricter_level(level, enforced) != level:
        message = (
            f"the binding has Pod Security level {level}, and the owner enforces {enforced} in namespace "
            f"{identity.mount_namespace}: {enforced} applies; set podSecurity to it, or have the owner loosen the label"
        )
        return new_condition("Permitted", False, keys.POD_SECURITY_STRICTER, message, observed_generation=generation)
    if current.get("reason") not in SYNCER_REASONS or mount is None:
        return None
    return new_condition("Permitted", True, "Permitted", observed_generation=generation)


def marked_condition(obj: Object, mount: Object | None, identity: Identity) -> Object | None:
    """Return the condition that the mount namespace lacks our label, or has it again."""
    if mount is None:
        return None
    generation = obj["metadata"].get("generation", 0)
    if not virtual_cluster_of(mount):
        message = unmarked_message(identity.mount_namespace, identity.virtual_cluster)
        return new_condition(
            MARKED_CONDITION, False, keys.MOUNT_NAMESPACE_UNMARKED, message, observed_generation=generation
        )
    if find_condition(value_at(obj, "status", "conditions"), MARKED_CONDITION) is None:
        return None
    return new_condition(MARKED_CONDITION, True, "Marked", observed_generation=generation)


def leasing_condition(
    obj: Object, nodes: Sequence[Object], rules: LeaseRules, unreachable_since: datetime | None
) -> Object:
    """Return the Leasing condition; `unreachable_since` is the start of a partition."""
    generation = obj["metadata"].get("generation", 0)
    if unreachable_since is not None:
        reason = "PhysicalClusterUnreachable"
        message = f"the physical cluster has not answered since {timestamp(unreachable_since)}"
    elif not (rules.operator or rules.owner):
        reason, message = "NoPolicy", "no ResourceLeasingPolicy names this binding, on either side"
    elif not nodes:
        reason, message = "NoNodes", "no node is selected and leased"
    elif rules.reclaim_now:
        reason = "Reclaimed"
        message = f"the owner's kill switch is on: {keys.RECLAIM}={keys.RECLAIM_NOW} on the mount namespace"
    elif all(taint_named(node, keys.OUT_OF_TIME_WINDOWS_TAINT) for node in nodes):
        reason, message = "OutOfTimeWindows", "every window is closed"
    else:
        return new_condition("Leasing", True, "Leasing", observed_generation=generation)
    return new_condition("Leasing", False, reason, message, observed_generation=generation)


def connection_key_of(binding: Object) -> Object:
    """Return the spec fields that a syncer is built on; when they change, a new one is needed."""
    return {field: binding["spec"].get(field) for field in ("secretRef", "mountNamespace")}
