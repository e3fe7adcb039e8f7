"""What policies came to: whether they are valid and open, when that changes, and what is lent under them.

The operator's policies are in the virtual cluster and belong to one writer.  An owner's policy may serve several
virtual clusters; each writes its own entry of `status.leases` and nobody else's.
"""

from dataclasses import dataclass
from datetime import datetime

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding
from tapestry.apis.policies import POLICIES
from tapestry.client.client import Client
from tapestry.controller import Result, Store
from tapestry.kube.conditions import condition, with_condition
from tapestry.kube.objects import Object, annotations_of, is_deleting, value_at
from tapestry.kube.patches import exactly, owned_patch
from tapestry.kube.quantity import Amounts
from tapestry.kube.times import timestamp
from tapestry.syncer.leasing import Policy, Side, State
from tapestry.syncer.policies import Reading, is_about, reading_of
from tapestry.syncer.site import Site
from tapestry.syncer.virtual_nodes import leased_of, state_of


@dataclass(frozen=True)
class PolicyStatus:
    """Keeps the status of one side's policies; keyed by the policy's name."""

    site: Site
    side: Side

    async def reconcile(self, name: str) -> Result | None:
        site, now = self.site, self.site.now()
        binding, policy = site.binding(), self.store().get(name)
        if binding is None or policy is None or is_deleting(policy) or not is_about(policy, binding):
            return None
        reading = reading_of(policy, self.side, site.config.time_zone)
        nodes = nodes_under(site, reading.policy, now)
        status = status_of(policy, reading, nodes, now)
        if self.side is Side.OWNER:
            ours = None if site.is_unbinding else our_lease(binding, status, nodes)
            status |= summed(policy, leases_with(policy, binding, ours))
        if patch := owned_patch(policy, {"status": status}):
            await self.client().patch(POLICIES, policy, patch, subresource="status")
        return Result(requeue_at=reading.policy.schedule.next_change(now))

    def store(self) -> Store:
        informer = self.site.operator_policies if self.side is Side.OPERATOR else self.site.owner_policies
        return informer.store

    def client(self) -> Client:
        return self.site.virtual if self.side is Side.OPERATOR else self.site.physical


def nodes_under(site: Site, policy: Policy, now: datetime) -> list[Object]:
    """The virtual nodes that a policy lends now: none while it is closed, and none that another policy closes."""
    if not policy.is_open(now):
        return []
    found = [node for node in site.virtual_nodes.store.list() if state_of(node) is State.OPEN]
    return [node for node in found if str(policy) in annotations_of(node).get(keys.POLICIES_APPLIED, "").split(",")]


def status_of(policy: Object, reading: Reading, nodes: list[Object], now: datetime) -> Object:
    generation = policy["metadata"].get("generation", 0)
    active, change = reading.policy.is_open(now), reading.policy.schedule.next_change(now)
    conditions = value_at(policy, "status", "conditions", default=[])
    valid = (
        condition("Valid", False, "Invalid", reading.complaint, observed_generation=generation)
        if reading.complaint
        else condition("Valid", True, "Valid", observed_generation=generation)
    )
    windows = condition(
        "Active", active, "InTimeWindow" if active else "OutOfTimeWindows", observed_generation=generation
    )
    for each in (valid, windows):
        conditions = with_condition(conditions, each, now)
    status: Object = {
        "phase": "Failed" if not reading.policy.readable else "Active" if active else "Inactive",
        "conditions": conditions,
        "observedGeneration": generation,
        "active": active,
        "nextChange": timestamp(change) if change else None,
        "nodes": len(nodes),
        "leased": exactly(value_at(policy, "status", "leased"), totals(nodes)),
    }
    if not reading.complaint:
        status["lastGood"] = policy["spec"]
    return status


def totals(nodes: list[Object]) -> dict[str, str]:
    """What the nodes lend together."""
    return sum(map(leased_of, nodes), Amounts()).texts()


def our_lease(binding: Binding, status: Object, nodes: list[Object]) -> Object:
    return {
        "virtualCluster": binding.virtual_cluster,
        "clusterBinding": binding.name,
        "active": status["active"],
        "nodes": len(nodes),
        "leased": totals(nodes),
    }


def leases_with(policy: Object, binding: Binding, ours: Object | None) -> list[Object]:
    """The leases under an owner's policy, with ours as it is now; None takes it away."""
    others = [
        each
        for each in value_at(policy, "status", "leases", default=[])
        if (each["virtualCluster"], each["clusterBinding"]) != (binding.virtual_cluster, binding.name)
    ]
    return sorted(
        [*others, *([ours] if ours else [])], key=lambda each: (each["virtualCluster"], each["clusterBinding"])
    )


def summed(policy: Object, leases: list[Object]) -> Object:
    """The status of an owner's policy as far as all virtual clusters make it together, whichever of them writes it."""
    leased = sum((Amounts.parse(lease["leased"]) for lease in leases), Amounts()).texts()
    return {
        "leases": leases,
        "nodes": sum(lease["nodes"] for lease in leases),
        "leased": exactly(value_at(policy, "status", "leased"), leased),
    }


def policy_names(node: Object) -> list[str]:
    """The names of the policies that a virtual node is lent under, of either side."""
    applied = annotations_of(node).get(keys.POLICIES_APPLIED, "")
    return [name.partition("/")[2] for name in applied.split(",") if name]
