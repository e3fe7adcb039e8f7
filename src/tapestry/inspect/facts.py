"""Facts: what both clusters hold at the moment of a question.

The virtual cluster is read with the rights of whoever asks.  A physical one is looked into with the kubeconfig of its
binding, where the asker may read that Secret; where not, the answer is made of what is known above, and says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS, SecretReference
from tapestry.apis.policies import POLICIES
from tapestry.apis.rights import IDENTITY_NAMESPACE
from tapestry.client.client import Client
from tapestry.kube.errors import KubeError, NotFound
from tapestry.kube.objects import Object, labels_of, name_of, uid_of, value_at
from tapestry.kube.resources import NAMESPACES, NODES, PODS, SECRETS
from tapestry.manager.connectivity import Connect, access_in
from tapestry.manager.faults import Fault
from tapestry.syncer.projections import is_placeholder

SECONDS = 10.0
"""For all questions to one physical cluster."""


class Unknown(Exception):
    """There is nothing of the name that was asked about."""


class Unseen(Exception):
    """Why a physical cluster could not be looked into."""


@dataclass(frozen=True)
class Above:
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
class Below:
    """One node of a physical cluster, the pods on it, and what its owner says."""

    node: Object | None
    pods: list[Object]
    policies: list[Object]
    mount: Object | None


async def above(client: Client) -> Above:
    try:
        bindings = await client.list(CLUSTER_BINDINGS)
        policies = await client.list(POLICIES)
    except NotFound:
        hint = "is it the right one? `tapestry manifests | kubectl apply -f -` prepares it"
        raise Unknown(f"the cluster does not know ClusterBindings; {hint}") from None
    nodes = await client.list(NODES, labels=f"{keys.NODE_TYPE}={keys.VIRTUAL}")
    pods: dict[str, list[Object]] = {name_of(node): [] for node in nodes}
    for pod in await client.list(PODS, fields="spec.nodeName!=") if nodes else ():
        if pod["spec"]["nodeName"] in pods and not is_placeholder(pod):
            pods[pod["spec"]["nodeName"]].append(pod)
    identity = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    return Above(identity, bindings, nodes, pods, policies)


@asynccontextmanager
async def physical(
    virtual: Client, binding: Object, connect: Connect, seconds: float = SECONDS
) -> AsyncIterator[Client]:
    """The physical cluster of a binding; Unseen where it cannot be looked into, whatever happens inside the block.

    The block has so many `seconds`, for all its questions.
    """
    reference = SecretReference(**binding["spec"]["secretRef"])
    try:
        async with asyncio.timeout(seconds):
            secret = await virtual.get(SECRETS, reference.name, reference.namespace)
            async with Client(connect(access_in(secret, reference, allow_loopback=True))) as client:
                await check_identity(client, binding)
                yield client
    except Fault as fault:
        raise Unseen(fault.message) from fault
    except KubeError as error:
        raise Unseen(str(error)) from error
    except TimeoutError:
        raise Unseen(f"no answer in {seconds:g} s") from None


async def check_identity(client: Client, binding: Object) -> None:
    pinned = value_at(binding, "status", "identity")
    found = uid_of(await client.get(NAMESPACES, IDENTITY_NAMESPACE))
    if pinned not in (None, found):
        raise Unseen(f"the cluster behind the kubeconfig is {found}, and {pinned} was bound")


async def owner_policies(client: Client) -> list[Object]:
    """The policies in a physical cluster; none where it does not know the kind."""
    try:
        return await client.list(POLICIES)
    except NotFound:
        return []


async def below(client: Client, binding: Object, node: str) -> Below:
    """What decides about one node."""
    found = await client.find(NODES, node)
    mount = value_at(binding, "spec", "mountNamespace")
    namespaces = await client.list(NAMESPACES, fields=f"metadata.name={mount}") if mount else []
    pods = await client.list(PODS, fields=f"spec.nodeName={node}") if found is not None else []
    return Below(found, pods, await owner_policies(client), namespaces[0] if namespaces else None)
