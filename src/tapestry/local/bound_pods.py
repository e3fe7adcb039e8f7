"""The pods that nodes of ours have: which they are, where each of them is, and how it is let go of.

Kubelets of either sort work on them: what they make of a pod differs, what a pod is to them does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network

from tapestry.client.client import Client
from tapestry.controller import Controller, Informer, Manager
from tapestry.kube.objects import Object, key_of, name_of, value_at
from tapestry.kube.resources import PODS
from tapestry.local.addresses import Addresses
from tapestry.local.nodes import address_of
from tapestry.local.statuses import Place

BY_NODE, BY_IP = "node", "ip"


@dataclass(frozen=True)
class BoundPods:
    """Pods of a cluster that are bound, and the nodes that some of them are ours by."""

    client: Client
    nodes: Informer
    informer: Informer
    addresses: Addresses
    """To be released when nothing of a pod is left."""

    def on(self, node: Object) -> Iterable[Object]:
        return self.informer.store.by(BY_NODE, name_of(node))

    def node_of(self, pod: Object) -> Object | None:
        """The node of ours that has the pod, once it says where it is."""
        node = self.nodes.store.get(pod["spec"]["nodeName"])
        return node if node is not None and address_of(node) else None

    def place(self, pod: Object, node: Object) -> Place:
        """Where the pod is: on an address of its own, unless it wants its node's."""
        address = address_of(node)
        return Place(address, address if pod["spec"].get("hostNetwork") else self.addresses.of(pod))

    async def let_go(self, pod: Object) -> None:
        """Nothing of a deleted pod runs any more.  What has been let go of already stays for its finalizers only."""
        if pod["metadata"].get("deletionGracePeriodSeconds"):
            await self.client.delete(PODS, pod, grace_seconds=0)

    def wake(self, controller: Controller) -> None:
        """Have a controller look at a pod when it changes, or when its node comes, goes or moves."""
        controller.watch(self.informer)
        controller.watch(self.nodes, lambda node: map(key_of, self.on(node)), when=moved)


def bound_pods(manager: Manager, nodes: Informer, network: IPv4Network) -> BoundPods:
    """The pods of a cluster; those on `nodes` are given addresses of the network."""
    pods = manager.informer(PODS, fields="spec.nodeName!=", indexers={BY_NODE: node_name, BY_IP: shown_ip})
    addresses = Addresses(network, pod_ip, lambda address: pods.store.by(BY_IP, address))
    return BoundPods(manager.client, nodes, pods, addresses)


def moved(old: Object | None, new: Object | None) -> bool:
    return old is None or new is None or address_of(old) != address_of(new)


def node_name(pod: Object) -> Iterable[str]:
    return [pod["spec"]["nodeName"]]


def pod_ip(pod: Object) -> str:
    address: str = value_at(pod, "status", "podIP", default="")
    return address


def shown_ip(pod: Object) -> Iterable[str]:
    address = pod_ip(pod)
    return [address] if address else []
