"""The periodic check of a syncer: what it finds twice is counted, and mended.

Whatever is some controller's business is put before that controller, at once.  The rest nobody else would ever look at:
objects with our labels under a name that we never gave, or twins that lost the marks by which they are known.  Those
are removed, or set right, after two checks that found them and a look at both clusters, past all caches, that does too.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tapestry.apis.belongings import grace_of
from tapestry.apis.clusterbindings import Binding
from tapestry.client.client import Client
from tapestry.controller import Result
from tapestry.kube.crds import InvalidSpec
from tapestry.kube.errors import Conflict, NotFound
from tapestry.kube.resources import PODS
from tapestry.process.logs import logger
from tapestry.syncer.metrics import FINDINGS, MENDED
from tapestry.syncer.pictures import Caches, cached_picture, live_picture
from tapestry.syncer.repair import Finding, Invariant, Picture, Side, findings
from tapestry.syncer.site import Site

log = logger(__name__)

MOST_AT_ONCE = 50
"""How many objects one check changes or removes, whatever it found."""
MOST_TOLD = 10


@dataclass
class Checks:
    """Checks the one binding of a site; keyed by its name."""

    site: Site
    caches: Caches
    seen: frozenset[Finding] = frozenset()
    """What the last check found."""

    async def reconcile(self, _: str) -> Result:
        again = Result(requeue_after=self.site.config.check_seconds)
        picture = await self.picture()
        if picture is None:
            return again
        found = findings(picture)
        self.ask(found)
        twice = [each for each in found if each in self.seen]
        self.tell(twice)
        await self.mend([each for each in twice if each.ask is None], picture.binding)
        self.seen = frozenset(found)  # not before: a check that was cut short has seen nothing
        return again

    async def picture(self) -> Picture | None:
        """What the caches show; None while they may be behind, or everything is about to go anyway."""
        site = self.site
        if site.is_unbinding or site.partition.since is not None:
            return None
        try:
            binding = site.binding()
        except InvalidSpec:
            return None
        return await cached_picture(site, self.caches, binding) if binding is not None else None

    def ask(self, found: Iterable[Finding]) -> None:
        """Have the controllers look at what is their business."""
        queues = {controller.name: controller.queue for controller in self.site.manager.controllers}
        for each in found:
            if each.ask is not None:
                queues[each.ask.controller].add(each.ask.key)

    def tell(self, found: Sequence[Finding]) -> None:
        counts = Counter(each.invariant for each in found)
        for invariant in Invariant:
            FINDINGS.labels(self.site.binding_name, invariant).set(counts[invariant])
        for each in found[:MOST_TOLD]:
            what = f"{each.resource.plural} {each.key}"
            log.warning("not as it should be", invariant=each.invariant, side=each.side, what=what, why=each.message)

    async def mend(self, found: Sequence[Finding], binding: Binding) -> None:
        """See to what is nobody's business, as far as it is still so."""
        if not found:
            return
        site = self.site
        live = findings(await live_picture(site.virtual, site.physical, binding, site.now()))
        for each in [each for each in live if each in found][:MOST_AT_ONCE]:
            if await mend(each, binding, site.virtual, site.physical):
                MENDED.labels(site.binding_name, each.invariant).inc()


async def mend(finding: Finding, binding: Binding, virtual: Client, physical: Client) -> bool:
    """Remove what a finding is about, or set it right, as it was seen; whether that was done.

    Below nothing is touched that is not provably ours.  What changed since it was seen is for the next look.
    """
    obj, client = finding.obj, physical if finding.side is Side.PHYSICAL else virtual
    if obj is None or (client is physical and not binding.owns(obj)):
        return False
    log.info("mends", invariant=finding.invariant, what=f"{finding.resource.plural} {finding.key}", why=finding.message)
    try:
        if finding.patch is not None:
            await client.patch(finding.resource, obj, finding.patch)
        else:
            grace = grace_of(obj) if finding.resource is PODS else None
            await client.delete(finding.resource, obj, grace_seconds=grace)
    except (NotFound, Conflict):
        return False
    return True
