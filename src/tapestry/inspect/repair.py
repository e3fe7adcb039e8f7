"""`tapestry repair`: consistency check of both clusters, with deletion of garbage.

Both clusters are read live, twice, some seconds apart: only a finding that persists is a fault.  Garbage is deleted
here, because no syncer may be left to do so.  The binding's syncer fixes the rest, and the result says whether it is
running.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.names import syncer_lease_name
from tapestry.client.client import Client
from tapestry.inspect.queries import Queries
from tapestry.inspect.snapshots import ClusterUnreadable, VirtualSnapshot, physical_client, read_virtual_cluster
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
"""Seconds between the two reads."""
REPAIR_TIMEOUT = 600.0
"""Seconds for all work on one physical cluster."""
RECENT_CONTACT = timedelta(minutes=10)
"""Age of the last contact below which a syncer counts as running; it reports at least twice as often."""


class RepairResult(Printable, frozen=True):
    """A finding and its outcome."""

    binding: str
    invariant: str
    side: str
    resource: str
    key: str
    message: str
    fixed: bool
    remedy: str
    """Description of the fix; empty if the finding is fixed."""


async def repair(queries: Queries, binding: str | None, *, dry_run: bool) -> tuple[list[RepairResult], list[str]]:
    """Find and fix inconsistencies; return them with a message for each unreadable cluster."""
    facts = await read_virtual_cluster(queries.client)
    found: list[RepairResult] = []
    unread: list[str] = []
    for obj in queries.selected_bindings(facts, binding):
        try:
            found += await BindingRepairer(queries.client, queries.connect, queries.now, dry_run).repair_binding(
                obj, facts
            )
        except ClusterUnreadable as error:
            unread.append(f"{name_of(obj)} was not checked: {error}")
    return found, unread


@dataclass(frozen=True)
class BindingRepairer:
    """Checks and repairs bindings of the virtual cluster behind `client`."""

    client: Client
    connect: Connect
    now: datetime
    dry_run: bool = False

    async def repair_binding(self, obj: Object, facts: VirtualSnapshot) -> list[RepairResult]:
        """Check and repair one binding of the virtual cluster."""
        if is_deleting(obj):
            raise ClusterUnreadable("it is being deleted, and its syncer cleans up")
        binding = facts.binding(obj)
        async with physical_client(self.client, obj, self.connect, REPAIR_TIMEOUT) as physical:
            found = await self.confirmed_findings(binding, physical)
            fixed = await self.apply_fixes(found, binding, physical)
        syncer_state = await self.syncer_state_text(obj, binding.manager_namespace) if len(fixed) < len(found) else ""
        return [repair_result(binding, each, fixed=each in fixed, syncer_state=syncer_state) for each in found]

    async def confirmed_findings(self, binding: Binding, physical: Client) -> list[Finding]:
        first = findings(await live_snapshot(self.client, physical, binding, self.now))
        if not first:
            return []
        await asyncio.sleep(RECHECK_DELAY)
        second = findings(await live_snapshot(self.client, physical, binding, self.now))
        return [each for each in second if each in first]

    async def apply_fixes(self, found: Sequence[Finding], binding: Binding, physical: Client) -> set[Finding]:
        """Fix the findings that can be fixed here, up to a limit; return the fixed ones."""
        possible = [each for each in found if each.obj is not None][:MAX_REPAIRS]
        return {
            each for each in possible if not self.dry_run and await repair_finding(each, binding, self.client, physical)
        }

    async def syncer_state_text(self, obj: Object, namespace: str) -> str:
        """Describe whether the binding's syncer is running."""
        name = syncer_lease_name(name_of(obj))
        where = f"Lease {namespace}/{name}"
        try:
            lease = await self.client.get(LEASES, name, namespace)
        except (NotFound, Forbidden):
            last_seen = value_at(obj, "status", "lastSeen")
            recent = last_seen is not None and self.now - parse_time(last_seen) < RECENT_CONTACT
            return "which seems to be running" if recent else "but none seems to be running: see its Deployment"
        except KubeError as error:
            return f"whose state is unknown: {error}"
        renewed, seconds = value_at(lease, "spec", "renewTime"), value_at(lease, "spec", "leaseDurationSeconds")
        holder = value_at(lease, "spec", "holderIdentity")
        if holder and renewed and self.now - parse_time(renewed) < timedelta(seconds=seconds or 0):
            return f"which is running as {holder}"
        return f"but {where} has no holder: see its Deployment"


def repair_result(binding: Binding, finding: Finding, *, fixed: bool, syncer_state: str) -> RepairResult:
    return RepairResult(
        binding=binding.name,
        invariant=finding.invariant,
        side=finding.side,
        resource=finding.resource.plural,
        key=finding.key,
        message=finding.message,
        fixed=fixed,
        remedy="" if fixed else remedy_text(finding, syncer_state),
    )


def remedy_text(finding: Finding, syncer_state: str) -> str:
    if finding.obj is not None:
        return "`tapestry repair` without --dry-run, repeated if there are many"
    return f"the syncer of the binding, {syncer_state}"
