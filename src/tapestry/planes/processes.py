"""The processes of a group: each renews one Lease in the management API, and one of them takes each unheld plane.

The clocks of two machines are never compared: a process is live while its Lease changes, as measured with the clock of
the observer.
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.controller import Informer, Manager
from tapestry.controller.config import LeaderElection
from tapestry.controller.leader import Elector, holder_of
from tapestry.kube.objects import Object, name_of, value_at, version_of
from tapestry.kube.resources import LEASES

LEASE_PREFIX = "planes-"
"""Prefix of the names of the processes' Leases."""
NAMED_ONLY = "_named-only"
"""End of the holder in the Lease of a process that takes only planes whose records name it."""


def process_lease(process: str) -> LeaderElection:
    """Return the election of a process: for its own Lease, so it fails only if another process has the same name."""
    return LeaderElection(enabled=True, namespace=SYSTEM_NAMESPACE, name=f"{LEASE_PREFIX}{process}")


def candidate_for(plane_id: str, processes: Iterable[str]) -> str | None:
    """Return the process that takes a plane that no process holds; None if there are no processes.

    The choice is by rendezvous hashing: it is the same in all processes that observe the same ones, and when a process
    joins or leaves, it changes only for planes that this process gets or had.
    """

    def weight(process: str) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{process}/{plane_id}".encode(), digest_size=8).digest(), process

    return max(processes, key=weight, default=None)


@dataclass(frozen=True)
class ObservedLease:
    version: str
    since: float
    """Monotonic time at which this version was observed first."""
    seconds: float
    """Time without a change after which its holder is considered dead."""
    holder: str
    """Identity of the process, which it keeps when it restarts."""

    @property
    def is_named_only(self) -> bool:
        return self.holder.endswith(NAMED_ONLY)


@dataclass
class Processes:
    """The live processes, as this one observes them."""

    own_name: str
    elector: Elector | None
    """Renew the Lease of this process. None if it is alone, with a management API of its own."""
    monotonic: Callable[[], float] = time.monotonic
    is_named_only: bool = False
    """Take only planes whose records name this process."""
    _observed: dict[str, ObservedLease] = field(default_factory=dict)

    def holds_lease(self) -> bool:
        """Return whether no other process can consider this one dead. If not, it must not write."""
        return self.elector is None or self.elector.is_leading

    def observe(self, old: Object | None, new: Object | None) -> None:
        """Record a change of a Lease."""
        lease = new or old
        assert lease is not None
        name = name_of(lease).removeprefix(LEASE_PREFIX)
        if new is None or not holder_of(new):
            self._observed.pop(name, None)
        elif (known := self._observed.get(name)) is None or known.version != version_of(new):
            seconds = float(value_at(new, "spec", "leaseDurationSeconds", default=0))
            self._observed[name] = ObservedLease(version_of(new), self.monotonic(), seconds, holder_of(new))

    def is_live(self, name: str) -> bool:
        """Return whether a process may still hold planes."""
        if name == self.own_name:
            return self.holds_lease()
        lease = self._observed.get(name)
        return lease is not None and self.monotonic() < lease.since + lease.seconds

    def live_names(self) -> frozenset[str]:
        """Return the names of all live processes."""
        return frozenset(filter(self.is_live, {*self._observed, self.own_name}))

    def live(self) -> set[str]:
        """Return the names of all live processes that take planes whose records name none."""
        others = {name for name, lease in self._observed.items() if self.is_live(name) and not lease.is_named_only}
        own = {self.own_name} if self.holds_lease() and not self.is_named_only else set()
        return others - {self.own_name} | own

    def is_candidate(self, plane_id: str) -> bool:
        """Return whether this process is to take a plane that no process holds."""
        return candidate_for(plane_id, self.live()) == self.own_name

    def identity_of(self, name: str) -> str:
        """Return the identity of another live process; empty if it is not live."""
        lease = self._observed.get(name)
        return lease.holder if lease is not None and self.is_live(name) else ""

    def seconds_until_expiry(self, plane_id: str) -> float | None:
        """Return the seconds until the candidate for a plane is considered dead, unless it renews its Lease."""
        return self.seconds_until_dead(candidate_for(plane_id, self.live()) or "")

    def seconds_until_dead(self, name: str) -> float | None:
        """Return the seconds until another process is considered dead, unless it renews its Lease."""
        lease = self._observed.get(name)
        return max(0.0, lease.since + lease.seconds - self.monotonic()) if lease is not None else None


def is_process_lease(lease: Object) -> bool:
    return name_of(lease).startswith(LEASE_PREFIX)


def is_holder_changed(old: Object | None, new: Object | None) -> bool:
    """Return whether a process has joined or left. Renewals of a Lease are frequent and change neither."""
    return (holder_of(old) if old else "") != (holder_of(new) if new else "")


def process_leases(manager: Manager) -> Informer:
    """Return the informer of the Leases of all processes."""
    return manager.informer(LEASES, namespace=SYSTEM_NAMESPACE, keep=is_process_lease)
