"""`tapestry repair`: what a check of both clusters finds, and what is done about it; the one answer that writes.

Both clusters are read live, and what is found has to be there again some seconds later: only then is it a fault, and
not something under way.  Garbage is removed here, for it may be that no syncer is left to do so.  All else is mended by
the syncer of the binding, and the answer says whether there is one at work.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.clusterbindings import Binding, binding_of
from tapestry.apis.names import syncer_lease_name
from tapestry.client.client import Client
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, physical_client, read_virtual_cluster
from tapestry.inspect.status import Printable
from tapestry.kube.errors import Forbidden, KubeError, NotFound
from tapestry.kube.objects import Object, is_deleting, name_of, value_at
from tapestry.kube.resources import LEASES
from tapestry.kube.times import parse_time
from tapestry.manager.connectivity import Connect
from tapestry.syncer.consistency_check import MAX_REPAIRS, repair_finding
from tapestry.syncer.repair import Finding, findings
from tapestry.syncer.snapshots import live_snapshot

RECHECK_DELAY = 5.0
"""Seconds between the two looks."""
REPAIR_TIMEOUT = 600.0
"""Seconds for everything that is to be done with one physical cluster."""
RECENT_CONTACT = timedelta(minutes=10)
"""A syncer says at least twice as often that it saw its cluster."""


class RepairResult(Printable, frozen=True):
    """A finding, and what became of it."""

    binding: str
    invariant: str
    side: str
    resource: str
    key: str
    message: str
    mended: bool
    remedy: str
    """What mends it; empty where that has been done."""


async def repair(queries: Queries, binding: str | None, *, dry_run: bool) -> tuple[list[RepairResult], list[str]]:
    """What is wrong between both clusters and what became of it; and a sentence for each that nobody could tell."""
    facts = await read_virtual_cluster(queries.client)
    found: list[RepairResult] = []
    unseen: list[str] = []
    for obj in queries.selected_bindings(facts, binding):
        try:
            found += await BindingRepairer(queries.client, queries.connect, queries.now, dry_run).repair_binding(
                obj, facts.identity
            )
        except ClusterUnreadable as error:
            unseen.append(f"{name_of(obj)} was not looked at: {error}")
    return found, unseen


@dataclass(frozen=True)
class BindingRepairer:
    """Looks at bindings of the virtual cluster behind `client`."""

    client: Client
    connect: Connect
    now: datetime
    dry_run: bool = False

    async def repair_binding(self, obj: Object, identity: str) -> list[RepairResult]:
        """What is wrong with a binding of the virtual cluster with that kube-system UID.  Raises Unseen."""
        if is_deleting(obj):
            raise ClusterUnreadable("it is being deleted, and its syncer removes what is left")
        binding = binding_of(obj, identity)
        async with physical_client(self.client, obj, self.connect, REPAIR_TIMEOUT) as below:
            found = await self.confirmed_findings(binding, below)
            done = await self.apply_fixes(found, binding, below)
        at_work = await self.syncer_state_text(obj) if len(done) < len(found) else ""
        return [repair_result(binding, each, mended=each in done, at_work=at_work) for each in found]

    async def confirmed_findings(self, binding: Binding, physical: Client) -> list[Finding]:
        first = findings(await live_snapshot(self.client, physical, binding, self.now))
        if not first:
            return []
        await asyncio.sleep(RECHECK_DELAY)
        again = findings(await live_snapshot(self.client, physical, binding, self.now))
        return [each for each in again if each in first]

    async def apply_fixes(self, found: Sequence[Finding], binding: Binding, physical: Client) -> set[Finding]:
        """What could be removed or set right here, of a bounded number."""
        possible = [each for each in found if each.obj is not None][:MAX_REPAIRS]
        return {
            each for each in possible if not self.dry_run and await repair_finding(each, binding, self.client, physical)
        }

    async def syncer_state_text(self, obj: Object) -> str:
        """Whether the binding's syncer is at work, in words."""
        name = syncer_lease_name(name_of(obj))
        where = f"Lease {keys.SYSTEM_NAMESPACE}/{name}"
        try:
            lease = await self.client.get(LEASES, name, keys.SYSTEM_NAMESPACE)
        except (NotFound, Forbidden):
            seen = value_at(obj, "status", "lastSeen")
            recent = seen is not None and self.now - parse_time(seen) < RECENT_CONTACT
            return "which seems to be at work" if recent else "but none seems to be at work: see its Deployment"
        except KubeError as error:
            return f"of which nobody knows whether it is at work: {error}"
        renewed, seconds = value_at(lease, "spec", "renewTime"), value_at(lease, "spec", "leaseDurationSeconds")
        holder = value_at(lease, "spec", "holderIdentity")
        if holder and renewed and self.now - parse_time(renewed) < timedelta(seconds=seconds or 0):
            return f"which is at work as {holder}"
        return f"but nobody holds {where}: see its Deployment"


def repair_result(binding: Binding, finding: Finding, *, mended: bool, at_work: str) -> RepairResult:
    return RepairResult(
        binding=binding.name,
        invariant=finding.invariant,
        side=finding.side,
        resource=finding.resource.plural,
        key=finding.key,
        message=finding.message,
        mended=mended,
        remedy="" if mended else remedy_text(finding, at_work),
    )


def remedy_text(finding: Finding, at_work: str) -> str:
    if finding.obj is not None:
        return "`tapestry repair` without --dry-run, again if there is much of it"
    return f"the syncer of the binding, {at_work}"
