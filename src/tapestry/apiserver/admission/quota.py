"""Quotas: a namespace gets no more than its ResourceQuotas say.

What is to be made is charged to their status before it is stored, each time on top of the newest version there is: of
two writers at the same moment, one sees what the other was charged.  A write that fails after all has been charged for
nothing, until a controller has counted again (`tapestry.controlplane.quota`).  For the same reason this is the last
step: once it is through, the object follows at once.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec

from tapestry.apiserver import refusals
from tapestry.apiserver.admission.plain import refused
from tapestry.apiserver.rows import Row
from tapestry.apiserver.storage.log import Key
from tapestry.apiserver.storage.store import Stale, Store, Version
from tapestry.apiserver.verbs import Request, making
from tapestry.kube.objects import Object, name_of, value_at, with_value
from tapestry.kube.quantity import Amounts
from tapestry.kube.usage import UNCOUNTED, computed, counted, in_scopes, is_terminating, stated, usage

QUOTAS = "resourcequotas"
DEMANDED = frozenset(
    {"cpu", "memory", *(f"{kind}.{each}" for kind in ("requests", "limits") for each in ("cpu", "memory"))}
)
"""What every container has to state where a quota limits it."""
TRIES = 100
"""How often a charge begins again: where the store cannot line up writes to one object, one of many wins each time."""


@dataclass(frozen=True)
class Quotas:
    """A step: charges what a write adds, or refuses it."""

    store: Store
    row: Row
    """That of the quotas."""
    now: Callable[[], datetime]

    async def __call__(self, request: Request, old: Object | None, new: Object | None) -> Object:
        if new is None:
            return old or {}
        if request.target.namespace and self.store.count(QUOTAS) and self.is_charged(request, old, new):
            await self.charge(request, old, new)
        return new

    def is_charged(self, request: Request, old: Object | None, new: Object) -> bool:
        """Whether this kind of write can change what is used at all."""
        target = request.target
        resource = target.row.storage
        if request.verb == "create":
            known = self.store.head(resource, target.namespace, name_of(new))
            return not target.subresource and resource not in UNCOUNTED and known is None
        if old is None:
            return False
        match resource, target.subresource:
            case "pods", "":
                return is_terminating(old) != is_terminating(new)
            case ("pods", "resize") | ("services", "") | ("persistentvolumeclaims", "" | "status"):
                return True
        return False

    async def charge(self, request: Request, old: Object | None, new: Object) -> None:
        def charged(head: Version | None) -> Object | None:
            return self.charged(request, msgspec.json.decode(head.raw), old, new) if head is not None else None

        keys = [version.key for version in self.store.every(QUOTAS, request.target.namespace)]
        due = [key for key in keys if charged(self.store.head(*key)) is not None]  # all agree before one is changed
        for key in due if not request.is_dry else ():
            await self.put(key, charged)

    async def put(self, key: Key, charged: Callable[[Version | None], Object | None]) -> None:
        """Store what is charged, counted again: the quota may have changed while another one was written."""
        for _ in range(TRIES):
            head = self.store.head(*key)
            quota = charged(head)
            if quota is None:
                return
            with suppress(Stale):
                await self.store.put(key, head, making(self.row, quota))
                return
        raise refusals.conflict(self.row.resource, key.name, refusals.MODIFIED)

    def charged(self, request: Request, quota: Object, old: Object | None, new: Object) -> Object | None:
        """The quota with what the write adds to it; None where that is nothing.  Raises Forbidden."""
        resource = request.target.row.storage
        hard, used = (Amounts.parse(value_at(quota, "status", field)) for field in ("hard", "used"))
        limited = counted(resource, hard)
        if not limited or not in_scopes(resource, quota, new):
            return None
        if resource == "pods" and (missing := unstated(new, DEMANDED.intersection(limited))):
            raise refused(request, f"failed quota: {name_of(quota)}: must specify {missing}")
        if not used.keys() >= set(limited):
            names = ",".join(sorted(limited))
            raise refused(request, f"status unknown for quota: {name_of(quota)}, resources: {names}")
        added = self.added(resource, quota, old, new, limited)
        if not added:
            return None
        over = sorted(name for name in added if used[name] + added[name] > hard[name])
        if over and request.target.subresource != "status":
            asked, had, most = (shown(amounts, over) for amounts in (added, used, hard))
            why = f"exceeded quota: {name_of(quota)}, requested: {asked}, used: {had}, limited: {most}"
            raise refused(request, why)
        return with_value(quota, ("status", "used"), (used + added).texts())

    def added(self, resource: str, quota: Object, old: Object | None, new: Object, names: list[str]) -> Amounts:
        """What the write adds to what is used, of these names: an object that grew adds what it grew by."""
        after = usage(resource, new, self.now())
        before = Amounts()
        if old is not None and in_scopes(resource, quota, old):
            before = usage(resource, old, self.now())
        more = (after - before).at_least_zero()
        return Amounts({name: more[name] for name in names if more[name]})


def unstated(pod: Object, names: frozenset[str]) -> str:
    """What containers do not say of these names: `limits.cpu for: c,d; requests.memory for: c`."""
    spec = pod["spec"]
    if value_at(spec, "resources", "requests") or value_at(spec, "resources", "limits"):
        return ""
    missing: dict[str, set[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for name in names - computed(stated(container, "requests"), stated(container, "limits")).keys():
            missing.setdefault(name, set()).add(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


def shown(amounts: Amounts, names: list[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)
