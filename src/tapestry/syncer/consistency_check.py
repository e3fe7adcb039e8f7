"""Periodic consistency check of a syncer: reports and repairs what two checks in a row find.

A finding that a controller is responsible for is requeued there at once. No controller would ever see the others:
objects with our labels under a name that we never gave, or twins that lost their identifying metadata. Those are
deleted or repaired after two checks found them and a live read of both clusters confirms it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.ownership import capped_grace_seconds
from tapestry.client.client import Client
from tapestry.controller import Controller, Result
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer.caches import Caches
from tapestry.syncer.clients import Clients
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.syncer.identity import Identity
from tapestry.syncer.metrics import FINDINGS, REPAIRED
from tapestry.syncer.partition import Partition
from tapestry.syncer.repair import ClusterSide, Finding, Invariant, Snapshot, findings
from tapestry.syncer.snapshots import SnapshotCaches, cached_snapshot, live_snapshot

log = logger(__name__)

MAX_REPAIRS = 50
"""Maximum number of objects that one check changes or deletes."""
MAX_LOGGED = 10


@dataclass
class ConsistencyCheck:
    """Check the binding of a syncer; keyed by its name."""

    identity: Identity
    current_binding: CurrentBinding
    caches: Caches
    clients: Clients
    partition: Partition
    now: Callable[[], datetime]
    controllers: Sequence[Controller]
    interval: float
    """Seconds between two checks."""
    snapshot_caches: SnapshotCaches
    previous_findings: frozenset[Finding] = frozenset()
    """Findings of the last check."""

    async def reconcile(self, _: str) -> Result:
        requeue = Result(requeue_after=self.interval)
        snapshot = await self.take_snapshot()
        if snapshot is None:
            return requeue
        current = findings(snapshot)
        self.requeue_findings(current)
        confirmed = [each for each in current if each in self.previous_findings]
        self.report(confirmed)
        await self.repair_findings([each for each in confirmed if each.requeue is None], snapshot.binding)
        self.previous_findings = frozenset(current)  # only now: an interrupted check does not count
        return requeue

    async def take_snapshot(self) -> Snapshot | None:
        """Return a snapshot of the caches; None while they may be outdated or the binding is being deleted."""
        if self.current_binding.is_unbinding or self.partition.since is not None:
            return None
        try:
            binding = self.current_binding.get()
        except InvalidSpec:
            return None
        if binding is None:
            return None
        reads, now = self.clients.virtual_reads, self.now()
        return await cached_snapshot(self.caches, self.snapshot_caches, reads, binding, now)

    def requeue_findings(self, found: Iterable[Finding]) -> None:
        """Requeue the findings that a controller is responsible for."""
        queues = {controller.name: controller.queue for controller in self.controllers}
        for each in found:
            if each.requeue is not None:
                queues[each.requeue.controller].add(each.requeue.key)

    def report(self, found: Sequence[Finding]) -> None:
        counts = Counter(each.invariant for each in found)
        for invariant in Invariant:
            FINDINGS.labels(self.identity.binding_name, invariant).set(counts[invariant])
        for each in found[:MAX_LOGGED]:
            fields = {"side": each.side, "what": f"{each.resource.plural} {each.key}", "why": each.message}
            log.warning("consistency check: invariant violated", invariant=each.invariant, **fields)

    async def repair_findings(self, found: Sequence[Finding], binding: Binding) -> None:
        """Repair findings that no controller is responsible for, if a live read confirms them."""
        if not found:
            return
        live = findings(await live_snapshot(self.clients.virtual, self.clients.physical, binding, self.now()))
        for each in [each for each in live if each in found][:MAX_REPAIRS]:
            if await repair_finding(each, binding, self.clients.virtual, self.clients.physical):
                REPAIRED.labels(self.identity.binding_name, each.invariant).inc()


async def repair_finding(finding: Finding, binding: Binding, virtual: Client, physical: Client) -> bool:
    """Delete or patch the object of a finding; return whether that was done.

    In the physical cluster only objects that are provably ours are changed. What has changed is left to the next check.
    """
    obj, client = finding.obj, physical if finding.side is ClusterSide.PHYSICAL else virtual
    if obj is None or (client is physical and not binding.owns(obj)):
        return False
    what = f"{finding.resource.plural} {finding.key}"
    log.info("consistency check: repairing object", invariant=finding.invariant, what=what, why=finding.message)
    try:
        if finding.patch is not None:
            await client.patch(finding.resource, obj, finding.patch)
        else:
            grace = capped_grace_seconds(obj) if finding.resource is PODS else None
            await client.delete(finding.resource, obj, grace_seconds=grace)
    except (NotFound, Conflict):
        return False
    return True
