"""Facts: what both clusters hold at the moment of a question.

The virtual cluster is read with the rights of whoever asks.  A physical one is looked into with the kubeconfig of its
binding, where the asker may read that Secret; where not, the answer is made of what is known above, and says so.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, SecretReference
from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.kube.errors import KubeError, NotFound, TransportError
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, uid_of, value_at
from tapestry.kube.resources import LEASES, NAMESPACES, NODE_LEASE_NAMESPACE, NODES, PODS, SECRETS
from tapestry.kube.times import parse_time
from tapestry.manager.binding_errors import BindingError
from tapestry.manager.connectivity import Connect, access_from_secret
from tapestry.syncer.cache_transforms import is_placeholder

CONNECT_TIMEOUT = 1.0
"""For the first answer of a physical cluster; one that gives none is silent."""
READ_TIMEOUT = 10.0
"""For everything that is read from a physical cluster that answers."""


class QueryError(Exception):
    """There is nothing of the name that was asked about."""


class ClusterUnreadable(Exception):
    """Why a physical cluster could not be looked into."""


class ClusterUnreachable(ClusterUnreadable):
    """The physical cluster gives no answer."""


@dataclass(frozen=True)
class VirtualSnapshot:
    """The virtual cluster: bindings, virtual nodes with the pods on them, and the operator's policies."""

    identity: str
    bindings: list[Object]
    nodes: list[Object]
    pods: dict[str, list[Object]]
    """By the virtual node that they are bound to."""
    policies: list[Object]

    def nodes_of(self, binding: str) -> list[Object]:
        """The virtual nodes of the binding with that UID."""
        return [node for node in self.nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == binding]


@dataclass(frozen=True)
class PhysicalNodeSnapshot:
    """One node of a physical cluster, the pods on it, and what its owner says."""

    node: Object | None
    pods: list[Object]
    policies: list[Object]
    mount_namespace: Object | None


@dataclass(frozen=True)
class PhysicalSnapshot:
    """All nodes of a physical cluster, the pods on them, and what its owner says."""

    nodes: list[Object]
    pods: list[Object]
    policies: list[Object]
    mount_namespace: Object | None


async def read_virtual_cluster(client: Client) -> VirtualSnapshot:
    try:
        bindings = await client.list(CLUSTER_BINDINGS)
        policies = await client.list(POLICIES)
    except NotFound:
        hint = "is it the right one? `tapestry manifests | kubectl apply -f -` prepares it"
        raise QueryError(f"the cluster does not know ClusterBindings; {hint}") from None
    nodes = await client.list(NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
    pods: dict[str, list[Object]] = {name_of(node): [] for node in nodes}
    for pod in await client.list(PODS, fields="spec.nodeName!=") if nodes else ():
        if pod["spec"]["nodeName"] in pods and not is_placeholder(pod):
            pods[pod["spec"]["nodeName"]].append(pod)
    identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    return VirtualSnapshot(identity, bindings, nodes, pods, policies)


@asynccontextmanager
async def physical_client(
    virtual: Client, binding: Object, connect: Connect, timeout: float = READ_TIMEOUT
) -> AsyncIterator[Client]:
    """The physical cluster of a binding; Unseen where it cannot be looked into, whatever happens inside the block.

    One that does not answer at all is known to be Silent in less than two seconds.  The block has so many `seconds`,
    for all its questions.
    """
    reference = SecretReference(**binding["spec"]["secretRef"])
    limit = CONNECT_TIMEOUT
    try:
        secret = await virtual.get(SECRETS, reference.name, reference.namespace)
        async with Client(connect(access_from_secret(secret, reference, allow_loopback=True))) as client:
            async with asyncio.timeout(limit):
                await check_identity(client, binding)
            limit = timeout
            async with asyncio.timeout(limit):
                yield client
    except BindingError as fault:
        raise ClusterUnreadable(fault.message) from fault
    except TransportError as error:
        raise ClusterUnreachable(str(error)) from error
    except KubeError as error:
        raise ClusterUnreadable(str(error)) from error
    except TimeoutError:
        raise ClusterUnreachable(f"no answer in {limit:g} s") from None


async def check_identity(client: Client, binding: Object) -> None:
    pinned = value_at(binding, "status", "identity")
    found = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    if pinned not in (None, found):
        raise ClusterUnreadable(f"the cluster behind the kubeconfig is {found}, and {pinned} was bound")


async def owner_policies(client: Client) -> list[Object]:
    """The policies in a physical cluster; none where it does not know the kind."""
    try:
        return await client.list(POLICIES)
    except NotFound:
        return []


async def read_physical_node(client: Client, binding: Object, node: str) -> PhysicalNodeSnapshot:
    """What decides about one node."""
    found, pods, policies, mount = await gather_all(
        client.find(NODES, node),
        client.list(PODS, fields=f"spec.nodeName={node}"),
        owner_policies(client),
        find_mount_namespace(client, binding),
    )
    return PhysicalNodeSnapshot(found, pods, policies, mount)


async def read_physical_cluster(client: Client, binding: Object) -> PhysicalSnapshot:
    """What decides about every node."""
    return PhysicalSnapshot(
        *await gather_all(
            client.list(NODES),
            client.list(PODS, fields="spec.nodeName!="),
            owner_policies(client),
            find_mount_namespace(client, binding),
        )
    )


async def find_mount_namespace(client: Client, binding: Object) -> Object | None:
    mount = value_at(binding, "spec", "mountNamespace")
    found = await client.list(NAMESPACES, fields=f"metadata.name={mount}") if mount else []
    return found[0] if found else None


async def last_contact_times(client: Client) -> dict[str, datetime]:
    """When the physical cluster of each virtual node last answered, to within ten seconds, as the node's Lease says.

    Nothing where the Leases may not be read.
    """
    try:
        leases = await client.list(LEASES, NODE_LEASE_NAMESPACE)
    except KubeError:
        return {}
    told = {name_of(each): annotations_of(each).get(keys.LAST_SEEN) for each in leases}
    return {name: parse_time(text) for name, text in told.items() if text}


async def gather_all(*reads: Coroutine[Any, Any, Any]) -> list[Any]:
    """What reads find that go on at the same time; the first error where one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in reads]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
