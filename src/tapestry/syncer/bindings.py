"""The binding itself, as its syncer sees it: the kubeconfig, who is behind it, what is lent in all, and the end.

A syncer works for a binding whether or not a manager looks after it.  It pins the identity of the cluster behind the
kubeconfig (the UID of kube-system there) and works with no other unless somebody approves of it.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.belongings import remove_all, selector
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, LAST_SEEN_EVERY, SYNCER_REASONS, Binding
from tapestry.apis.mounts import enforced_level, is_taken, mark_of, stricter, taken_message, unmarked_message
from tapestry.apis.names import virtual_cluster_label
from tapestry.apis.priorities import missing_message
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.errors import KubeconfigError
from tapestry.client.strict_kubeconfig import from_secret
from tapestry.client.transport import SmallAnswers, Transport
from tapestry.controller import Result, Terminal
from tapestry.kube.conditions import condition, find, with_condition
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, annotations_of, is_deleting, uid_of, value_at, version_of
from tapestry.kube.patches import exactly, owned_patch
from tapestry.kube.quantity import Amounts
from tapestry.kube.requests import holds_its_node
from tapestry.kube.resources import NAMESPACES, NODES
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer import metrics
from tapestry.syncer.leasing import Rules, soonest
from tapestry.syncer.site import Site, ground_of
from tapestry.syncer.virtual_nodes import leased_of, taint_named

log = logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between attempts to connect."""
MARKED = "MountNamespaceMarked"


@dataclass
class Connector:
    """Opens the doors to the physical cluster, and again with each new kubeconfig; on a standby too.

    They are opened only to the cluster that the binding is pinned to.  Pinning is a write, so it is for the leader.
    Where the binding leads to another cluster, Secret or mount namespace than it did, the site is of no more use: what
    was listed and watched there means nothing here.
    """

    site: Site
    connect: Callable[[Access], Transport]
    on_found: Callable[[], None]
    """Called when it is known who is behind a kubeconfig."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    opened: str = field(default="", init=False)
    """The version of the Secret that the doors were opened with."""
    identity: str = field(default="", init=False)
    """Of the cluster that they were opened to."""

    async def run(self) -> None:
        pause = FIRST_PAUSE
        for informer in (self.site.bindings, self.site.secrets):
            await informer.synced.wait()
        while True:
            await self.changed.wait()
            self.changed.clear()
            try:
                await self.open_doors()
                pause = FIRST_PAUSE
            except (KubeError, Terminal, InvalidSpec) as error:
                log.warning("cannot connect to the physical cluster", error=str(error), pause=pause)
                if isinstance(error, KubeError):
                    await self.wait_for_change(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)

    async def wait_for_change(self, seconds: float) -> None:
        """Another kubeconfig is tried at once; the same one after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            self.changed.set()

    async def open_doors(self) -> None:
        site = self.site
        obj, binding = site.binding_object(), site.binding()
        if obj is None or binding is None:
            return
        if ground_of(obj) != site.ground:
            self.leave()
            return
        secret = secret_of(site, binding)
        if version_of(secret) != self.opened:
            access = access_in(secret, allow_loopback=site.config.allow_loopback)
            identity, mount = await self.behind(access)
            site.behind.identity = identity
            self.on_found()
            if value_at(obj, "status", "identity") != identity:
                return
            if self.identity not in ("", identity):
                self.leave()
                return
            if is_taken(mount, site.virtual_cluster):  # nobody tells us when it is free, so it is tried again
                raise KubeError(taken_message(site.mount_namespace, site.virtual_cluster))
            await site.reads.open(access)
            await site.writes.open(access)
            self.opened, self.identity = version_of(secret), identity
            log.info("connected to the physical cluster", binding=binding.name, server=access.server)

    def leave(self) -> None:
        log.info("the binding leads elsewhere", binding=self.site.binding_name)
        self.site.outdated.set()
        self.site.manager.stop()

    def saw_mount(self, _: Object | None, new: Object | None) -> None:
        """A handler of the changes of the mount namespace: once it is another's, nothing is done there any more."""
        if is_taken(new, self.site.virtual_cluster):
            log.warning("the mount namespace belongs to another virtual cluster", binding=self.site.binding_name)
            self.leave()

    async def behind(self, access: Access) -> tuple[str, Object | None]:
        """The identity of the cluster that the kubeconfig leads to, and the mount namespace there."""
        stranger = Client(SmallAnswers(self.connect(access)))
        try:
            identity = uid_of(await stranger.get(NAMESPACES, "kube-system"))
            found = await stranger.list(NAMESPACES, fields=f"metadata.name={self.site.mount_namespace}")
            return identity, found[0] if found else None
        finally:
            await stranger.close()


@dataclass(frozen=True)
class Bindings:
    """Looks after the one binding of a site; keyed by its name."""

    site: Site

    async def reconcile(self, _: str) -> Result | None:
        site = self.site
        obj = site.binding_object()
        if obj is None:
            log.warning("the binding is gone", binding=site.binding_name)
            site.manager.stop()
            return None
        if is_deleting(obj):
            return await self.unbind(obj)
        if keys.SYNCER_FINALIZER not in obj["metadata"].get("finalizers", []):
            finalizers = [*obj["metadata"].get("finalizers", []), keys.SYNCER_FINALIZER]
            await site.virtual.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": finalizers}})
            return None
        binding = site.binding()
        assert binding is not None
        secret_of(site, binding)
        if await self.pin(obj):
            return None  # the binding has moved on: the next pass sees it
        await self.tell(obj, binding, site.now())
        return Result(requeue_after=LAST_SEEN_EVERY.total_seconds())

    async def pin(self, obj: Object) -> bool:
        """Note which cluster this is, once; another one is refused until somebody approves of it."""
        found, pinned = self.site.behind.identity, value_at(obj, "status", "identity")
        if found is None or found == pinned:
            return False
        if pinned is not None and annotations_of(obj).get(keys.APPROVE_IDENTITY) != found:
            message = f"the cluster is {found}, bound was {pinned}; approve with {keys.APPROVE_IDENTITY}={found}"
            self.site.manager.events.warning(obj, "IdentityChanged", message)
            raise Terminal("IdentityChanged", message)
        await self.site.virtual.patch(CLUSTER_BINDINGS, obj, {"status": {"identity": found}}, subresource="status")
        return True

    async def tell(self, obj: Object, binding: Binding, now: datetime) -> None:
        """Keep the part of the status that is ours."""
        status = status_of(self.site, obj, binding, now)
        patch = owned_patch(obj, {"status": status})
        told, seen = value_at(obj, "status", "lastSeen"), self.site.last_seen()
        if seen is not None and (patch or told is None or seen - parse_time(told) >= LAST_SEEN_EVERY):
            patch = {"status": {**patch.get("status", {}), "lastSeen": timestamp(seen)}}
        metrics.show(binding.name, status)
        if patch:
            await self.site.virtual.patch(CLUSTER_BINDINGS, obj, patch, subresource="status")

    async def unbind(self, obj: Object) -> Result | None:
        """Let go of the binding once nothing of it is left, above or below."""
        finalizers = obj["metadata"].get("finalizers", [])
        if keys.SYNCER_FINALIZER not in finalizers:
            return None
        if len(self.site.virtual_nodes.store) or len(self.site.placeholders.store):
            return None  # their going wakes us
        if still_told_of(self.site):
            return None  # so does what is said about them
        if await self.site.virtual.list(NODES, labels=f"{keys.CLUSTER_BINDING_UID}={self.site.binding_uid}"):
            return Result(requeue_after=1)
        if self.site.reads.is_open and await self.left_below():
            return Result(requeue_after=1)
        kept = [each for each in finalizers if each != keys.SYNCER_FINALIZER]
        await self.site.virtual.patch(CLUSTER_BINDINGS, obj, {"metadata": {"finalizers": kept}})
        log.info("let go of the binding", binding=self.site.binding_name)
        return None

    async def left_below(self) -> list[str]:
        """What was there of ours below; it is on its way out now."""
        site = self.site
        return await remove_all(site.physical, site.mount_namespace, selector(site.virtual_cluster, site.binding_uid))


def still_told_of(site: Site) -> bool:
    """Whether a policy still speaks of nodes that this binding leases; an owner's only as long as we can reach it."""
    mine = [each for each in site.operator_policies.store.list() if spec_names(site, each) and not is_deleting(each)]
    if any(value_at(policy, "status", "nodes") for policy in mine):
        return True
    if site.partition.since is not None or not site.is_known:
        return False
    label = virtual_cluster_label(site.virtual_cluster_uid)
    leases = (
        lease
        for policy in site.owner_policies.store.list()
        for lease in value_at(policy, "status", "leases", default=[])
    )
    return any((lease["virtualCluster"], lease["clusterBinding"]) == (label, site.binding_name) for lease in leases)


def spec_names(site: Site, policy: Object) -> bool:
    obj = site.binding_object()
    return value_at(policy, "spec", "cluster") in (site.binding_name, value_at(obj, "spec", "clusterID"))


def secret_of(site: Site, binding: Binding) -> Object:
    """The Secret with the kubeconfig; Terminal where it may not be used or is not there."""
    reference = binding.spec.secret_ref
    if reference.namespace not in site.config.kubeconfig_namespaces:
        allowed = ", ".join(site.config.kubeconfig_namespaces)
        message = f"spec.secretRef.namespace: {reference.namespace} is not one of {allowed}"
        raise Terminal("SecretNamespaceNotAllowed", message)
    secret = site.secrets.store.get(f"{reference.namespace}/{reference.name}")
    if secret is None:
        raise Terminal("SecretMissing", f"there is no Secret {reference.namespace}/{reference.name}")
    return secret


def access_in(secret: Object, *, allow_loopback: bool) -> Access:
    """The access that a Secret's kubeconfig gives; Terminal says what is wrong with it."""
    data = value_at(secret, "data", "kubeconfig")
    if data is None:
        raise Terminal("KubeconfigMissing", "the Secret has no key `kubeconfig`")
    try:
        return from_secret(base64.b64decode(data, validate=True), allow_loopback=allow_loopback)
    except (KubeconfigError, binascii.Error) as error:
        raise Terminal("KubeconfigInvalid", str(error)) from error


def status_of(site: Site, obj: Object, binding: Binding, now: datetime) -> Object:
    nodes = site.virtual_nodes.store.list()
    pods = [pod for node in nodes for pod in site.pods_on(node["metadata"]["name"]) if holds_its_node(pod)]
    leased = Amounts.total(map(leased_of, nodes))
    used = Amounts.total(pod["held"] for pod in pods)
    rules = site.rules(binding)
    changes = [policy.schedule.next_change(now) for policy in (*rules.operator, *rules.owner)]
    change = soonest(*changes)
    conditions = value_at(obj, "status", "conditions", default=[])
    for found in (permission(site, obj), marked(site, obj)):
        conditions = with_condition(conditions, found, now) if found is not None else conditions
    return {
        "nodes": len(nodes),
        "pods": len(pods),
        "leased": exactly(value_at(obj, "status", "leased"), leased.texts()),
        "used": exactly(value_at(obj, "status", "used"), used.texts()),
        "nextChange": timestamp(change) if change else None,
        "timeZone": site.config.time_zone,
        "conditions": with_condition(conditions, leasing(obj, nodes, rules, site.partition.since), now),
    }


def permission(site: Site, obj: Object) -> Object | None:
    """What the syncer itself knows of its rights: a priority class that is missing, and a level that is too loose."""
    said = find(value_at(obj, "status", "conditions"), "Permitted") or {}
    generation = obj["metadata"].get("generation", 0)
    if site.trouble.priority_class is not None:
        name = value_at(obj, "spec", "podPriorityClassName") or keys.PRIORITY_CLASS
        message = missing_message(name)
        return condition("Permitted", False, keys.PRIORITY_CLASS_MISSING, message, observed_generation=generation)
    mount = site.mount()
    asked, enforced = value_at(obj, "spec", "podSecurity", default="baseline"), enforced_level(mount)
    if stricter(asked, enforced) != asked:
        message = (
            f"the binding has Pod Security level {asked}, and the owner enforces {enforced} in namespace "
            f"{site.mount_namespace}: {enforced} applies; set podSecurity to it, or have the owner loosen the label"
        )
        return condition("Permitted", False, keys.POD_SECURITY_STRICTER, message, observed_generation=generation)
    if said.get("reason") not in SYNCER_REASONS or mount is None:
        return None
    return condition("Permitted", True, "Permitted", observed_generation=generation)


def marked(site: Site, obj: Object) -> Object | None:
    """Whether the mount namespace carries our mark; said only where it does not, or did not before."""
    mount = site.mount()
    if mount is None:
        return None
    generation = obj["metadata"].get("generation", 0)
    if not mark_of(mount):
        message = unmarked_message(site.mount_namespace, site.virtual_cluster)
        return condition(MARKED, False, keys.MOUNT_NAMESPACE_UNMARKED, message, observed_generation=generation)
    if find(value_at(obj, "status", "conditions"), MARKED) is None:
        return None
    return condition(MARKED, True, "Marked", observed_generation=generation)


def leasing(obj: Object, nodes: Sequence[Object], rules: Rules, silent_since: datetime | None) -> Object:
    """Whether anything is lent now, and if not, why; `silent_since` is when the physical cluster fell silent, if so."""
    generation = obj["metadata"].get("generation", 0)
    if silent_since is not None:
        reason = "PhysicalClusterUnreachable"
        message = f"the physical cluster has not answered since {timestamp(silent_since)}"
    elif not (rules.operator or rules.owner):
        reason, message = "NoPolicy", "no ResourceLeasingPolicy names this binding, on either side"
    elif not nodes:
        reason, message = "NoNodes", "no node is selected and lent"
    elif rules.reclaim_now:
        reason = "Reclaimed"
        message = f"the owner's kill switch is on: {keys.RECLAIM}={keys.NOW} on the mount namespace"
    elif all(taint_named(node, keys.OUT_OF_TIME_WINDOWS) for node in nodes):
        reason, message = "OutOfTimeWindows", "every window is closed"
    else:
        return condition("Leasing", True, "Leasing", observed_generation=generation)
    return condition("Leasing", False, reason, message, observed_generation=generation)
