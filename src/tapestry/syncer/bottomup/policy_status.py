"""Reconciler of policy status: validity, activity, the next change, and the leased amounts.

Operator policies are in the virtual cluster and have one writer. An owner policy may serve several virtual clusters;
each of them writes only its own entry of `status.leases`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import ObjectCache, Result
from tapestry.kube.conditions import new_condition, with_condition
from tapestry.kube.objects import Object, annotations_of, is_deleting, value_at
from tapestry.kube.patches import exact_map_patch, owned_patch
from tapestry.kube.quantity import ResourceList
from tapestry.kube.times import timestamp
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.leasing import LeaseState, Policy, PolicySide
from tapestry.syncer.policies import ParsedPolicy, applies_to_binding, parsed_policy
from tapestry.syncer.virtual_nodes import lease_state_of, leased_amounts


@dataclass(frozen=True)
class PolicyStatusReconciler:
    """Keep the status of one side's policies; keyed by the policy's name."""

    current_binding: CurrentBinding
    virtual_nodes: ObjectCache
    policies: ObjectCache
    client: Client
    now: Callable[[], datetime]
    time_zone: str
    """Time zone of windows without one."""
    side: PolicySide

    async def reconcile(self, name: str) -> Result | None:
        now = self.now()
        binding, policy = self.current_binding.get(), self.policies.store.get(name)
        if binding is None or policy is None or is_deleting(policy) or not applies_to_binding(policy, binding):
            return None
        parsed = parsed_policy(policy, self.side, self.time_zone)
        nodes = leased_nodes(self.virtual_nodes.store.list(), parsed.policy, now)
        status = policy_status(policy, parsed, nodes, now)
        if self.side is PolicySide.OWNER:
            ours = None if self.current_binding.is_unbinding else lease_entry(binding, status, nodes)
            status |= owner_totals(policy, merged_leases(policy, binding, ours))
        if patch := owned_patch(policy, {"status": status}):
            await self.client.patch(POLICIES, policy, patch, subresource="status")
        return Result(requeue_at=parsed.policy.schedule.next_change(now))


def leased_nodes(nodes: Iterable[Object], policy: Policy, now: datetime) -> list[Object]:
    """Return the virtual nodes leased under the policy now: none while this or another policy is closed."""
    if not policy.is_open(now):
        return []
    leased = (node for node in nodes if lease_state_of(node) is LeaseState.OPEN)
    return [node for node in leased if str(policy) in annotations_of(node).get(keys.POLICIES_APPLIED, "").split(",")]


def policy_status(policy: Object, parsed: ParsedPolicy, nodes: list[Object], now: datetime) -> Object:
    generation = policy["metadata"].get("generation", 0)
    active, change = parsed.policy.is_open(now), parsed.policy.schedule.next_change(now)
    conditions = value_at(policy, "status", "conditions", default=[])
    valid = (
        new_condition("Valid", False, "Invalid", parsed.error, observed_generation=generation)
        if parsed.error
        else new_condition("Valid", True, "Valid", observed_generation=generation)
    )
    windows = new_condition(
        "Active", active, "InTimeWindow" if active else "OutOfTimeWindows", observed_generation=generation
    )
    for each in (valid, windows):
        conditions = with_condition(conditions, each, now)
    status: Object = {
        "phase": "Failed" if not parsed.policy.is_valid else "Active" if active else "Inactive",
        "conditions": conditions,
        "observedGeneration": generation,
        "active": active,
        "nextChange": timestamp(change) if change else None,
        "nodes": len(nodes),
        "leased": exact_map_patch(value_at(policy, "status", "leased"), total_leased(nodes)),
    }
    if not parsed.error:
        status["lastGood"] = policy["spec"]
    return status


def total_leased(nodes: list[Object]) -> dict[str, str]:
    """Return the sum of what the nodes lease."""
    return sum(map(leased_amounts, nodes), ResourceList()).texts()


def lease_entry(binding: Binding, status: Object, nodes: list[Object]) -> Object:
    return {
        "virtualCluster": binding.virtual_cluster,
        "clusterBinding": binding.name,
        "active": status["active"],
        "nodes": len(nodes),
        "leased": total_leased(nodes),
    }


def merged_leases(policy: Object, binding: Binding, ours: Object | None) -> list[Object]:
    """Return the leases under an owner policy with our entry replaced; None removes it."""
    others = [
        each
        for each in value_at(policy, "status", "leases", default=[])
        if (each["virtualCluster"], each["clusterBinding"]) != (binding.virtual_cluster, binding.name)
    ]
    return sorted(
        [*others, *([ours] if ours else [])], key=lambda each: (each["virtualCluster"], each["clusterBinding"])
    )


def owner_totals(policy: Object, leases: list[Object]) -> Object:
    """Return the part of an owner policy's status that sums up all virtual clusters."""
    leased = sum((ResourceList.parse(lease["leased"]) for lease in leases), ResourceList()).texts()
    return {
        "leases": leases,
        "nodes": sum(lease["nodes"] for lease in leases),
        "leased": exact_map_patch(value_at(policy, "status", "leased"), leased),
    }


def policy_names(node: Object) -> list[str]:
    """Return the names of the policies of both sides that a virtual node is leased under."""
    applied = annotations_of(node).get(keys.POLICIES_APPLIED, "")
    return [name.partition("/")[2] for name in applied.split(",") if name]
