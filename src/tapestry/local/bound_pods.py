"""Pods bound to the nodes of this process: lookup, addresses and confirmation of deletion.

The simulated and the process kubelet share this module.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network

from tapestry.client.client import Client
from tapestry.controller import Controller, Informer, Manager
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.resources import PODS
from tapestry.local.nodes import AddressAllocator, internal_ip
from tapestry.local.statuses import PodAddresses

BY_NODE, BY_IP = "node", "ip"


@dataclass(frozen=True)
class BoundPods:
    client: Client
    nodes: Informer
    informer: Informer
    addresses: AddressAllocator
    """Address allocator; release an address when nothing of its pod is left."""

    def on_node(self, node: Object) -> Iterable[Object]:
        return self.informer.store.by(BY_NODE, name_of(node))

    def node_of(self, pod: Object) -> Object | None:
        """Return the node of the pod, if it is ours and has an address."""
        node = self.nodes.store.get(pod["spec"]["nodeName"])
        return node if node is not None and internal_ip(node) else None

    def addresses_of(self, pod: Object, node: Object) -> PodAddresses:
        """Return the addresses of the pod: its own, or with hostNetwork its node's."""
        address = internal_ip(node)
        return PodAddresses(address, address if pod["spec"].get("hostNetwork") else self.addresses.allocate(pod))

    async def confirm_deletion(self, pod: Object) -> None:
        """Confirm that nothing of a deleted pod runs; a pod already confirmed waits only for finalizers."""
        if pod["metadata"].get("deletionGracePeriodSeconds"):
            await self.client.delete(PODS, pod, grace_seconds=0)

    def watch_with(self, controller: Controller) -> None:
        """Reconcile a pod when it changes, or when its node is created, deleted or gets another address."""
        controller.watch(self.informer)
        controller.watch(self.nodes, lambda node: map(key_of, self.on_node(node)), when=has_moved)


def bound_pods(manager: Manager, nodes: Informer, network: IPv4Network) -> BoundPods:
    """Watch the pods of a cluster; pods on `nodes` get addresses of the network."""
    pods = manager.informer(PODS, fields="spec.nodeName!=", indexers={BY_NODE: node_name, BY_IP: pod_ips})
    addresses = AddressAllocator(network, pod_ip, lambda address: pods.store.by(BY_IP, address))
    return BoundPods(manager.client, nodes, pods, addresses)


def has_moved(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or internal_ip(old) != internal_ip(new)


def node_name(pod: Object) -> Iterable[str]:
    return [pod["spec"]["nodeName"]]


def pod_ip(pod: Object) -> str:
    address: str = value_at(pod, "status", "podIP", default="")
    return address


def pod_ips(pod: Object) -> Iterable[str]:
    address = pod_ip(pod)
    return [address] if address else []
