"""Questions: each reads the facts it needs, and has the pure functions answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.names import virtual_node_name
from tapestry.client.client import Client
from tapestry.inspect.explain import (
    Asked,
    NodeAnswer,
    PolicyExplanation,
    explained_node,
    explained_policy,
    told_node,
)
from tapestry.inspect.facts import Above, Unknown, Unseen, above, below, owner_policies, physical
from tapestry.inspect.status import (
    BindingStatus,
    NodeStatus,
    PolicyStatus,
    binding_status,
    node_status,
    policy_status,
)
from tapestry.kube.objects import Object, annotations_of, is_deleting, labels_of, name_of, uid_of
from tapestry.manager.connectivity import Connect
from tapestry.syncer.leasing import Side
from tapestry.syncer.policies import is_about


@dataclass(frozen=True)
class Questions:
    """Everything that can be asked; `zone` is that of windows that name none, as the syncers have it."""

    client: Client
    connect: Connect
    zone: str
    now: datetime

    async def bindings(self) -> list[BindingStatus]:
        return [binding_status(each) for each in (await above(self.client)).bindings]

    async def nodes(self) -> list[NodeStatus]:
        facts = await above(self.client)
        return [node_status(node, facts.pods[name_of(node)]) for node in facts.nodes]

    async def policies(self) -> tuple[list[PolicyStatus], list[str]]:
        """The policies of both sides, and a sentence for each cluster that could not be looked into."""
        facts = await above(self.client)
        found = [policy_status(each, Side.OPERATOR, None, self.zone, self.now) for each in facts.policies]
        owners, unseen = await self.owners(facts)
        for binding, policy in owners:
            found.append(policy_status(policy, Side.OWNER, binding, self.zone, self.now))
        return found, unseen

    async def owners(self, facts: Above) -> tuple[list[tuple[Binding, Object]], list[str]]:
        """The policies that owners have for each binding; and what could not be seen, and why."""
        async with asyncio.TaskGroup() as group:
            asked = [(each, group.create_task(self.owners_of(each))) for each in facts.bindings]
        found, unseen = [], []
        for obj, task in asked:
            answer = task.result()
            if isinstance(answer, str):
                unseen.append(f"the owner's policies of {name_of(obj)} are not shown: {answer}")
            else:
                binding = binding_of(obj, facts.identity)
                found += [(binding, policy) for policy in answer if is_about(policy, binding)]
        return found, unseen

    async def owners_of(self, binding: Object) -> list[Object] | str:
        try:
            async with physical(self.client, binding, self.connect) as client:
                return await owner_policies(client)
        except Unseen as error:
            return str(error)

    async def node(self, name: str) -> list[NodeAnswer]:
        """Why a node lends what it lends: one answer, or one for each cluster that has a physical node of the name."""
        facts = await above(self.client)
        virtual = [each for each in facts.nodes if name in names_of_node(each)]
        if virtual:
            bindings = {uid_of(each): each for each in facts.bindings}
            found = [(bindings.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")), node) for node in virtual]
            return [await self.answer(facts, obj, physical_node(node), node) for obj, node in found if obj is not None]
        answers = [await self.answer(facts, obj, node, None) for obj, node in candidates(facts, name)]
        known = [each for each in answers if each.reason not in ("PhysicalNodeGone", "Unseen")]
        if not known:
            unseen = [f"{each.binding} could not be looked into: {each.unseen}" for each in answers if each.unseen]
            raise Unknown("; ".join([f"no cluster that has joined has a node {name}, virtual or not", *unseen]))
        return known

    async def answer(self, facts: Above, obj: Object, node: str, virtual: Object | None) -> NodeAnswer:
        asked = Asked(
            binding_of(obj, facts.identity),
            is_deleting(obj),
            node,
            virtual,
            facts.pods[name_of(virtual)] if virtual else [],
            facts.policies,
            self.zone,
        )
        try:
            async with physical(self.client, obj, self.connect) as client:
                return explained_node(asked, await below(client, obj, node), self.now)
        except Unseen as error:
            return told_node(asked, str(error), self.now)

    async def policy(self, name: str) -> list[PolicyExplanation]:
        """What a policy comes to, on each side that has one of the name; `owner/NAME` asks about one side."""
        facts = await above(self.client)
        bindings = [binding_of(each, facts.identity) for each in facts.bindings]
        found: list[tuple[Object, Side, Binding | None]] = []
        for policy in facts.policies:
            about = next((binding for binding in bindings if is_about(policy, binding)), None)
            found.append((policy, Side.OPERATOR, about))
        owners, unseen = await self.owners(facts)
        found += [(policy, Side.OWNER, binding) for binding, policy in owners]
        answers = [
            explained_policy(policy, side, binding, nodes_of(facts, binding), self.zone, self.now)
            for policy, side, binding in found
            if name in (name_of(policy), f"{side}/{name_of(policy)}")
        ]
        if not answers:
            raise Unknown("; ".join([f"there is no policy {name} for a cluster that has joined", *unseen]))
        return answers


def names_of_node(node: Object) -> tuple[str, str]:
    return name_of(node), physical_node(node)


def physical_node(node: Object) -> str:
    return annotations_of(node).get(keys.PHYSICAL_NODE_NAME, "")


def nodes_of(facts: Above, binding: Binding | None) -> list[Object]:
    uid = binding.uid if binding else ""
    return [node for node in facts.nodes if labels_of(node).get(keys.CLUSTER_BINDING_UID) == uid]


def candidates(facts: Above, name: str) -> Iterator[tuple[Object, str]]:
    """The physical nodes that a name without a virtual node may mean: as a virtual name, and as their own."""
    for binding in facts.bindings:
        prefix = virtual_node_name(binding["spec"]["clusterID"], "")
        yield binding, name.removeprefix(prefix)
