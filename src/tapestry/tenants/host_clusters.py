"""Controller of HostClusters: connects the process to each host cluster, and writes the status of its HostCluster.

The first connection records the identity of the host cluster: the UID of its namespace `kube-system`. All objects of
tenants are there. If another cluster answers later, nothing is written to it until an operator approves its identity.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, is_tenant
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HOST_CLUSTER, HOST_CLUSTERS, HostClusterSpec
from tapestry.apis.policies import POLICIES
from tapestry.client.access import Access
from tapestry.client.client import Client
from tapestry.client.http_transport import HttpTransport
from tapestry.client.transport import SmallResponseTransport
from tapestry.controller import Informer, Manager, ObjectCache, Result, Terminal
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.crds import decode_spec
from tapestry.kube.errors import KubeError
from tapestry.kube.objects import Object, annotations_of, is_deleting, name_of, uid_of, value_at, version_of
from tapestry.kube.patches import exact_map_patch
from tapestry.kube.resources import NAMESPACES, SECRETS
from tapestry.kube.times import parse_time, timestamp
from tapestry.process.logs import logger
from tapestry.syncer.bindings import access_from_secret
from tapestry.syncer.cache_transforms import with_changed_at
from tapestry.syncer.open_nodes import is_relevant_change
from tapestry.syncer.predicates import spec_changed
from tapestry.tenants.host_capacity import HostOffer, host_offer, host_rules
from tapestry.tenants.host_connection import IDENTITY_NAMESPACE, Connect, HostConnection

log = logger(__name__)

HOSTS_NAMESPACE = "tapestry-hosts"
"""Namespace of the management API with the kubeconfigs of host clusters."""
CHECK_SECONDS = 15.0
"""Seconds between two updates of the status of a HostCluster."""
OFFER_SECONDS = 0.5
"""Seconds from a change of the nodes or the policies of a host cluster to the next update of its status."""
LOOP_NODES = 20
"""Number of nodes whose leases are computed in the event loop, 0.7 ms each. Those of more are computed in a thread."""
SILENCE_SECONDS = 20.0
"""Seconds without a response after which a host cluster counts as unreachable."""
LAST_SEEN_INTERVAL = timedelta(minutes=5)
"""Time after which `status.lastSeen` is written again while nothing else changes."""
REACHABLE, IDENTITY_CHANGED = "Reachable", "IdentityChanged"


@dataclass(eq=False)
class Host:
    """A host cluster that this process is connected to."""

    connection: HostConnection
    identity: str
    version: str
    kubeconfig: str
    """Name and version of the Secret of the current connection."""
    task: asyncio.Task[None]


class HostClusters:
    """The connections of this process to host clusters, by the name of their HostCluster."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        connect: Connect = HttpTransport,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._connect, self._monotonic = group, connect, monotonic
        self._context = contextvars.copy_context()
        """Context of the process, in which the connections run."""
        self._hosts: dict[str, Host] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._offer_listeners: list[Callable[[str], None]] = []

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each host cluster that is connected or disconnected."""
        self._listeners.append(listener)

    def on_offer_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each host cluster whose nodes or owner's policies have changed."""
        self._offer_listeners.append(listener)

    def get(self, name: str) -> Host | None:
        return self._hosts.get(name)

    def connected(self) -> dict[str, Host]:
        """Return the host clusters that this process is connected to, by name."""
        return dict(self._hosts)

    async def connect(self, name: str, access: Access, kubeconfig: str, pinned: str, others: Mapping[str, str]) -> Host:
        """Connect to a host cluster, or switch to other credentials. Raises KubeError and Terminal.

        `pinned` is the identity that it must have, if not empty. `others` are the names of other HostClusters by their
        identity.
        """
        identity, version = await self._probe(access)
        if pinned and identity != pinned:
            message = (
                f"the kubeconfig leads to cluster {identity}, not to {pinned} with the objects of the tenants; give a "
                f"kubeconfig of that cluster, or approve the other one with the annotation "
                f"{keys.APPROVE_IDENTITY}={identity}"
            )
            raise Terminal(IDENTITY_CHANGED, message)
        if not pinned and identity in others:
            raise Terminal("DuplicateCluster", f"the cluster is HostCluster {others[identity]} already; use that")
        host = self._hosts.get(name)
        if host is None:
            connection = HostConnection(name, self._connect, self._monotonic)
            task = self._group.create_task(connection.run(), name=f"host-{name}", context=self._context.copy())
            host = self._hosts[name] = Host(connection, identity, version, kubeconfig, task)
            connection.on_replaced(partial(self._notify, name))
            for each in (connection.nodes, connection.owner_policies):
                each.source.after_sync(partial(self._notify, name))
            self._watch_offer(name, connection)
        host.identity, host.version, host.kubeconfig = identity, version, kubeconfig
        await host.connection.switch_to(access, identity)
        self._notify(name)
        return host

    def _watch_offer(self, name: str, connection: HostConnection) -> None:
        def on_change(old: Object | None, new: Object | None, is_changed: Callable[..., bool]) -> None:
            if is_changed(old, new):
                for listener in self._offer_listeners:
                    listener(name)

        connection.nodes.source.on_change(partial(on_change, is_changed=is_relevant_change))
        connection.owner_policies.source.on_change(partial(on_change, is_changed=spec_changed))

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)

    async def _probe(self, access: Access) -> tuple[str, str]:
        """Return the identity and the version of the cluster that a kubeconfig leads to."""
        untrusted = Client(SmallResponseTransport(self._connect(access)))
        try:
            identity = uid_of(await untrusted.get(NAMESPACES, IDENTITY_NAMESPACE))
            return identity, str((await untrusted.server_version()).get("gitVersion", ""))
        finally:
            await untrusted.close()

    async def disconnect(self, name: str) -> None:
        host = self._hosts.pop(name, None)
        if host is not None:
            host.task.cancel()
            await asyncio.wait([host.task])
            await host.connection.close()
            self._notify(name)

    async def close(self) -> None:
        for name in list(self._hosts):
            await self.disconnect(name)


@dataclass(frozen=True)
class HostClusterReconciler:
    """Keep the connection to each host cluster, and its status."""

    hosts: Informer
    secrets: Informer
    bindings: ObjectCache
    clusters: HostClusters
    client: Client
    now: Callable[[], datetime]
    writes_status: Callable[[str], bool]
    """Return whether this process writes the status of the HostCluster with this UID: one process of a group does."""
    policies: Informer
    """Policies of the operator."""

    async def reconcile(self, name: str) -> Result | None:
        obj = self.hosts.store.get(name)
        if obj is None:
            await self.clusters.disconnect(name)
            return None
        if await self._changes_finalizer(obj):
            return None  # the next pass sees the change
        spec = decode_spec(HOST_CLUSTER, obj)
        try:
            host = await self._connected(obj, spec)
        except (KubeError, Terminal) as error:
            reason = error.reason if isinstance(error, Terminal) else "Unreachable"
            text = error.message if isinstance(error, Terminal) else str(error)
            await self._write(obj, self.clusters.get(name), reason, text)
            if isinstance(error, Terminal):
                return Result(requeue_after=CHECK_SECONDS) if reason == IDENTITY_CHANGED else None
            raise
        silence = host.connection.transport.seconds_since_response()
        if silence >= SILENCE_SECONDS:
            await self._write(obj, host, "Unreachable", f"no response for {int(silence)} s")
        else:
            await self._write(obj, host, REACHABLE, "")
        return Result(requeue_after=CHECK_SECONDS)

    async def _changes_finalizer(self, obj: Object) -> bool:
        """Add the finalizer, or remove it when a deleted HostCluster has no tenants any more. Return whether it did."""
        finalizers, is_held = value_at(obj, "metadata", "finalizers", default=[]), self._is_held(obj)
        if (keys.HOST_FINALIZER in finalizers) == is_held or not self.writes_status(uid_of(obj)):
            return False
        others = [each for each in finalizers if each != keys.HOST_FINALIZER]
        desired = [*others, keys.HOST_FINALIZER] if is_held else others
        await self.client.patch(HOST_CLUSTERS, obj, {"metadata": {"finalizers": desired}})
        return True

    def _is_held(self, obj: Object) -> bool:
        return not is_deleting(obj) or bool(self._tenants(name_of(obj)))

    def _tenants(self, host: str) -> list[Object]:
        return [each for each in self.bindings.store.list() if is_tenant_of(each, host)]

    async def _connected(self, obj: Object, spec: HostClusterSpec) -> Host:
        name, secret = name_of(obj), self._secret(spec.secret_ref)
        kubeconfig = f"{secret['metadata']['name']}/{version_of(secret)}"
        host = self.clusters.get(name)
        if host is not None and host.connection.is_replaced:
            await self.clusters.disconnect(name)
        elif host is not None and host.kubeconfig == kubeconfig:
            return host
        access = access_from_secret(secret, allow_loopback=spec.allow_loopback)
        pinned = value_at(obj, "status", "identity", default="")
        if annotations_of(obj).get(keys.APPROVE_IDENTITY):
            pinned = annotations_of(obj)[keys.APPROVE_IDENTITY]
        others = {
            value_at(each, "status", "identity", default=""): name_of(each)
            for each in self.hosts.store.list()
            if name_of(each) != name
        }
        return await self.clusters.connect(name, access, kubeconfig, pinned, others)

    def _secret(self, reference: SecretReference) -> Object:
        if reference.namespace != HOSTS_NAMESPACE:
            message = f"spec.secretRef.namespace: {reference.namespace} is not {HOSTS_NAMESPACE}"
            raise Terminal("SecretNamespaceNotAllowed", message)
        secret = self.secrets.store.get(f"{reference.namespace}/{reference.name}")
        if secret is None:
            message = f"there is no Secret {reference.namespace}/{reference.name}; create it or add the host again"
            raise Terminal("SecretMissing", message)
        return secret

    async def _write(self, obj: Object, host: Host | None, reason: str, message: str) -> None:
        """Write the status, if this process is the one that does."""
        if not self.writes_status(uid_of(obj)):
            return
        name, now, generation = name_of(obj), self.now(), obj["metadata"].get("generation", 0)
        condition = new_condition(REACHABLE, reason == REACHABLE, reason, message, observed_generation=generation)
        conditions = with_condition(value_at(obj, "status", "conditions", default=[]), condition, now)
        status: Object = {
            "conditions": conditions,
            "observedGeneration": generation,
            "tenants": len(self._tenants(name)),
        }
        if host is not None:
            nodes, offer = host.connection.nodes.source, await self._offer(obj, host.connection)
            status |= {
                "identity": host.identity,
                "version": host.version,
                "nodes": len(nodes.store) if nodes.synced.is_set() else None,
                "openNodes": offer.open_nodes if offer is not None else None,
                "capacity": exact_map_patch(value_at(obj, "status", "capacity"), offer.capacity.texts())
                if offer is not None
                else None,
            }
            recorded = value_at(obj, "status", "lastSeen")
            if reason == REACHABLE and (recorded is None or now - parse_time(recorded) >= LAST_SEEN_INTERVAL):
                status["lastSeen"] = timestamp(now)
        await self.client.converge(HOST_CLUSTERS, obj, {"status": status})

    async def _offer(self, obj: Object, connection: HostConnection) -> HostOffer | None:
        """Return what a host cluster offers; None while its caches are not filled."""
        nodes, owner = connection.nodes.source, connection.owner_policies.source
        if not (nodes.synced.is_set() and owner.synced.is_set() and self.policies.synced.is_set()):
            return None
        rules, now = host_rules(obj, self.policies.store.list(), owner.store.list()), self.now()
        found = nodes.store.list()
        if len(found) <= LOOP_NODES:
            return host_offer(found, rules, now)
        return await asyncio.to_thread(host_offer, found, rules, now)


def is_tenant_of(binding: Object, host: str) -> bool:
    return is_tenant(binding) and value_at(binding, "spec", "hostCluster") == host


def install(
    manager: Manager,
    clusters: HostClusters,
    writes_status: Callable[[str], bool],
) -> HostClusterReconciler:
    """Add the controller of HostClusters to a manager of the management API."""
    hosts, bindings = manager.informer(HOST_CLUSTERS), manager.informer(CLUSTER_BINDINGS)
    secrets = manager.informer(SECRETS, namespace=HOSTS_NAMESPACE)
    policies = manager.informer(POLICIES, transform=with_changed_at).with_managed_fields()
    reconciler = HostClusterReconciler(
        *(hosts, secrets, bindings, clusters, manager.client, manager.now, writes_status, policies)
    )
    controller = manager.controller("host-clusters", reconciler.reconcile)
    controller.watch(policies, lambda policy: [value_at(policy, "spec", "cluster", default="")], when=spec_changed)
    controller.watch(hosts)
    clusters.on_change(controller.queue.add)
    clusters.on_offer_change(lambda name: controller.queue.add_after(name, OFFER_SECONDS))
    controller.watch(secrets, lambda secret: hosts_with_secret(hosts, secret))
    controller.watch(bindings, lambda binding: [value_at(binding, "spec", "hostCluster", default="")])
    return reconciler


def hosts_with_secret(hosts: Informer, secret: Object) -> list[str]:
    """Return the HostClusters whose kubeconfig is in a Secret."""
    name = name_of(secret)
    return [name_of(each) for each in hosts.store.list() if value_at(each, "spec", "secretRef", "name") == name]
