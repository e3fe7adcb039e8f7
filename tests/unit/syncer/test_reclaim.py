"""Reclaim: who leaves, how, and not before the time."""

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


def a_pod(name: str = "p", cpu: str = "1", priority: int | None = None, made: int = 0, **rest: Any) -> Object:
    """A pod of so much cpu, made so many minutes after midnight."""
    metadata = {"name": name, "namespace": "default", "creationTimestamp": f"2026-03-02T00:{made:02}:00Z"}
    spec: Object = {
        "nodeName": "v",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        **({} if priority is None else {"priority": priority}),
    }
    return {"metadata": {**metadata, **rest.get("metadata", {})}, "spec": spec, "status": rest.get("status", {})}


def closed(deadline: datetime | None = None, evict: bool = False, **more: Any) -> Lease:
    return Lease(LeaseState.CLOSED, "OutOfTimeWindows", terms=ReclaimTerms(deadline, evict, by="operator/p"), **more)


def trimming(cpu: str, deadline: datetime | None = NOW, evict: bool = False) -> tuple[ResourceList, ReclaimTerms]:
    return ResourceList.parse({"cpu": cpu}), ReclaimTerms(deadline, evict, by="operator/night")


def an_open(*trim: Any) -> Lease:
    return Lease(LeaseState.OPEN, "Leased", excess=trimming(*trim) if trim else None)


def names(pods: tuple[Object, ...]) -> list[str]:
    return [name_of(pod) for pod in pods]


# -- a node that has closed


def test_nothing_is_deleted_before_the_deadline() -> None:
    found = reclaim_for(closed(NOW + SECOND), [a_pod()], NOW)
    assert (found.delete, found.evict, found.requeue_at) == ((), (), NOW + SECOND)


def test_at_the_deadline_everybody_goes() -> None:
    pods = [a_pod("a", priority=1000), a_pod("b")]
    found = reclaim_for(closed(NOW), pods, NOW)
    assert (names(found.delete), found.evict, found.requeue_at) == (["a", "b"], (), None)
    assert found.terms.by == "operator/p"


def test_a_deadline_that_was_missed_is_still_one() -> None:
    assert names(reclaim_for(closed(NOW - timedelta(days=1)), [a_pod()], NOW).delete) == ["p"]


def test_during_the_grace_evictions_are_tried_again_and_again() -> None:
    found = reclaim_for(closed(NOW + timedelta(minutes=5), evict=True), [a_pod()], NOW)
    assert (names(found.evict), found.delete, found.requeue_at) == (["p"], (), NOW + EVICTION_INTERVAL)


def test_evictions_do_not_make_anybody_late_for_the_deadline() -> None:
    assert reclaim_for(closed(NOW + SECOND, evict=True), [a_pod()], NOW).requeue_at == NOW + SECOND
    assert names(reclaim_for(closed(NOW, evict=True), [a_pod()], NOW).delete) == ["p"]


def test_without_a_deadline_everybody_finishes() -> None:
    assert reclaim_for(closed(), [a_pod()], NOW) == Reclaim(terms=ReclaimTerms(by="operator/p"))


def test_an_empty_node_needs_no_second_look() -> None:
    assert reclaim_for(closed(NOW + SECOND), [], NOW).requeue_at is None


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(status={"phase": "Succeeded"}),
        a_pod(status={"phase": "Failed"}),
        a_pod(metadata={"deletionTimestamp": "2026-03-02T07:59:00Z"}),
    ],
)
def test_who_has_ended_or_is_on_its_way_out_is_left_alone(pod: Object) -> None:
    assert reclaim_for(closed(NOW), [pod], NOW).delete == ()
    assert reclaim_for(closed(NOW + SECOND, evict=True), [pod], NOW).evict == ()
    assert reclaim_for(an_open("0"), [pod], NOW).delete == ()


def test_on_a_node_that_is_withdrawn_the_terms_of_its_lease_hold() -> None:
    killed = Lease(LeaseState.WITHDRAWN, "NoPolicy", terms=ReclaimTerms(NOW, by="the owner's kill switch"))
    assert names(reclaim_for(killed, [a_pod()], NOW).delete) == ["p"]
    assert reclaim_for(Lease(LeaseState.WITHDRAWN, "NoPolicy"), [a_pod()], NOW) == Reclaim(terms=NO_DEADLINE)


# -- a node that lends less


def test_an_open_node_reclaims_nothing() -> None:
    assert reclaim_for(an_open(), [a_pod()], NOW) == Reclaim()


def test_the_lowest_priority_goes_first() -> None:
    pods = [a_pod("low", priority=-10), a_pod("high", priority=10), a_pod("none")]
    assert names(reclaim_for(an_open("2"), pods, NOW).delete) == ["low"]
    assert names(reclaim_for(an_open("1"), pods, NOW).delete) == ["none", "low"]


def test_of_the_same_priority_the_newest_goes_first() -> None:
    pods = [a_pod("b", made=20), a_pod("c", made=30), a_pod("a", made=10)]
    assert names(reclaim_for(an_open("2"), pods, NOW).delete) == ["c"]
    assert names(reclaim_for(an_open("1"), pods, NOW).delete) == ["b", "c"]


def test_priority_goes_before_age() -> None:
    pods = [a_pod("old", priority=0, made=10), a_pod("new", priority=1, made=50)]
    assert names(reclaim_for(an_open("1"), pods, NOW).delete) == ["old"]


def test_who_fits_beside_those_that_stay_is_spared() -> None:
    pods = [a_pod("large", cpu="4", priority=5), a_pod("small", cpu="1", priority=0)]
    assert names(reclaim_for(an_open("2"), pods, NOW).delete) == ["large"]


def test_only_the_resources_that_became_less_count() -> None:
    pod = a_pod()
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "64Gi"
    assert reclaim_for(an_open("1"), [pod], NOW).delete == ()


def test_pods_above_a_lease_have_their_grace_and_evictions_too() -> None:
    found = reclaim_for(an_open("1", NOW + SECOND), [a_pod("a"), a_pod("b", made=1)], NOW)
    assert (found.delete, found.evict, found.requeue_at) == ((), (), NOW + SECOND)
    found = reclaim_for(an_open("1", NOW + SECOND, True), [a_pod("a"), a_pod("b", made=1)], NOW)
    assert (found.delete, names(found.evict)) == ((), ["b"])


def test_on_a_closed_node_those_above_an_older_lease_go_at_its_deadline() -> None:
    pods = [a_pod("a"), a_pod("b", made=1)]
    gentle = closed(trimming=trimming("1", NOW + SECOND))
    waiting = reclaim_for(gentle, pods, NOW)
    assert (waiting.delete, waiting.evict, waiting.requeue_at) == ((), (), NOW + SECOND)
    due = reclaim_for(closed(trimming=trimming("1")), pods, NOW)
    assert (names(due.delete), due.terms.by) == (["b"], "operator/night")
    asking = reclaim_for(closed(NOW + timedelta(hours=1), evict=True, trimming=trimming("1")), pods, NOW)
    assert (names(asking.delete), names(asking.evict), asking.requeue_at) == (["b"], ["a"], NOW + EVICTION_INTERVAL)
    everybody = reclaim_for(closed(NOW, trimming=trimming("1", NOW + SECOND)), pods, NOW)
    assert (names(everybody.delete), everybody.terms.by) == (["a", "b"], "operator/p")


pods = st.lists(
    st.builds(
        lambda cpu, priority, made: (cpu, priority, made), st.integers(0, 4), st.integers(-2, 2), st.integers(0, 59)
    ),
    max_size=8,
).map(lambda rows: [a_pod(f"p{at}", str(cpu), priority, made) for at, (cpu, priority, made) in enumerate(rows)])


@given(pods, st.integers(0, 12))
def test_who_stays_fits_and_nobody_goes_in_vain(found: list[Object], cpu: int) -> None:
    left = ResourceList.parse({"cpu": str(cpu)})
    out = excess_pods(found, left)
    stay = [pod for pod in found if pod not in out]
    held = sum(map(effective_requests, stay), ResourceList())["cpu"]
    assert held <= left["cpu"]
    assert all(held + effective_requests(pod)["cpu"] > left["cpu"] for pod in out)
