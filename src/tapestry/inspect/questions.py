"""Questions: each reads the facts it needs, and has the pure functions answer."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
from tapestry.inspect.facts import (
    Above,
    Silent,
    Unknown,
    Unseen,
    above,
    all_below,
    below,
    last_answers,
    owner_policies,
    physical,
    together,
)
from tapestry.inspect.pods import Placed, PodAnswer, PodStatus, TwinSeen, explained_pod, pod_status
from tapestry.inspect.proposals import PolicyPlan, Proposal, planned
from tapestry.inspect.status import (
    BindingStatus,
    NodeStatus,
    PolicyStatus,
    binding_status,
    node_status,
    physical_node,
    policy_status,
)
from tapestry.inspect.tree import Tree, branch
from tapestry.kube.objects import (
    Object,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
    value_at,
)
from tapestry.kube.resources import EVENTS, NODES, PODS
from tapestry.kube.times import parse_time
from tapestry.manager.connectivity import Connect
from tapestry.syncer.leasing import Side
from tapestry.syncer.policies import is_about

UNPLACED = "spec.nodeName=,status.phase=Pending"


@dataclass(frozen=True)
class Questions:
    """Everything that can be asked."""

    client: Client
    connect: Connect
    now: datetime
    zone: str | None = None
    """Of windows that name none; without it, that of the syncer of their binding."""
    namespace: str = "default"
    """Of pods, where none is named."""

    def zone_of(self, facts: Above, binding: Binding | None) -> str:
        uid = binding.uid if binding else ""
        told = (value_at(each, "status", "timeZone") for each in facts.bindings if uid_of(each) == uid)
        return self.zone or next(filter(None, told), "UTC")

    async def bindings(self) -> list[BindingStatus]:
        facts, heard = await together(above(self.client), last_answers(self.client))
        return [binding_status(each, last_heard(facts, each, heard)) for each in facts.bindings]

    async def nodes(self) -> list[NodeStatus]:
        facts = await above(self.client)
        return [node_status(node, facts.pods[name_of(node)]) for node in facts.nodes]

    async def policies(self) -> tuple[list[PolicyStatus], list[str]]:
        """The policies of both sides, and a sentence for each cluster that could not be looked into."""
        facts = await above(self.client)
        objects = {uid_of(each): each for each in facts.bindings}
        found = []
        for policy in facts.policies:
            about = binding_about(facts, policy)
            obj, zone = objects[about.uid] if about else None, self.zone_of(facts, about)
            found.append(policy_status(policy, Side.OPERATOR, None, obj, zone, self.now))
        owners, unseen = await self.owners(facts)
        for binding, policy in owners:
            zone = self.zone_of(facts, binding)
            found.append(policy_status(policy, Side.OWNER, binding, objects[binding.uid], zone, self.now))
        return found, unseen

    async def owners(self, facts: Above) -> tuple[list[tuple[Binding, Object]], list[str]]:
        """The policies that owners have for each binding; and what could not be seen, and why."""
        async with asyncio.TaskGroup() as group:
            asked = [(each, group.create_task(self.owners_of(each))) for each in facts.bindings]
        found, unseen = [], []
        for obj, task in asked:
            answer = task.result()
            if isinstance(answer, Silent):
                unseen.append(f"the cluster of {name_of(obj)} does not answer, so its owner's policies are not shown")
            elif isinstance(answer, Unseen):
                unseen.append(f"the owner's policies of {name_of(obj)} are not shown: {answer}")
            else:
                binding = binding_of(obj, facts.identity)
                found += [(binding, policy) for policy in answer if is_about(policy, binding)]
        return found, unseen

    async def owners_of(self, binding: Object) -> list[Object] | Unseen:
        try:
            async with physical(self.client, binding, self.connect) as client:
                return await owner_policies(client)
        except Unseen as error:
            return error

    async def silent(self) -> list[BindingStatus]:
        """The bindings whose clusters give no answer now."""
        facts, heard = await together(above(self.client), last_answers(self.client))
        answers = await together(*map(self.owners_of, facts.bindings))
        found = [obj for obj, answer in zip(facts.bindings, answers, strict=True) if isinstance(answer, Silent)]
        return [binding_status(each, last_heard(facts, each, heard)) for each in found]

    async def node(self, name: str) -> list[NodeAnswer]:
        """Why a node lends what it lends: one answer, or one for each cluster that has a physical node of the name."""
        facts = await above(self.client)
        virtual = [each for each in facts.nodes if name in names_of_node(each)]
        if virtual:
            bindings = {uid_of(each): each for each in facts.bindings}
            found = [(bindings.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")), node) for node in virtual]
            asked = [self.answer(facts, obj, physical_node(node), node) for obj, node in found if obj is not None]
            return await together(*asked)
        answers = await together(*(self.answer(facts, obj, node, None) for obj, node in candidates(facts, name)))
        known = [each for each in answers if each.reason not in ("PhysicalNodeGone", "Unseen")]
        if not known:
            unseen = [f"{each.binding} could not be looked into: {each.unseen}" for each in answers if each.unseen]
            raise Unknown("; ".join([f"no cluster that has joined has a node {name}, virtual or not", *unseen]))
        return known

    async def answer(self, facts: Above, obj: Object, node: str, virtual: Object | None) -> NodeAnswer:
        binding = binding_of(obj, facts.identity)
        asked = Asked(
            binding,
            is_deleting(obj),
            node,
            virtual,
            facts.pods[name_of(virtual)] if virtual else [],
            facts.policies,
            self.zone_of(facts, binding),
        )
        try:
            async with physical(self.client, obj, self.connect) as client:
                return explained_node(asked, await below(client, obj, node), self.now)
        except Unseen as error:
            heard = last_heard(facts, obj, await last_answers(self.client))
            seen = binding_status(obj, heard).last_seen
            return told_node(replace(asked, last_seen=seen), error, self.now)

    async def policy(self, name: str) -> list[PolicyExplanation]:
        """What a policy comes to, on each side that has one of the name; `owner/NAME` asks about one side."""
        facts = await above(self.client)
        found: list[tuple[Object, Side, Binding | None]] = [
            (policy, Side.OPERATOR, binding_about(facts, policy)) for policy in facts.policies
        ]
        owners, unseen = await self.owners(facts)
        found += [(policy, Side.OWNER, binding) for binding, policy in owners]
        answers = [
            self.about_policy(facts, policy, side, binding)
            for policy, side, binding in found
            if name in (name_of(policy), f"{side}/{name_of(policy)}")
        ]
        if not answers:
            raise Unknown("; ".join([f"there is no policy {name} for a cluster that has joined", *unseen]))
        return answers

    def about_policy(self, facts: Above, policy: Object, side: Side, binding: Binding | None) -> PolicyExplanation:
        nodes = facts.nodes_of(binding.uid) if binding else []
        return explained_policy(policy, side, binding, nodes, self.zone_of(facts, binding), self.now)

    async def plan(self, policy: Object, side: Side | None) -> list[PolicyPlan]:
        """What would be lent and reclaimed now with a policy that is not there yet, or not like that.

        Without a side it is the side that has a policy of the name or, where none has, the operator's.  Raises Unseen
        where the physical cluster cannot be looked into: what is idle there is not known above.
        """
        facts = await above(self.client)
        owners, _ = await self.owners(facts) if side is not Side.OPERATOR else ([], [])
        mine = {name_of(each): each for each in facts.policies}
        theirs = {name_of(each): each for _, each in owners}
        name = name_of(policy)
        if side is None:
            side = Side.OWNER if name in theirs and name not in mine else Side.OPERATOR
        proposal = Proposal(policy, (mine if side is Side.OPERATOR else theirs).get(name), side)
        bindings = [(obj, binding_of(obj, facts.identity)) for obj in facts.bindings]
        concerned = [(obj, each) for obj, each in bindings if proposal.concerns(each)]
        if not concerned:
            known = ", ".join(sorted(map(name_of, facts.bindings))) or "none"
            cluster = value_at(policy, "spec", "cluster")
            raise Unknown(f"spec.cluster: no ClusterBinding has the name or clusterID {cluster}; known are: {known}")
        return await together(*(self.planned(facts, obj, each, proposal) for obj, each in concerned))

    async def planned(self, facts: Above, obj: Object, binding: Binding, proposal: Proposal) -> PolicyPlan:
        try:
            async with physical(self.client, obj, self.connect) as client:
                cluster = await all_below(client, obj)
        except Unseen as error:
            raise Unseen(f"what the cluster of {name_of(obj)} has idle is not known: {error}") from error
        return planned(proposal, binding, cluster, facts, self.zone_of(facts, binding), self.now)

    # -- pods

    async def pods(self, namespace: str | None, binding: str | None = None) -> list[PodStatus]:
        """The pods on virtual nodes and, unless one binding is meant, those that have no node yet."""
        facts = await above(self.client)
        chosen = {uid_of(obj): binding_of(obj, facts.identity) for obj in self.chosen(facts, binding)}
        found = [
            Placed(pod, node, chosen[uid])
            for node in facts.nodes
            if (uid := labels_of(node).get(keys.CLUSTER_BINDING_UID, "")) in chosen
            for pod in facts.pods[name_of(node)]
            if namespace in (None, namespace_of(pod))
        ]
        if binding is None:
            found += map(Placed, await self.client.list(PODS, namespace, fields=UNPLACED))
        return sorted(map(pod_status, found), key=lambda pod: (pod.namespace, pod.name))

    async def pod(self, namespace: str, name: str) -> PodAnswer:
        """Where a pod is, why it waits or ended, and what to do."""
        facts = await above(self.client)
        pod = await self.client.find(PODS, name, namespace)
        if pod is None:
            raise Unknown(await self.last_words(namespace, name))
        placed, obj = await self.placed(facts, pod)
        found = await self.twin_below(placed, obj) if obj is not None else TwinSeen()
        changes = [value_at(each, "status", "nextChange") for each in facts.bindings]
        opens = min((parse_time(each) for each in changes if each), default=None)
        return explained_pod(placed, found, facts.nodes, facts.pods, opens)

    async def placed(self, facts: Above, pod: Object) -> tuple[Placed, Object | None]:
        """Where a pod is, and the ClusterBinding that its node is of."""
        name = value_at(pod, "spec", "nodeName", default="")
        node = next((each for each in facts.nodes if name_of(each) == name), None)
        if node is None:
            return Placed(pod, is_elsewhere=bool(name) and await self.client.find(NODES, name) is not None), None
        uid = labels_of(node).get(keys.CLUSTER_BINDING_UID)
        obj = next((each for each in facts.bindings if uid_of(each) == uid), None)
        return Placed(pod, node, binding_of(obj, facts.identity) if obj else None), obj

    async def twin_below(self, placed: Placed, binding: Object) -> TwinSeen:
        if not placed.twin:
            return TwinSeen()
        namespace, name = placed.twin.split("/")
        try:
            async with physical(self.client, binding, self.connect) as client:
                return TwinSeen(await client.find(PODS, name, namespace), looked=True)
        except Unseen as error:
            return TwinSeen(unseen=str(error))

    async def last_words(self, namespace: str, name: str) -> str:
        """That there is no such pod, and what was last told of one: pods that are reclaimed are gone."""
        told = await self.client.list(EVENTS, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}")
        missing = f"there is no pod {namespace}/{name}"
        if not told:
            return f"{missing}; `tapestry pods -A` shows those that there are"
        last = max(told, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return f"{missing} any more; last told of it was {last.get('reason')}: {last.get('message')}"

    async def tree(self, binding: str | None) -> Tree:
        facts = await above(self.client)
        chosen = [(obj, binding_of(obj, facts.identity)) for obj in self.chosen(facts, binding)]
        found = [branch(facts, obj, each, facts.nodes_of(each.uid)) for obj, each in chosen]
        return Tree(virtual_cluster=facts.identity, bindings=found)

    def chosen(self, facts: Above, binding: str | None) -> list[Object]:
        """The ClusterBinding of that name, or all."""
        found = [each for each in facts.bindings if binding in (None, name_of(each))]
        if binding is not None and not found:
            known = ", ".join(sorted(map(name_of, facts.bindings))) or "none"
            raise Unknown(f"there is no ClusterBinding {binding}; known are: {known}")
        return sorted(found, key=name_of)


def last_heard(facts: Above, binding: Object, heard: Mapping[str, datetime]) -> datetime | None:
    """When the cluster of a binding last answered, as the Leases of its virtual nodes say."""
    told = (heard.get(name_of(node)) for node in facts.nodes_of(uid_of(binding)))
    return max(filter(None, told), default=None)


def binding_about(facts: Above, policy: Object) -> Binding | None:
    """The binding that an operator's policy is for."""
    bindings = (binding_of(each, facts.identity) for each in facts.bindings)
    return next((binding for binding in bindings if is_about(policy, binding)), None)


def names_of_node(node: Object) -> tuple[str, str]:
    return name_of(node), physical_node(node)


def candidates(facts: Above, name: str) -> Iterator[tuple[Object, str]]:
    """The physical nodes that a name without a virtual node may mean: as a virtual name, and as their own."""
    for binding in facts.bindings:
        prefix = virtual_node_name(binding["spec"]["clusterID"], "")
        yield binding, name.removeprefix(prefix)
