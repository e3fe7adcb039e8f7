"""Enforcement of leases on real API servers, for any toleration and any way of binding."""

from datetime import UTC, datetime, timedelta

from tapestry.apis import keys
from tapestry.apis.ownership import MAX_GRACE_SECONDS
from tapestry.kube.conditions import find_condition
from tapestry.kube.objects import is_deleting, object_named, value_at
from tapestry.kube.resources import NODES, PODS

from .bound_clusters import BoundClusters
from .test_pods_on_kubernetes import has_reason, mapped, phase

EVERYTHING = [{"operator": "Exists"}]
OUR_TAINT = [{"key": keys.OUT_OF_TIME_WINDOWS_TAINT, "operator": "Exists"}]
A_WEEK = 604800
ONE_CPU = {"cpu": "1"}


def later_today() -> dict[str, str]:
    """A window that is closed now."""
    now = datetime.now(UTC)
    start, end = now + timedelta(hours=2), now + timedelta(hours=3)
    return {"start": f"{start:%H:%M}", "end": f"{end:%H:%M}"}


async def test_no_pod_starts_outside_or_outlasts_its_lease(clusters: BoundClusters) -> None:
    node = f"{clusters.name}-n1"
    await clusters.add_node(node)
    await clusters.add_policy("all", timeWindows=[later_today()])
    with clusters.syncer():
        await clusters.wait_for_virtual_node(node)
        # A closed window: three ways to bypass its taint.
        await clusters.bind_pod("everything", node, requests=ONE_CPU, tolerations=EVERYTHING)
        await clusters.bind_pod("our-taint", node, requests=ONE_CPU, tolerations=OUR_TAINT)
        await clusters.bind_pod(
            "node-name", node, requests=ONE_CPU, tolerations=[], terminationGracePeriodSeconds=A_WEEK
        )
        for name in ("everything", "our-taint", "node-name"):
            pod = await clusters.wait_for_pod(name, has_reason(keys.ACCEPTED_CONDITION, "OutOfTimeWindows"))
            assert "it opens at" in find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION)["message"]
        assert await clusters.physical.list(PODS, clusters.mount) == []
        await clusters.set_policy("all", timeWindows=[])
        for name in ("everything", "our-taint", "node-name"):
            await clusters.wait_for_pod(name, mapped)

        # More than the lease: only one of three fits.
        for name in ("x", "y", "z"):
            await clusters.bind_pod(name, node, requests=ONE_CPU)
        ends = [await clusters.wait_for_pod(name, lambda pod: mapped(pod) or phase("Failed")(pod)) for name in "xyz"]
        reasons = sorted(value_at(pod, "status", "reason") or "" for pod in ends)
        assert reasons == ["", "OutOfcpu", "OutOfcpu"]
        assert len(await clusters.physical.list(PODS, clusters.mount)) == 4

        # The kill switch: a deleted pod with a grace period of a week gets 25 seconds, and no new pod starts.
        twin = await clusters.wait_for_twin("node-name")
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        place = {
            "apiVersion": "v1",
            "kind": "Binding",
            **object_named(twin["metadata"]["name"], clusters.mount),
            "target": target,
        }
        await clusters.physical.create(PODS, place, subresource="binding")
        await clusters.virtual.delete(PODS, object_named(f"{clusters.name}-node-name", "default"))
        await clusters.wait_for_twin(
            "node-name", lambda twin: twin["metadata"].get("deletionGracePeriodSeconds") == A_WEEK
        )
        await clusters.physical.patch(
            NODES, object_named(node), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await clusters.wait_for_twin(
            "node-name", lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] <= MAX_GRACE_SECONDS
        )
        assert is_deleting(await clusters.wait_for_twin("node-name"))
        await clusters.bind_pod("late", node, tolerations=EVERYTHING)
        await clusters.wait_for_pod("late", has_reason(keys.ACCEPTED_CONDITION, "Reclaimed"))
        assert not [
            pod for pod in await clusters.physical.list(PODS, clusters.mount) if "late" in pod["metadata"]["name"]
        ]
