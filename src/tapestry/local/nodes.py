"""Kubelet's work for many local nodes: status, addresses and Lease heartbeats.

Each node has its own loopback address, so that one listener can serve all kubelets and still know which node was
called.  Leases are renewed every ten seconds, spread over that time.
"""

import asyncio
import hashlib
import itertools
import platform
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network

from tapestry.apis.keys import NODE_TYPE
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.kube.errors import AlreadyExists, KubeError
from tapestry.kube.objects import Object, is_deleting, key_of, labels_of, name_of, owner_reference, uid_of, value_at
from tapestry.kube.patches import merge_patch
from tapestry.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES
from tapestry.kube.times import micro_timestamp, timestamp
from tapestry.local.kubernetes import KUBERNETES_VERSION
from tapestry.process.logs import logger

NODE_NETWORK = IPv4Network("127.64.0.0/11")
"""Loopback addresses: on Linux, all of 127.0.0.0/8 is this machine."""
PROCESS_POD_NETWORK = IPv4Network("127.96.0.0/11")
SIMULATED_POD_NETWORK = IPv4Network("10.128.0.0/10")


@dataclass(slots=True)
class AddressAllocator:
    """Assign addresses of a network to objects without one; `holders` finds the objects that report an address."""

    network: IPv4Network
    reported_address: Callable[[Object], str]
    holders: Callable[[str], Iterable[Object]]
    _by_key: dict[str, str] = field(default_factory=dict, init=False)  # key -> address, possibly not reported yet
    _by_address: dict[str, str] = field(default_factory=dict, init=False)  # address -> key

    def allocate(self, obj: Object) -> str:
        """Return the object's reported address, or a free one; repeated calls return the same."""
        key = key_of(obj)
        address = self.reported_address(obj) or self._by_key.get(key)
        if not address:
            address = next(each for each in candidate_addresses(self.network, uid_of(obj)) if self._is_free(each, key))
        self._by_key[key], self._by_address[address] = address, key
        return address

    def release(self, key: str) -> None:
        """Free the address that was assigned under a key."""
        address = self._by_key.pop(key, None)
        if address is not None and self._by_address.get(address) == key:
            del self._by_address[address]

    def _is_free(self, address: str, key: str) -> bool:
        return self._by_address.get(address, key) == key and all(key_of(each) == key for each in self.holders(address))


def candidate_addresses(network: IPv4Network, uid: str) -> Iterator[str]:
    """Yield addresses to try, in an order that depends only on the UID."""
    for salt in itertools.count():
        digest = hashlib.sha256(f"{uid}/{salt}".encode()).digest()
        yield str(network[int.from_bytes(digest[:4], "big") % (network.num_addresses - 2) + 1])


log = logger(__name__)

HEARTBEAT_INTERVAL = 10.0
LEASE_SECONDS = 40
HEARTBEAT_SLOTS = 100
WORKERS = 16
BY_ADDRESS = "address"
CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID"),
    "Ready": ("True", "KubeletReady"),
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class NodeType:
    """Type of nodes that this process manages, selected by a label."""

    label: str
    runtime: str
    """Container runtime: `simulated` or `process`."""
    message: str
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """Status, reason and message of more conditions, by type."""


def new_node(
    node_type: NodeType,
    name: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    taints: list[Object] | None = None,
) -> Object:
    """Return a node to create with this capacity; its kubelet adds the rest of the status."""
    known = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, node_type.label: "", **(labels or {})}},
        **({"spec": {"taints": taints}} if taints else {}),
        "status": {"capacity": dict(capacity), "allocatable": dict(capacity)},
    }


def architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class NodeReconciler:
    """Keep the nodes of one type alive; keyed by name."""

    client: Client
    now: Callable[[], datetime]
    node_type: NodeType
    nodes: Informer
    addresses: AddressAllocator
    heartbeats: "Heartbeats"
    port: Callable[[], int]

    async def reconcile(self, name: str) -> None:
        node = self.nodes.store.get(name)
        if node is None or is_deleting(node):
            self.heartbeats.stop(name)
            self.addresses.release(name)
            return
        before = node.get("status") or {}
        if patch := merge_patch(before, {**before, **self.status(node)}):
            await self.client.patch(NODES, node, {"status": patch}, subresource="status")
        await self.heartbeats.start(node)

    def status(self, node: Object) -> Object:
        """Return the status that a kubelet reports; unchanged conditions keep their times."""
        node_addresses = [
            {"type": "InternalIP", "address": self.addresses.allocate(node)},
            {"type": "Hostname", "address": name_of(node)},
        ]
        return {
            "conditions": self.conditions(node),
            "addresses": node_addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port()}},
            "nodeInfo": node_info(node, self.node_type),
        }

    def conditions(self, node: Object) -> list[Object]:
        before = {each["type"]: each for each in value_at(node, "status", "conditions", default=())}
        now = timestamp(self.now())
        common = {type: (*values, self.node_type.message) for type, values in CONDITIONS.items()}
        expected = {**common, **self.node_type.conditions}
        found = [each for type, each in before.items() if type not in expected]
        for type, (value, reason, message) in expected.items():
            old = before.get(type)
            condition = {"type": type, "status": value, "reason": reason, "message": message}
            times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
            found.append(old if old is not None and old["status"] == value else {**condition, **times})
        return found


def node_info(node: Object, node_type: NodeType) -> Object:
    identity = uid_of(node)
    return {
        "machineID": identity.replace("-", ""),
        "systemUUID": identity,
        "bootID": identity,
        "kernelVersion": platform.release(),
        "osImage": node_type.message,
        "containerRuntimeVersion": f"{node_type.runtime}://{KUBERNETES_VERSION}",
        "kubeletVersion": f"v{KUBERNETES_VERSION}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": labels_of(node).get("kubernetes.io/arch", architecture()),
    }


@dataclass
class Heartbeats:
    """Renew the Leases of nodes; the name of a node determines its slot of a tenth of a second."""

    client: Client
    now: Callable[[], datetime]
    leases: dict[str, Object] = field(default_factory=dict)
    """Leases as last read, by node."""
    slots: dict[int, dict[str, Object]] = field(default_factory=lambda: defaultdict(dict))

    async def start(self, node: Object) -> None:
        """Renew a node's Lease now and periodically; the second call for a node does nothing."""
        slot = self.slots[slot_of(name_of(node))]
        if uid_of(slot.get(name_of(node)) or {"metadata": {}}) != uid_of(node):
            await self.renew(node)
            slot[name_of(node)] = node

    def stop(self, name: str) -> None:
        self.slots[slot_of(name)].pop(name, None)
        self.leases.pop(name, None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            for slot in range(HEARTBEAT_SLOTS):
                if nodes := list(self.slots[slot].values()):
                    await asyncio.sleep(began + HEARTBEAT_INTERVAL * slot / HEARTBEAT_SLOTS - loop.time())
                    async with asyncio.TaskGroup() as group:
                        for node in nodes:
                            group.create_task(self.try_to_renew(node))
            await asyncio.sleep(began + HEARTBEAT_INTERVAL - loop.time())

    async def try_to_renew(self, node: Object) -> None:
        try:
            await self.renew(node)
        except KubeError as error:
            self.leases.pop(name_of(node), None)  # it may have been replaced: read it before the next renewal
            log.warning("node lease renewal failed", node=name_of(node), error=str(error))

    async def renew(self, node: Object) -> None:
        name = name_of(node)
        lease = self.leases.get(name) or await self.ensure_lease(node)
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micro_timestamp(self.now())}
        self.leases[name] = await self.client.replace(LEASES, {**lease, "spec": spec})

    async def ensure_lease(self, node: Object) -> Object:
        name = name_of(node)
        found = await self.client.find(LEASES, name, NODE_LEASE_NAMESPACE)
        if found is not None:
            return found
        owners = [owner_reference(node, controller=False, block_deletion=False)]
        metadata = {"name": name, "namespace": NODE_LEASE_NAMESPACE, "ownerReferences": owners}
        try:
            return await self.client.create(LEASES, {"metadata": metadata, "spec": {"holderIdentity": name}})
        except AlreadyExists:
            return await self.client.get(LEASES, name, NODE_LEASE_NAMESPACE)


def slot_of(name: str) -> int:
    return zlib.crc32(name.encode()) % HEARTBEAT_SLOTS


def install(manager: Manager, node_type: NodeType, port: Callable[[], int]) -> Informer:
    """Manage the nodes of a type; `port` is that of their kubelet.  Return the nodes."""
    nodes = manager.informer(
        NODES, labels=f"{node_type.label},{NODE_TYPE}!=virtual", indexers={BY_ADDRESS: internal_ips}
    )
    allocator = AddressAllocator(NODE_NETWORK, internal_ip, lambda ip: nodes.store.by(BY_ADDRESS, ip))
    heartbeats = Heartbeats(manager.client, manager.now)
    reconciler = NodeReconciler(manager.client, manager.now, node_type, nodes, allocator, heartbeats, port)
    manager.controller(f"{node_type.runtime}-nodes", reconciler.reconcile, workers=WORKERS).watch(nodes)
    manager.run_while_leading(f"{node_type.runtime}-heartbeats", heartbeats.run)
    return nodes


def internal_ip(node: Object) -> str:
    """Return the node's reported address; empty if it has none."""
    found: list[Object] = value_at(node, "status", "addresses", default=[])
    return next((each["address"] for each in found if each["type"] == "InternalIP"), "")


def internal_ips(node: Object) -> list[str]:
    address = internal_ip(node)
    return [address] if address else []
