"""Queries of the commands: each reads the needed objects and calls pure functions."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
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
from tapestry.inspect.pods import (
    PlacedPod,
    PodExplanation,
    PodStatus,
    Tree,
    TwinLookup,
    binding_branch,
    pod_explanation,
    pod_status,
)
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
    """Queries on a virtual cluster and its bindings."""

    client: Client
    connect: Connect
    now: datetime
    time_zone: str | None = None
    """Time zone of windows without one; by default that of the binding's syncer."""
    namespace: str = "default"

    def time_zone_of(self, snapshot: VirtualSnapshot, binding: Binding | None) -> str:
        uid = binding.uid if binding else ""
        time_zones = (value_at(each, "status", "timeZone") for each in snapshot.bindings if uid_of(each) == uid)
        return self.time_zone or next(filter(None, time_zones), "UTC")

    async def bindings(self) -> list[BindingStatus]:
        facts, contact_times = await gather_all(read_virtual_cluster(self.client), last_contact_times(self.client))
        return [binding_status(each, last_contact(facts, each, contact_times)) for each in facts.bindings]

    async def nodes(self) -> list[NodeStatus]:
        facts = await read_virtual_cluster(self.client)
        return [node_status(node, facts.pods[name_of(node)]) for node in facts.nodes]

    async def policies(self) -> tuple[list[PolicyStatus], list[str]]:
        """Return the policies of both sides, and a message for each unreadable cluster."""
        facts = await read_virtual_cluster(self.client)
        objects = {uid_of(each): each for each in facts.bindings}
        found = []
        for policy in facts.policies:
            target = binding_for_policy(facts, policy)
            obj, zone = objects[target.uid] if target else None, self.time_zone_of(facts, target)
            found.append(policy_status(policy, PolicySide.OPERATOR, None, obj, zone, self.now))
        owners, unread = await self.owner_policies_by_binding(facts)
        for binding, policy in owners:
            zone = self.time_zone_of(facts, binding)
            found.append(policy_status(policy, PolicySide.OWNER, binding, objects[binding.uid], zone, self.now))
        return found, unread

    async def owner_policies_by_binding(
        self, snapshot: VirtualSnapshot
    ) -> tuple[list[tuple[Binding, Object]], list[str]]:
        async with asyncio.TaskGroup() as group:
            tasks = [(each, group.create_task(self.owner_policies_of(each))) for each in snapshot.bindings]
        found, unread = [], []
        for obj, task in tasks:
            result = task.result()
            if isinstance(result, ClusterUnreachable):
                unread.append(f"the cluster of {name_of(obj)} does not answer, so its owner's policies are not shown")
            elif isinstance(result, ClusterUnreadable):
                unread.append(f"the owner's policies of {name_of(obj)} are not shown: {result}")
            else:
                binding = snapshot.binding(obj)
                found += [(binding, policy) for policy in result if applies_to_binding(policy, binding)]
        return found, unread

    async def owner_policies_of(self, binding: Object) -> list[Object] | ClusterUnreadable:
        try:
            async with physical_client(self.client, binding, self.connect) as client:
                return await owner_policies(client)
        except ClusterUnreadable as error:
            return error

    async def unreachable_bindings(self) -> list[BindingStatus]:
        """Return the bindings whose clusters do not answer now."""
        facts, contact_times = await gather_all(read_virtual_cluster(self.client), last_contact_times(self.client))
        results = await gather_all(*map(self.owner_policies_of, facts.bindings))
        found = [
            obj for obj, result in zip(facts.bindings, results, strict=True) if isinstance(result, ClusterUnreachable)
        ]
        return [binding_status(each, last_contact(facts, each, contact_times)) for each in found]

    async def node(self, name: str) -> list[NodeExplanation]:
        """Explain the lease of a node; return one result per cluster with a physical node of that name."""
        facts = await read_virtual_cluster(self.client)
        virtual = [each for each in facts.nodes if name in node_names(each)]
        if virtual:
            bindings = {uid_of(each): each for each in facts.bindings}
            found = [(bindings.get(labels_of(node).get(keys.CLUSTER_BINDING_UID, "")), node) for node in virtual]
            explanations = [
                self.node_explanation_of(facts, obj, physical_node_name(node), node)
                for obj, node in found
                if obj is not None
            ]
            return await gather_all(*explanations)
        results = await gather_all(
            *(self.node_explanation_of(facts, obj, node, None) for obj, node in candidate_nodes(facts, name))
        )
        known = [each for each in results if each.reason not in ("PhysicalNodeGone", "Unseen")]
        if not known:
            unread = [f"{each.binding} could not be read: {each.unseen}" for each in results if each.unseen]
            raise QueryError("; ".join([f"no cluster that has joined has a node {name}, virtual or not", *unread]))
        return known

    async def node_explanation_of(
        self, snapshot: VirtualSnapshot, obj: Object, node: str, virtual: Object | None
    ) -> NodeExplanation:
        binding = snapshot.binding(obj)
        query = NodeQuery(
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
                return node_explanation(query, await read_physical_node(client, obj, node), self.now)
        except ClusterUnreadable as error:
            contact = last_contact(snapshot, obj, await last_contact_times(self.client))
            seen = binding_status(obj, contact).last_seen
            return node_explanation_from_virtual(replace(query, last_seen=seen), error, self.now)

    async def policy(self, name: str) -> list[PolicyExplanation]:
        """Explain a policy on each side that has one of the name; `owner/NAME` selects one side."""
        facts = await read_virtual_cluster(self.client)
        found: list[tuple[Object, PolicySide, Binding | None]] = [
            (policy, PolicySide.OPERATOR, binding_for_policy(facts, policy)) for policy in facts.policies
        ]
        owners, unread = await self.owner_policies_by_binding(facts)
        found += [(policy, PolicySide.OWNER, binding) for binding, policy in owners]
        explanations = [
            self.policy_explanation_of(facts, policy, side, binding)
            for policy, side, binding in found
            if name in (name_of(policy), f"{side}/{name_of(policy)}")
        ]
        if not explanations:
            raise QueryError("; ".join([f"there is no policy {name} for a cluster that has joined", *unread]))
        return explanations

    def policy_explanation_of(
        self, snapshot: VirtualSnapshot, policy: Object, side: PolicySide, binding: Binding | None
    ) -> PolicyExplanation:
        nodes = snapshot.nodes_of(binding.uid) if binding else []
        return policy_explanation(policy, side, binding, nodes, self.time_zone_of(snapshot, binding), self.now)

    async def plan(self, policy: Object, side: PolicySide | None) -> list[PolicyPlan]:
        """Return what would be leased and reclaimed now with a new or changed policy.

        Without a side, the side with a policy of the name is used, else the operator's.  Raise ClusterUnreadable if the
        physical cluster cannot be read, because its idle resources are then unknown.
        """
        facts = await read_virtual_cluster(self.client)
        owners, _ = await self.owner_policies_by_binding(facts) if side is not PolicySide.OPERATOR else ([], [])
        operated = {name_of(each): each for each in facts.policies}
        owned = {name_of(each): each for _, each in owners}
        name = name_of(policy)
        if side is None:
            side = PolicySide.OWNER if name in owned and name not in operated else PolicySide.OPERATOR
        proposal = Proposal(policy, (operated if side is PolicySide.OPERATOR else owned).get(name), side)
        bindings = [(obj, facts.binding(obj)) for obj in facts.bindings]
        affected = [(obj, each) for obj, each in bindings if proposal.affects(each)]
        if not affected:
            known = ", ".join(sorted(map(name_of, facts.bindings))) or "none"
            cluster = value_at(policy, "spec", "cluster")
            raise QueryError(f"spec.cluster: no ClusterBinding has the name or clusterID {cluster}; known are: {known}")
        return await gather_all(*(self.plan_for_binding(facts, obj, each, proposal) for obj, each in affected))

    async def plan_for_binding(
        self, snapshot: VirtualSnapshot, obj: Object, binding: Binding, proposal: Proposal
    ) -> PolicyPlan:
        try:
            async with physical_client(self.client, obj, self.connect) as client:
                cluster = await read_physical_cluster(client, obj)
        except ClusterUnreadable as error:
            raise ClusterUnreadable(f"idle resources of the cluster of {name_of(obj)} are unknown: {error}") from error
        return policy_plan(proposal, binding, cluster, snapshot, self.time_zone_of(snapshot, binding), self.now)

    # -- pods

    async def pods(self, namespace: str | None, binding: str | None = None) -> list[PodStatus]:
        """Return the pods on virtual nodes and, without `binding`, those without a node."""
        facts = await read_virtual_cluster(self.client)
        selected = {uid_of(obj): facts.binding(obj) for obj in self.selected_bindings(facts, binding)}
        found = [
            PlacedPod(pod, node, selected[uid])
            for node in facts.nodes
            if (uid := labels_of(node).get(keys.CLUSTER_BINDING_UID, "")) in selected
            for pod in facts.pods[name_of(node)]
            if namespace in (None, namespace_of(pod))
        ]
        if binding is None:
            found += map(PlacedPod, await self.client.list(PODS, namespace, fields=UNSCHEDULED_SELECTOR))
        return sorted(map(pod_status, found), key=lambda pod: (pod.namespace, pod.name))

    async def pod(self, namespace: str, name: str) -> PodExplanation:
        """Explain where a pod is and why it waits or ended, with advice."""
        facts = await read_virtual_cluster(self.client)
        pod = await self.client.find(PODS, name, namespace)
        if pod is None:
            raise QueryError(await self.missing_pod_message(namespace, name))
        placed, obj = await self.placed_pod(facts, pod)
        twin = await self.lookup_twin(placed, obj) if obj is not None else TwinLookup()
        changes = [value_at(each, "status", "nextChange") for each in facts.bindings]
        next_opening = min((parse_time(each) for each in changes if each), default=None)
        return pod_explanation(placed, twin, facts.nodes, facts.pods, next_opening)

    async def placed_pod(self, snapshot: VirtualSnapshot, pod: Object) -> tuple[PlacedPod, Object | None]:
        """Return the placement of a pod and the ClusterBinding of its node."""
        name = value_at(pod, "spec", "nodeName", default="")
        node = next((each for each in snapshot.nodes if name_of(each) == name), None)
        if node is None:
            return PlacedPod(
                pod, is_on_unleased_node=bool(name) and await self.client.find(NODES, name) is not None
            ), None
        uid = labels_of(node).get(keys.CLUSTER_BINDING_UID)
        obj = next((each for each in snapshot.bindings if uid_of(each) == uid), None)
        return PlacedPod(pod, node, snapshot.binding(obj) if obj else None), obj

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
        """Return a message with the last event of a missing pod: reclaimed pods are deleted."""
        events = await self.client.list(EVENTS, namespace, fields=f"involvedObject.kind=Pod,involvedObject.name={name}")
        missing = f"there is no pod {namespace}/{name}"
        if not events:
            return f"{missing}; `tapestry pods -A` lists the existing ones"
        last = max(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
        return f"{missing} any more; its last event was {last.get('reason')}: {last.get('message')}"

    async def tree(self, binding: str | None) -> Tree:
        facts = await read_virtual_cluster(self.client)
        selected = [(obj, facts.binding(obj)) for obj in self.selected_bindings(facts, binding)]
        found = [binding_branch(facts, obj, each, facts.nodes_of(each.uid)) for obj, each in selected]
        return Tree(virtual_cluster=facts.identity, bindings=found)

    def selected_bindings(self, snapshot: VirtualSnapshot, binding: str | None) -> list[Object]:
        """Return the ClusterBinding of that name, or all."""
        found = [each for each in snapshot.bindings if binding in (None, name_of(each))]
        if binding is not None and not found:
            known = ", ".join(sorted(map(name_of, snapshot.bindings))) or "none"
            raise QueryError(f"there is no ClusterBinding {binding}; known are: {known}")
        return sorted(found, key=name_of)


def last_contact(snapshot: VirtualSnapshot, binding: Object, contact_times: Mapping[str, datetime]) -> datetime | None:
    """Return when the cluster of a binding last answered, from the Leases of its virtual nodes."""
    times = (contact_times.get(name_of(node)) for node in snapshot.nodes_of(uid_of(binding)))
    return max(filter(None, times), default=None)


def binding_for_policy(snapshot: VirtualSnapshot, policy: Object) -> Binding | None:
    bindings = (snapshot.binding(each) for each in snapshot.bindings)
    return next((binding for binding in bindings if applies_to_binding(policy, binding)), None)


def node_names(node: Object) -> tuple[str, str]:
    return name_of(node), physical_node_name(node)


def candidate_nodes(snapshot: VirtualSnapshot, name: str) -> Iterator[tuple[Object, str]]:
    """Yield the physical nodes that a name may mean, as a virtual or as a physical name."""
    for binding in snapshot.bindings:
        prefix = virtual_node_name(binding["spec"]["clusterID"], "")
        yield binding, name.removeprefix(prefix)
