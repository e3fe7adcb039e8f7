"""The use of projects and of host clusters as the next writer of the management API sees it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tapestry.apis.operations import SNAPSHOTS
from tapestry.apis.projects import QUOTAS
from tapestry.apis.vclusters import VCLUSTERS
from tapestry.apiserver.core.store import Key, ObjectVersion, Store
from tapestry.kube.objects import Object
from tapestry.vclusters.errors import Violation
from tapestry.vclusters.placement import Demand, demand_of
from tapestry.vclusters.quota import (
    Charge,
    pending_snapshots,
    snapshot_charge,
    vcluster_charge,
    violations,
    with_pending,
)

NOTHING: frozenset[str] = frozenset()


class Known(NamedTuple):
    """Use of quotas and host clusters by one version of an object."""

    revision: int
    charge: Charge
    pending: frozenset[str]
    """Names of the snapshots that its operations make."""
    demand: Demand | None
    """Use of a host cluster, if it is a virtual cluster."""


@dataclass(frozen=True)
class ProjectUsage:
    """Use of quotas by projects, and of host clusters by their virtual clusters."""

    store: Store
    _known: dict[Key, Known] = field(default_factory=dict)
    """Use by objects whose versions have been read already."""

    def exceeded(self, key: Key, old: Object | None, new: Object) -> list[Violation]:
        """Return the limits that a write of a virtual cluster or of a snapshot exceeds."""
        project = new["spec"]["project"]
        quotas = [each for each in self._quotas() if each["spec"]["project"] == project]
        if not quotas:
            return []
        vclusters, snapshots = self.store.heads(VCLUSTERS.name), self.store.heads(SNAPSHOTS.name)
        if len(self._known) > 2 * (len(vclusters) + len(snapshots)) + 100:
            self._known.clear()  # of objects that are gone
        stored = {each.key.name for each in snapshots}
        others = [self.known(each) for each in (*vclusters, *snapshots) if each.key != key]
        charges = [with_pending(each.charge, each.pending, stored) for each in others]
        before, after = (
            with_pending(*charge_and_pending(key, each), stored) if each is not None else None for each in (old, new)
        )
        assert after is not None
        return [each for quota in quotas for each in violations(quota, charges, before, after)]

    def known(self, version: ObjectVersion) -> Known:
        found = self._known.get(version.key)
        if found is None or found.revision != version.revision:
            obj = msgspec.json.decode(version.raw)
            charged = charge_and_pending(version.key, obj)
            demand = demand_of(obj) if version.key.resource == VCLUSTERS.name else None
            found = self._known[version.key] = Known(version.revision, *charged, demand)
        return found

    def demands(self, *, besides: Key) -> list[Demand]:
        """Return what the virtual clusters use of host clusters, without one of them."""
        known = (self.known(each).demand for each in self.store.heads(VCLUSTERS.name) if each.key != besides)
        return [each for each in known if each is not None]

    def _quotas(self) -> list[Object]:
        return [msgspec.json.decode(each.raw) for each in self.store.heads(QUOTAS.name)]


def charge_and_pending(key: Key, obj: Object) -> tuple[Charge, frozenset[str]]:
    if key.resource == SNAPSHOTS.name:
        return snapshot_charge(obj), NOTHING
    return vcluster_charge(obj), pending_snapshots(obj)
