"""Reclaim decisions: which pods leave, how, and not before the deadline."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.kube.objects import Object, name_of
from tapestry.kube.pod_requests import effective_requests
from tapestry.kube.quantity import ResourceList
from tapestry.syncer.leasing import NO_DEADLINE, Lease, LeaseState, ReclaimTerms
from tapestry.syncer.reclaim import EVICTION_INTERVAL, Reclaim, excess_pods, reclaim_for

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def new_pod(name: str = "p", cpu: str = "1", priority: int | None = None, created: int = 0, **rest: Any) -> Object:
    """Return a pod with so much CPU, created so many minutes after midnight."""
    metadata = {"name": name, "namespace": "default", "creationTimestamp": f"2026-03-02T00:{created:02}:00Z"}
    spec: Object = {
        "nodeName": "v",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        **({} if priority is None else {"priority": priority}),
    }
    return {"metadata": {**metadata, **rest.get("metadata", {})}, "spec": spec, "status": rest.get("status", {})}


def closed(deadline: datetime | None = None, evict: bool = False, **more: Any) -> Lease:
    return Lease(LeaseState.CLOSED, "OutOfTimeWindows", terms=ReclaimTerms(deadline, evict, by="operator/p"), **more)


def excess(cpu: str, deadline: datetime | None = NOW, evict: bool = False) -> tuple[ResourceList, ReclaimTerms]:
    return ResourceList.parse({"cpu": cpu}), ReclaimTerms(deadline, evict, by="operator/night")


def new_open(*trim: Any) -> Lease:
    return Lease(LeaseState.OPEN, "Leased", excess=excess(*trim) if trim else None)


def names(pods: tuple[Object, ...]) -> list[str]:
    return [name_of(pod) for pod in pods]


# -- closed nodes


def test_nothing_is_deleted_before_the_deadline() -> None:
    found = reclaim_for(closed(NOW + SECOND), [new_pod()], NOW)
    assert (found.delete, found.evict, found.requeue_at) == ((), (), NOW + SECOND)


def test_all_pods_are_deleted_at_the_deadline() -> None:
    pods = [new_pod("a", priority=1000), new_pod("b")]
    found = reclaim_for(closed(NOW), pods, NOW)
    assert (names(found.delete), found.evict, found.requeue_at) == (["a", "b"], (), None)
    assert found.terms.by == "operator/p"


def test_missed_deadline_still_counts() -> None:
    assert names(reclaim_for(closed(NOW - timedelta(days=1)), [new_pod()], NOW).delete) == ["p"]


def test_evictions_are_retried_during_grace() -> None:
    found = reclaim_for(closed(NOW + timedelta(minutes=5), evict=True), [new_pod()], NOW)
    assert (names(found.evict), found.delete, found.requeue_at) == (["p"], (), NOW + EVICTION_INTERVAL)


def test_evictions_do_not_delay_the_deadline() -> None:
    assert reclaim_for(closed(NOW + SECOND, evict=True), [new_pod()], NOW).requeue_at == NOW + SECOND
    assert names(reclaim_for(closed(NOW, evict=True), [new_pod()], NOW).delete) == ["p"]


def test_pods_finish_without_a_deadline() -> None:
    assert reclaim_for(closed(), [new_pod()], NOW) == Reclaim(terms=ReclaimTerms(by="operator/p"))


def test_empty_node_needs_no_recheck() -> None:
    assert reclaim_for(closed(NOW + SECOND), [], NOW).requeue_at is None


@pytest.mark.parametrize(
    "pod",
    [
        new_pod(status={"phase": "Succeeded"}),
        new_pod(status={"phase": "Failed"}),
        new_pod(metadata={"deletionTimestamp": "2026-03-02T07:59:00Z"}),
    ],
)
def test_ended_and_ending_pods_are_not_reclaimed(pod: Object) -> None:
    assert reclaim_for(closed(NOW), [pod], NOW).delete == ()
    assert reclaim_for(closed(NOW + SECOND, evict=True), [pod], NOW).evict == ()
    assert reclaim_for(new_open("0"), [pod], NOW).delete == ()


def test_withdrawn_node_uses_the_terms_of_its_lease() -> None:
    killed = Lease(LeaseState.WITHDRAWN, "NoPolicy", terms=ReclaimTerms(NOW, by="the owner's kill switch"))
    assert names(reclaim_for(killed, [new_pod()], NOW).delete) == ["p"]
    assert reclaim_for(Lease(LeaseState.WITHDRAWN, "NoPolicy"), [new_pod()], NOW) == Reclaim(terms=NO_DEADLINE)


# -- reduced leases


def test_open_node_reclaims_nothing() -> None:
    assert reclaim_for(new_open(), [new_pod()], NOW) == Reclaim()


def test_lowest_priority_is_reclaimed_first() -> None:
    pods = [new_pod("low", priority=-10), new_pod("high", priority=10), new_pod("none")]
    assert names(reclaim_for(new_open("2"), pods, NOW).delete) == ["low"]
    assert names(reclaim_for(new_open("1"), pods, NOW).delete) == ["none", "low"]


def test_newest_of_equal_priority_is_reclaimed_first() -> None:
    pods = [new_pod("b", created=20), new_pod("c", created=30), new_pod("a", created=10)]
    assert names(reclaim_for(new_open("2"), pods, NOW).delete) == ["c"]
    assert names(reclaim_for(new_open("1"), pods, NOW).delete) == ["b", "c"]


def test_priority_precedes_age() -> None:
    pods = [new_pod("old", priority=0, created=10), new_pod("new", priority=1, created=50)]
    assert names(reclaim_for(new_open("1"), pods, NOW).delete) == ["old"]


def test_pod_that_fits_beside_the_rest_stays() -> None:
    pods = [new_pod("large", cpu="4", priority=5), new_pod("small", cpu="1", priority=0)]
    assert names(reclaim_for(new_open("2"), pods, NOW).delete) == ["large"]


def test_only_reduced_resources_count() -> None:
    pod = new_pod()
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "64Gi"
    assert reclaim_for(new_open("1"), [pod], NOW).delete == ()


def test_excess_pods_have_grace_and_evictions() -> None:
    found = reclaim_for(new_open("1", NOW + SECOND), [new_pod("a"), new_pod("b", created=1)], NOW)
    assert (found.delete, found.evict, found.requeue_at) == ((), (), NOW + SECOND)
    found = reclaim_for(new_open("1", NOW + SECOND, True), [new_pod("a"), new_pod("b", created=1)], NOW)
    assert (found.delete, names(found.evict)) == ((), ["b"])


def test_excess_on_closed_node_has_its_own_deadline() -> None:
    pods = [new_pod("a"), new_pod("b", created=1)]
    gentle = closed(excess=excess("1", NOW + SECOND))
    waiting = reclaim_for(gentle, pods, NOW)
    assert (waiting.delete, waiting.evict, waiting.requeue_at) == ((), (), NOW + SECOND)
    due = reclaim_for(closed(excess=excess("1")), pods, NOW)
    assert (names(due.delete), due.terms.by) == (["b"], "operator/night")
    partly = reclaim_for(closed(NOW + timedelta(hours=1), evict=True, excess=excess("1")), pods, NOW)
    assert (names(partly.delete), names(partly.evict), partly.requeue_at) == (["b"], ["a"], NOW + EVICTION_INTERVAL)
    all_pods = reclaim_for(closed(NOW, excess=excess("1", NOW + SECOND)), pods, NOW)
    assert (names(all_pods.delete), all_pods.terms.by) == (["a", "b"], "operator/p")


pods = st.lists(
    st.builds(
        lambda cpu, priority, made: (cpu, priority, made), st.integers(0, 4), st.integers(-2, 2), st.integers(0, 59)
    ),
    max_size=8,
).map(lambda rows: [new_pod(f"p{at}", str(cpu), priority, made) for at, (cpu, priority, made) in enumerate(rows)])


@given(pods, st.integers(0, 12))
def test_remaining_pods_fit_and_no_reclaim_is_needless(found: list[Object], cpu: int) -> None:
    left = ResourceList.parse({"cpu": str(cpu)})
    out = excess_pods(found, left)
    stay = [pod for pod in found if pod not in out]
    held = sum(map(effective_requests, stay), ResourceList())["cpu"]
    assert held <= left["cpu"]
    assert all(held + effective_requests(pod)["cpu"] > left["cpu"] for pod in out)
