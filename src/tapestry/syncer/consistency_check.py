"""The periodic check of a syncer: what it finds twice is counted, and mended.

Whatever is some controller's business is put before that controller, at once.  The rest nobody else would ever look at:
objects with our labels under a name that we never gave, or twins that lost the marks by which they are known.  Those
are removed, or set right, after two checks that found them and a look at both clusters, past all caches, that does too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.ownership import capped_grace_seconds
from tapestry.client.client import Client
from tapestry.controller import Result
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer.context import SyncContext
from tapestry.syncer.metrics import FINDINGS, REPAIRED
from tapestry.syncer.repair import ClusterSide, Finding, Invariant, Snapshot, findings
from tapestry.syncer.snapshots import SnapshotCaches, cached_snapshot, live_snapshot

log = logger(__name__)

MAX_REPAIRS = 50
"""How many objects one check changes or removes, whatever it found."""
MAX_LOGGED = 10


@dataclass
class ConsistencyCheck:
    """Checks the one binding of a site; keyed by its name."""

    context: SyncContext
    caches: SnapshotCaches
    previous_findings: frozenset[Finding] = frozenset()
    """What the last check found."""

    async def reconcile(self, _: str) -> Result:
        again = Result(requeue_after=self.context.config.check_seconds)
        picture = await self.take_snapshot()
        if picture is None:
            return again
        found = findings(picture)
        self.requeue_findings(found)
        twice = [each for each in found if each in self.previous_findings]
        self.report(twice)
        await self.repair_findings([each for each in twice if each.requeue is None], picture.binding)
        self.previous_findings = frozenset(found)  # not before: a check that was cut short has seen nothing
        return again

    async def take_snapshot(self) -> Snapshot | None:
        """What the caches show; None while they may be behind, or everything is about to go anyway."""
        context = self.context
        if context.is_unbinding or context.partition.since is not None:
            return None
        try:
            binding = context.binding()
        except InvalidSpec:
            return None
        return await cached_snapshot(context, self.caches, binding) if binding is not None else None

    def requeue_findings(self, found: Iterable[Finding]) -> None:
        """Have the controllers look at what is their business."""
        queues = {controller.name: controller.queue for controller in self.context.manager.controllers}
        for each in found:
            if each.requeue is not None:
                queues[each.requeue.controller].add(each.requeue.key)

    def report(self, found: Sequence[Finding]) -> None:
        counts = Counter(each.invariant for each in found)
        for invariant in Invariant:
            FINDINGS.labels(self.context.binding_name, invariant).set(counts[invariant])
        for each in found[:MAX_LOGGED]:
            what = f"{each.resource.plural} {each.key}"
            log.warning("not as it should be", invariant=each.invariant, side=each.side, what=what, why=each.message)

    async def repair_findings(self, found: Sequence[Finding], binding: Binding) -> None:
        """See to what is nobody's business, as far as it is still so."""
        if not found:
            return
        context = self.context
        live = findings(await live_snapshot(context.virtual_client, context.physical_client, binding, context.now()))
        for each in [each for each in live if each in found][:MAX_REPAIRS]:
            if await repair_finding(each, binding, context.virtual_client, context.physical_client):
                REPAIRED.labels(context.binding_name, each.invariant).inc()


async def repair_finding(finding: Finding, binding: Binding, virtual: Client, physical: Client) -> bool:
    """Remove what a finding is about, or set it right, as it was seen; whether that was done.

    Below nothing is touched that is not provably ours.  What changed since it was seen is for the next look.
    """
    obj, client = finding.obj, physical if finding.side is ClusterSide.PHYSICAL else virtual
    if obj is None or (client is physical and not binding.owns(obj)):
        return False
    log.info("mends", invariant=finding.invariant, what=f"{finding.resource.plural} {finding.key}", why=finding.message)
    try:
        if finding.patch is not None:
            await client.patch(finding.resource, obj, finding.patch)
        else:
            grace = capped_grace_seconds(obj) if finding.resource is PODS else None
            await client.delete(finding.resource, obj, grace_seconds=grace)
    except (NotFound, Conflict):
        return False
    return True
