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
    NodeExplanation,
    NodeQuery,
    PolicyExplanation,
    node_explanation,
    node_explanation_from_virtual,
    policy_explanation,
)
from tapestry.inspect.pods import PlacedPod, PodExplanation, PodStatus, TwinLookup, pod_explanation, pod_status
from tapestry.inspect.proposals import PolicyPlan, Proposal, policy_plan
from tapestry.inspect.snapshots import (
    ClusterUnreachable,
    ClusterUnreadable,
    QueryError,
    VirtualSnapshot,
    gather_all,
    last_contact_times,
    owner_policies,
    physical_client,
    read_physical_cluster,
    read_physical_node,
    read_virtual_cluster,
)
from tapestry.inspect.status import (
    BindingStatus,
    NodeStatus,
    PolicyStatus,
    binding_status,
    node_status,
    physical_node_name,
    policy_status,
)
from tapestry.inspect.tree import Tree, binding_branch
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
from tapestry.syncer.leasing import PolicySide
from tapestry.syncer.policies import applies_to_binding

UNSCHEDULED_SELECTOR = "spec.nodeName=,status.phase=Pending"


@dataclass(frozen=True)
class Queries:
    """Everything that can be asked."""

    client: Client
    connect: Connect
    now: datetime
    time_zone: str | None = None
    """Of windows that name none; without it, that of the syncer of their binding."""
    namespace: str = "default"
    """Of pods, where none is named."""

    def time_zone_of(self, snapshot: VirtualSnapshot, binding: Binding | None) -> str:
        uid = binding.uid if binding else ""
        told = (value_at(each, "status", "timeZone") for each in snapshot.bindings if uid_of(each) == uid)
        return self.time_zone or next(filter(None, told), "UTC")

    async def bindings(self) -> list[BindingStatus]:
        facts, heard = await gather_all(read_virtual_cluster(self.client), last_contact_times(self.client))
        return [binding_status(each, last_contact(facts, each, heard)) for each in facts.bindings]

    async def nodes(self) -> list[NodeStatus]:
        facts = await read_virtual_cluster(self.client)
        return [node_status(node, facts.pods[name_of(node)]) for node in facts.nodes]

    async def policies(self) -> tuple[list[PolicyStatus], list[str]]:
        """The policies of both sides, and a sentence for each cluster that could not be looked into."""
        facts = await read_virtual_cluster(self.client)
        objects = {uid_of(each): each for each in facts.bindings}
        found = []
        for policy in facts.policies:
            about = binding_for_policy(facts, policy)
            obj, zone = objects[about.uid] if about else None, self.time_zone_of(facts, about)
            found.append(policy_status(policy, PolicySide.OPERATOR, None, obj, zone, self.now))
        owners, unseen = await self.owner_policies_by_binding(facts)
        for binding, policy in owners:
            zone = self.time_zone_of(facts, binding)
            found.append(policy_status(policy, PolicySide.OWNER, binding, objects[binding.uid], zone, self.now))
        return found, unseen

    async def owner_policies_by_binding(
        self, snapshot: VirtualSnapshot
    ) -> tuple[list[tuple[Binding, Object]], list[str]]:
        """The policies that owners have for each binding; and what could not be seen, and why."""
        async with asyncio.TaskGroup() as group:
            asked = [(each, group.create_task(self.owner_policies_of(each))) for each in snapshot.bindings]
        found, unseen = [], []
        for obj, task in asked:
            answer = task.result()
            if isinstance(answer, ClusterUnreachable):
                unseen.append(f"the cluster of {name_of(obj)} does not answer, so its owner's policies are not shown")
            elif isinstance(answer, ClusterUnreadable):
                unseen.append(f"the owner's policies of {name_of(obj)} are not shown: {answer}")
            else:
                binding = binding_of(obj, snapshot.identity)
                found += [(binding, policy) for policy in answer if applies_to_binding(policy, binding)]
        return found, unseen

    async def owner_policies_of(self, binding: Object) -> list[Object] | ClusterUnreadable:
        try:
            async with physical_client(self.client, binding, self.connect) as client:
                return await owner_policies(client)
        except ClusterUnreadable as error:
            return error

    async def unreachable_bindings(self) -> list[BindingStatus]:
        """The bindings whose clusters give no answer now."""
        facts, heard = await gather_all(read_virtual_cluster(self.client), last_contact_times(self.client))
        answers = await gather_all(*map(self.owner_policies_of, facts.bindings))
        found = [
            obj for obj, answer in zip(facts.bindings, answers, strict=True) if isinstance(answer, ClusterUnreachable)
        ]
        return [binding_status(each, last_contact(facts, each, heard)) for each in found]

    async def node(self, name: str) -> list[NodeExplanation]:
        """Why a node lends what it lends: one answer, or one for each cluster that has a physical node of the name."""
        facts = await read_virtual_cluster(self.client)
        virtual = [each for each in facts.nodes if name in node_names(each)]
        if virtual:
            bindings = {uid_of(each): each for each in facts.bindings}
            found = [(bindings.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")), node) for node in virtual]
            asked = [
                self.node_explanation_of(facts, obj, physical_node_name(node), node)
                for obj, node in found
                if obj is not None
            ]
            return await gather_all(*asked)
        answers = await gather_all(
            *(self.node_explanation_of(facts, obj, node, None) for obj, node in candidate_nodes(facts, name))
        )
        known = [each for each in answers if each.reason not in ("PhysicalNodeGone", "Unseen")]
        if not known:
            unseen = [f"{each.binding} could not be looked into: {each.unseen}" for each in answers if each.unseen]
            raise QueryError("; ".join([f"no cluster that has joined has a node {name}, virtual or not", *unseen]))
        return known

    async def node_explanation_of(
        self, snapshot: VirtualSnapshot, obj: Object, node: str, virtual: Object | None
    ) -> NodeExplanation:
        binding = binding_of(obj, snapshot.identity)
        asked = NodeQuery(
            binding,
            is_deleting(obj),
            node,
            virtual,
            snapshot.pods[name_of(virtual)] if virtual else [],
            snapshot.policies,
            self.time_zone_of(snapshot, binding),
        )
        try:
            async with physical_client(self.client, obj, self.connect) as client:
                return node_explanation(asked, await read_physical_node(client, obj, node), self.now)
        except ClusterUnreadable as error:
            heard = last_contact(snapshot, obj, await last_contact_times(self.client))
            seen = binding_status(obj, heard).last_seen
            return node_explanation_from_virtual(replace(asked, last_seen=seen), error, self.now)

    async def policy(self, name: str) -> list[PolicyExplanation]:
        """What a policy comes to, on each side that has one of the name; `owner/NAME` asks about one side."""
        facts = await read_virtual_cluster(self.client)
        found: list[tuple[Object, PolicySide, Binding | None]] = [
            (policy, PolicySide.OPERATOR, binding_for_policy(facts, policy)) for policy in facts.policies
        ]
        owners, unseen = await self.owner_policies_by_binding(facts)
        found += [(policy, PolicySide.OWNER, binding) for binding, policy in owners]
        answers = [
            self.policy_explanation_of(facts, policy, side, binding)
            for policy, side, binding in found
            if name in (name_of(policy), f"{side}/{name_of(policy)}")
        ]
        if not answers:
            raise QueryError("; ".join([f"there is no policy {name} for a cluster that has joined", *unseen]))
        return answers

    def policy_explanation_of(
        self, snapshot: VirtualSnapshot, policy: Object, side: PolicySide, binding: Binding | None
    ) -> PolicyExplanation:
        nodes = snapshot.nodes_of(binding.uid) if binding else []
        return policy_explanation(policy, side, binding, nodes, self.time_zone_of(snapshot, binding), self.now)

    async def plan(self, policy: Object, side: PolicySide | None) -> list[PolicyPlan]:
        """What would be lent and reclaimed now with a policy that is not there yet, or not like that.

        Without a side it is the side that has a policy of the name or, where none has, the operator's.  Raises Unseen
        where the physical cluster cannot be looked into: what is idle there is not known above.
        """
        facts = await read_virtual_cluster(self.client)
        owners, _ = await self.owner_policies_by_binding(facts) if side is not PolicySide.OPERATOR else ([], [])
        mine = {name_of(each): each for each in facts.policies}
        theirs = {name_of(each): each for _, each in owners}
        name = name_of(policy)
        if side is None:
            side = PolicySide.OWNER if name in theirs and name not in mine else PolicySide.OPERATOR
        proposal = Proposal(policy, (mine if side is PolicySide.OPERATOR else theirs).get(name), side)
        bindings = [(obj, binding_of(obj, facts.identity)) for obj in facts.bindings]
        concerned = [(obj, each) for obj, each in bindings if proposal.affects(each)]
        if not concerned:
            known = ", ".join(sorted(map(name_of, facts.bindings))) or "none"
            cluster = value_at(policy, "spec", "cluster")
            raise QueryError(f"spec.cluster: no ClusterBinding has the name or clusterID {cluster}; known are: {known}")
        return await gather_all(*(self.plan_for_binding(facts, obj, each, proposal) for obj, each in concerned))

    async def plan_for_binding(
        self, snapshot: VirtualSnapshot, obj: Object, binding: Binding, proposal: Proposal
    ) -> PolicyPlan:
        try:
            async with physical_client(self.client, obj, self.connect) as client:
                cluster = await read_physical_cluster(client, obj)
        except ClusterUnreadable as error:
            raise ClusterUnreadable(f"what the cluster of {name_of(obj)} has idle is not known: {error}") from error
        return policy_plan(proposal, binding, cluster, snapshot, self.time_zone_of(snapshot, binding), self.now)

    # -- pods

    async def pods(self, namespace: str | None, binding: str | None = None) -> list[PodStatus]:
        """The pods on virtual nodes and, unless one binding is meant, those that have no node yet."""
        facts = await read_virtual_cluster(self.client)
        chosen = {uid_of(obj): binding_of(obj, facts.identity) for obj in self.selected_bindings(facts, binding)}
        found = [
            PlacedPod(pod, node, chosen[uid])
            for node in facts.nodes
            if (uid := labels_of(node).get(keys.CLUSTER_BINDING_UID, "")) in chosen
            for pod in facts.pods[name_of(node)]
            if namespace in (None, namespace_of(pod))
        ]
        if binding is None:
            found += map(PlacedPod, await self.client.list(PODS, namespace, fields=UNSCHEDULED_SELECTOR))
        return sorted(map(pod_status, found), key=lambda pod: (pod.namespace, pod.name))

    async def pod(self, namespace: str, name: str) -> PodExplanation:
        """Where a pod is, why it waits or ended, and what to do."""
        facts = await read_virtual_cluster(self.client)
        pod = await self.client.find(PODS, name, namespace)
        if pod is None:
            raise QueryError(await self.missing_pod_message(namespace, name))
        placed, obj = await self.placed_pod(facts, pod)
        found = await self.lookup_twin(placed, obj) if obj is not None else TwinLookup()
        changes = [value_at(each, "status", "nextChange") for each in facts.bindings]
        opens = min((parse_time(each) for each in changes if each), default=None)
        return pod_explanation(placed, found, facts.nodes, facts.pods, opens)

    async def placed_pod(self, snapshot: VirtualSnapshot, pod: Object) -> tuple[PlacedPod, Object | None]:
        """Where a pod is, and the ClusterBinding that its node is of."""
        name = value_at(pod, "spec", "nodeName", default="")
        node = next((each for each in snapshot.nodes if name_of(each) == name), None)
        if node is None:
            return PlacedPod(
                pod, is_on_unleased_node=bool(name) and await self.client.find(NODES, name) is not None
            ), None
        uid = labels_of(node).get(keys.CLUSTER_BINDING_UID)
        obj = next((each for each in snapshot.bindings if uid_of(each) == uid), None)
        return PlacedPod(pod, node, binding_of(obj, snapshot.identity) if obj else None), obj

    async def lookup_twin(self, placed_pod: PlacedPod, binding: Object) -> TwinLookup:
        if not placed_pod.twin:
            return TwinLookup()
        namespace, name = placed_pod.twin.split("/")
        try:
            async with physical_client(self.client, binding, self.connect) as client:
                return TwinLookup(await client.find(PODS, name, namespace), succeeded=True)
        except ClusterUnreadable as error:
            return TwinLookup(error=str(error))

    async def missing_pod_message(self, namespace: str, name: str) -> str:
        """That there is no such pod, and what was last told of one: pods that are reclaimed are gone."""
        told = await self.client.list(EVENTS, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}")
        missing = f"there is no pod {namespace}/{name}"
        if not told:
            return f"{missing}; `tapestry pods -A` shows those that there are"
        last = max(told, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return f"{missing} any more; last told of it was {last.get('reason')}: {last.get('message')}"

    async def tree(self, binding: str | None) -> Tree:
        facts = await read_virtual_cluster(self.client)
        chosen = [(obj, binding_of(obj, facts.identity)) for obj in self.selected_bindings(facts, binding)]
        found = [binding_branch(facts, obj, each, facts.nodes_of(each.uid)) for obj, each in chosen]
        return Tree(virtual_cluster=facts.identity, bindings=found)

    def selected_bindings(self, snapshot: VirtualSnapshot, binding: str | None) -> list[Object]:
        """The ClusterBinding of that name, or all."""
        found = [each for each in snapshot.bindings if binding in (None, name_of(each))]
        if binding is not None and not found:
            known = ", ".join(sorted(map(name_of, snapshot.bindings))) or "none"
            raise QueryError(f"there is no ClusterBinding {binding}; known are: {known}")
        return sorted(found, key=name_of)


def last_contact(snapshot: VirtualSnapshot, binding: Object, contact_times: Mapping[str, datetime]) -> datetime | None:
    """When the cluster of a binding last answered, as the Leases of its virtual nodes say."""
    told = (contact_times.get(name_of(node)) for node in snapshot.nodes_of(uid_of(binding)))
    return max(filter(None, told), default=None)


def binding_for_policy(snapshot: VirtualSnapshot, policy: Object) -> Binding | None:
    """The binding that an operator's policy is for."""
    bindings = (binding_of(each, snapshot.identity) for each in snapshot.bindings)
    return next((binding for binding in bindings if applies_to_binding(policy, binding)), None)


def node_names(node: Object) -> tuple[str, str]:
    return name_of(node), physical_node_name(node)


def candidate_nodes(snapshot: VirtualSnapshot, name: str) -> Iterator[tuple[Object, str]]:
    """The physical nodes that a name without a virtual node may mean: as a virtual name, and as their own."""
    for binding in snapshot.bindings:
        prefix = virtual_node_name(binding["spec"]["clusterID"], "")
        yield binding, name.removeprefix(prefix)
