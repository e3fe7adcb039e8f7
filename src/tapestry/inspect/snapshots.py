"""Snapshots of the objects in both clusters, read for a query.

The virtual cluster is read with the user's permissions.  A physical cluster is read with the kubeconfig of its binding,
if the user may read that Secret.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, Binding, binding_of
from tapestry.apis.field_types import SecretReference
from tapestry.apis.permissions import IDENTITY_NAMESPACE
from tapestry.apis.policies import POLICIES
from tapestry.apis.release import install_command
from tapestry.client.client import Client
from tapestry.kube.errors import KubeError, NotFound, TransportError
from tapestry.kube.objects import Object, annotations_of, labels_of, name_of, uid_of, value_at
from tapestry.kube.resources import LEASES, NAMESPACES, NODE_LEASE_NAMESPACE, NODES, PODS, SECRETS
from tapestry.kube.times import parse_time
from tapestry.manager.connectivity import Connect, access_from_secret
from tapestry.manager.location import manager_namespace
from tapestry.manager.validation import BindingError
from tapestry.syncer.cache_transforms import is_placeholder

CONNECT_TIMEOUT = 1.0
"""Seconds for the first response of a physical cluster; without one it is unreachable."""
READ_TIMEOUT = 10.0
"""Seconds for reading everything from a physical cluster."""


class QueryError(Exception):
    """The named object does not exist, or the query is invalid."""


class ClusterUnreadable(Exception):
    """A physical cluster could not be read; the message says why."""


class ClusterUnreachable(ClusterUnreadable):
    """The physical cluster does not answer."""


@dataclass(frozen=True)
class VirtualSnapshot:
    """The virtual cluster: bindings, virtual nodes with their pods, and the operator's policies."""

    identity: str
    bindings: list[Object]
    nodes: list[Object]
    pods: dict[str, list[Object]]
    policies: list[Object]
    manager_namespace: str = keys.SYSTEM_NAMESPACE

    def binding(self, obj: Object) -> Binding:
        """Return the binding in a ClusterBinding of this cluster.  Raise InvalidSpec."""
        return binding_of(obj, self.identity, self.manager_namespace)

    def nodes_of(self, binding: str) -> list[Object]:
        return [node for node in self.nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == binding]


@dataclass(frozen=True)
class PhysicalNodeSnapshot:
    """One node of a physical cluster with its pods, the owner's policies and the mount namespace."""

    node: Object | None
    pods: list[Object]
    policies: list[Object]
    mount_namespace: Object | None


@dataclass(frozen=True)
class PhysicalSnapshot:
    """All nodes of a physical cluster with their pods, the owner's policies and the mount namespace."""

    nodes: list[Object]
    pods: list[Object]
    policies: list[Object]
    mount_namespace: Object | None


async def read_virtual_cluster(client: Client) -> VirtualSnapshot:
    try:
        bindings = await client.list(CLUSTER_BINDINGS)
        policies = await client.list(POLICIES)
    except NotFound:
        hint = f"check that it is the right one; `{install_command()}` installs them"
        raise QueryError(f"the cluster does not serve ClusterBindings; {hint}") from None
    nodes = await client.list(NODES, labels=f"{keys.NODE_TYPE}={keys.NODE_TYPE_VIRTUAL}")
    pods: dict[str, list[Object]] = {name_of(node): [] for node in nodes}
    for pod in await client.list(PODS, fields="spec.nodeName!=") if nodes else ():
        if pod["spec"]["nodeName"] in pods and not is_placeholder(pod):
            pods[pod["spec"]["nodeName"]].append(pod)
    identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    return VirtualSnapshot(identity, bindings, nodes, pods, policies, await manager_namespace(client))


@asynccontextmanager
async def physical_client(
    virtual: Client, binding: Object, connect: Connect, timeout: float = READ_TIMEOUT
) -> AsyncIterator[Client]:
    """Open the physical cluster of a binding; any failure inside the block raises ClusterUnreadable.

    A cluster that does not answer raises ClusterUnreachable within two seconds.  The block has `timeout` seconds.
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
    except BindingError as error:
        raise ClusterUnreadable(error.message) from error
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
        raise ClusterUnreadable(f"the kubeconfig points to cluster {found}, but {pinned} was bound")


async def owner_policies(client: Client) -> list[Object]:
    """Return the policies in a physical cluster; none if it does not serve the kind."""
    try:
        return await client.list(POLICIES)
    except NotFound:
        return []


async def read_physical_node(client: Client, binding: Object, node: str) -> PhysicalNodeSnapshot:
    found, pods, policies, mount = await gather_all(
        client.find(NODES, node),
        client.list(PODS, fields=f"spec.nodeName={node}"),
        owner_policies(client),
        find_mount_namespace(client, binding),
    )
    return PhysicalNodeSnapshot(found, pods, policies, mount)


async def read_physical_cluster(client: Client, binding: Object) -> PhysicalSnapshot:
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
    """Return when the physical cluster of each virtual node last answered, within ten seconds, from the node Leases.

    Empty if the Leases may not be read.
    """
    try:
        leases = await client.list(LEASES, NODE_LEASE_NAMESPACE)
    except KubeError:
        return {}
    times = {name_of(each): annotations_of(each).get(keys.LAST_SEEN) for each in leases}
    return {name: parse_time(text) for name, text in times.items() if text}


async def gather_all(*reads: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines concurrently and return their results; raise the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in reads]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
