"""Placeholder pods that reserve, on virtual nodes, the host ports of foreign pods.

The virtual scheduler counts the host ports of the pods it sees on a node. A placeholder pod claims the ports of foreign
pods, is bound to the virtual node and is never synced. Placeholders have their own namespace, which is part of the
installation. While it is missing, host ports are not reserved and everything else works.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.kube.errors import NotFound
from tapestry.kube.names import hashed_name
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference
from tapestry.kube.resources import PODS
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.caches import Caches
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.views import ForeignPod, Port

MAX_PORTS = 512


@dataclass(frozen=True)
class HostPortReconciler:
    """Keep one placeholder pod on each virtual node with taken host ports; keyed by the virtual node's name."""

    current_binding: CurrentBinding
    caches: Caches
    client: Client

    async def reconcile(self, name: str) -> None:
        node = self.caches.virtual_nodes.store.get(name)
        exists = node is not None and not is_deleting(node)
        if exists and not self.caches.is_physical_synced:
            return  # taken ports are unknown before the caches are filled
        desired = self.desired_placeholder(node) if node is not None and exists else None
        for pod in self.caches.placeholders.store.by("node", name):
            if desired is not None and name_of(pod) == name_of(desired):
                return
            await self.client.delete_if_exists(PODS, pod, grace_seconds=0)
        if desired is not None:
            await self.create(desired)

    def desired_placeholder(self, node: Object) -> Object | None:
        binding = self.current_binding.get()
        if binding is None:
            return None
        taken = taken_ports(pod for name in physical_node_of(node) for pod in self.caches.foreign_pods(name))
        return placeholder(node, binding.uid, taken) if taken else None

    async def create(self, pod: Object) -> None:
        try:
            await self.client.create(PODS, pod)
        except NotFound as error:  # retried: the namespace may be created later
            hint = "host ports are not reserved until it exists; `tapestry manifests` contains it"
            raise NotFound(error.code, "NamespaceMissing", f"{error.message}; {hint}") from error


def taken_ports(pods: Iterable[ForeignPod]) -> tuple[Port, ...]:
    """Return the first `MAX_PORTS` ports of foreign pods: a pod with thousands of ports is costly for an API server."""
    taken = {port for pod in pods for port in pod.host_ports}
    return tuple(sorted(taken)[:MAX_PORTS])


def placeholder(node: Object, binding_uid: str, ports: tuple[Port, ...]) -> Object:
    """Return a pod that holds only `ports`. Its name depends on them because the ports of a pod cannot change."""
    name = hashed_name("host-ports", name_of(node), *(f"{ip}/{number}/{protocol}" for ip, number, protocol in ports))
    claimed = [
        {"name": f"p{index}", "containerPort": number, "hostPort": number, "hostIP": ip, "protocol": protocol}
        for index, (ip, number, protocol) in enumerate(ports)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": keys.HOST_PORTS_NAMESPACE,
            "labels": {
                keys.MANAGED_BY: keys.TAPESTRY,
                keys.HOST_PORTS: "true",
                keys.CLUSTER_BINDING_UID: binding_uid,
            },
            "ownerReferences": [
                owner_reference({"apiVersion": "v1", "kind": "Node", **node}, controller=False, block_deletion=False)
            ],
        },
        "spec": {
            "nodeName": name_of(node),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "none", "image": "host-ports-taken-below", "ports": claimed}],
        },
    }
