"""Reclaim: which pods of a virtual node leave, how, and when to look again.

Until the deadline of its terms a pod may finish; with `evict` it is asked to go, as disruption budgets allow.  At the
deadline it goes, whatever it tolerates.  A pod that is being deleted already is deleted again, unless it has no more
time than that.  Without a deadline nobody is made to go.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tapestry.apis.belongings import leaves_in_time
from tapestry.kube.objects import Object, is_deleting, key_of, value_at
from tapestry.kube.quantity import ZERO, Amounts
from tapestry.kube.requests import effective_requests, holds_its_node
from tapestry.syncer.leasing import FINISH, Lease, State, Terms, soonest

EVICTION_PAUSE = timedelta(seconds=10)
"""Between two tries to evict what a disruption budget holds back."""


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What to do now."""

    delete: tuple[Object, ...] = ()
    evict: tuple[Object, ...] = ()
    terms: Terms = FINISH
    look_again: datetime | None = None
    is_total: bool = False
    """Whether nothing of ours may stay on the node."""


def reclaim_of(lease: Lease, pods: Iterable[Object], now: datetime) -> Reclaim:
    """Who leaves a node with that lease now: everybody if it is not open, and those it has no room for any more."""
    staying = [pod for pod in pods if holds_its_node(pod)]
    everybody = leaving(staying, lease.terms, now) if lease.state is not State.OPEN else Reclaim()
    if everybody.is_total or lease.trimming is None:
        return everybody
    amounts, terms = lease.trimming
    some = leaving(beyond(staying, amounts), terms, now)
    return Reclaim(
        delete=some.delete,
        evict=tuple(pod for pod in everybody.evict or some.evict if pod not in some.delete),
        terms=terms,
        look_again=soonest(everybody.look_again, some.look_again),
    )


def leaving(pods: list[Object], terms: Terms, now: datetime) -> Reclaim:
    """All of `pods`, on these terms."""
    if terms.deadline is not None and terms.deadline <= now:
        return Reclaim(delete=tuple(pod for pod in pods if not leaves_in_time(pod)), terms=terms, is_total=True)
    evictable = tuple(pod for pod in pods if not is_deleting(pod))
    if terms.evict and evictable:
        return Reclaim(evict=evictable, terms=terms, look_again=soonest(terms.deadline, now + EVICTION_PAUSE))
    return Reclaim(terms=terms, look_again=terms.deadline if pods else None)


def beyond(pods: list[Object], amounts: Amounts) -> list[Object]:
    """The pods for which there is no room in `amounts`: those of the lowest priority, of these the newest, first.

    A pod is spared where it fits into what is left by one that goes, as when a scheduler preempts.
    """
    left, out = amounts, []
    for pod in sorted(pods, key=precedence):
        requests = effective_requests(pod)
        rest = left - requests
        if any(rest[resource] < ZERO for resource in requests if resource in amounts):
            out.append(pod)
        else:
            left = rest
    return out


def precedence(pod: Object) -> tuple[bool, int, str, str]:
    """Who stays longest comes first; who is being deleted comes last."""
    made = pod["metadata"].get("creationTimestamp", "")
    return is_deleting(pod), -value_at(pod, "spec", "priority", default=0), made, key_of(pod)
