"""Host ports: those that foreign pods hold below are shown above, by one pod on each virtual node that runs nowhere.

The virtual scheduler counts the host ports of the pods that it sees on a node.  A pod that claims the foreign ports,
bound to the virtual node and never sent down, makes it keep other pods off them.  These pods have a namespace of their
own, which is installed with us: where it is missing, ports are not shown, and all else goes on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.kube.errors import NotFound
from tapestry.kube.names import hashed_name
from tapestry.kube.objects import Object, is_deleting, name_of, owner_reference
from tapestry.kube.resources import PODS
from tapestry.syncer.cache_transforms import physical_node_of
from tapestry.syncer.context import SyncContext

Port = tuple[str, int, str]
MAX_PORTS = 512


@dataclass(frozen=True)
class HostPortReconciler:
    """Keeps one placeholder pod on each virtual node whose physical node has host ports taken; keyed by the former."""

    context: SyncContext

    async def reconcile(self, name: str) -> None:
        site = self.context
        node = site.virtual_nodes.store.get(name)
        is_there = node is not None and not is_deleting(node)
        if is_there and not site.is_physical_synced:
            return  # what is taken cannot be told yet
        wanted = self.desired_placeholder(node) if node is not None and is_there else None
        for pod in site.placeholders.store.by("node", name):
            if wanted is not None and name_of(pod) == name_of(wanted):
                return
            await self.context.virtual_client.delete_if_exists(PODS, pod, grace_seconds=0)
        if wanted is not None:
            await self.create(wanted)

    def desired_placeholder(self, node: Object) -> Object | None:
        binding = self.context.binding()
        if binding is None:
            return None
        claims = (
            claim for below in physical_node_of(node) for claim in self.context.physical_pods.store.by("node", below)
        )
        taken = taken_ports(claims, binding.owns)
        return placeholder(node, binding.uid, taken) if taken else None

    async def create(self, pod: Object) -> None:
        try:
            await self.context.virtual_client.create(PODS, pod)
        except NotFound as error:  # tried again: somebody may make the namespace
            hint = "host ports are not shown before it is there, and `tapestry manifests` has it"
            raise NotFound(error.code, "NamespaceMissing", f"{error.message}; {hint}") from error


def taken_ports(claims: Iterable[Object], is_ours: Callable[[Object], bool]) -> tuple[Port, ...]:
    """The ports of foreign pods, of very many the first: a pod with thousands of them is costly for an API server."""
    taken = {port for claim in claims if not is_ours(claim) for port in claim.get("ports", ())}
    return tuple(sorted(taken)[:MAX_PORTS])


def placeholder(node: Object, binding_uid: str, ports: tuple[Port, ...]) -> Object:
    """A pod that holds `ports` and nothing else; its name changes with them, since a pod's ports cannot."""
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
