"""Enforcement of leases on real API servers, for any toleration and any way of binding."""

from datetime import UTC, datetime, timedelta

from tapestry.apis import keys
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


async def test_no_pod_starts_outside_or_outlasts_its_lease(site: BoundClusters) -> None:
    node = f"{site.name}-n1"
    await site.add_node(node)
    await site.add_policy("all", timeWindows=[later_today()])
    with site.syncer():
        await site.wait_for_virtual_node(node)
        # A closed window: three ways to bypass its taint.
        await site.bind_pod("everything", node, requests=ONE_CPU, tolerations=EVERYTHING)
        await site.bind_pod("our-taint", node, requests=ONE_CPU, tolerations=OUR_TAINT)
        await site.bind_pod("node-name", node, requests=ONE_CPU, tolerations=[], terminationGracePeriodSeconds=A_WEEK)
        for name in ("everything", "our-taint", "node-name"):
            pod = await site.wait_for_pod(name, has_reason(keys.ACCEPTED_CONDITION, "OutOfTimeWindows"))
            assert "it opens at" in find_condition(pod["status"]["conditions"], keys.ACCEPTED_CONDITION)["message"]
        assert await site.physical.list(PODS, site.mount) == []
        await site.set_policy("all", timeWindows=[])
        for name in ("everything", "our-taint", "node-name"):
            await site.wait_for_pod(name, mapped)

        # More than the lease: only one of three fits.
        for name in ("x", "y", "z"):
            await site.bind_pod(name, node, requests=ONE_CPU)
        ends = [await site.wait_for_pod(name, lambda pod: mapped(pod) or phase("Failed")(pod)) for name in "xyz"]
        reasons = sorted(value_at(pod, "status", "reason") or "" for pod in ends)
        assert reasons == ["", "OutOfcpu", "OutOfcpu"]
        assert len(await site.physical.list(PODS, site.mount)) == 4

        # The kill switch: a deleted pod with a grace period of a week gets 30 seconds, and no new pod starts.
        twin = await site.wait_for_twin("node-name")
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        place = {
            "apiVersion": "v1",
            "kind": "Binding",
            **object_named(twin["metadata"]["name"], site.mount),
            "target": target,
        }
        await site.physical.create(PODS, place, subresource="binding")
        await site.virtual.delete(PODS, object_named(f"{site.name}-node-name", "default"))
        await site.wait_for_twin("node-name", lambda twin: twin["metadata"].get("deletionGracePeriodSeconds") == A_WEEK)
        await site.physical.patch(
            NODES, object_named(node), {"metadata": {"annotations": {keys.RECLAIM: keys.RECLAIM_NOW}}}
        )
        await site.wait_for_twin("node-name", lambda twin: twin["metadata"]["deletionGracePeriodSeconds"] <= 30)
        assert is_deleting(await site.wait_for_twin("node-name"))
        await site.bind_pod("late", node, tolerations=EVERYTHING)
        await site.wait_for_pod("late", has_reason(keys.ACCEPTED_CONDITION, "Reclaimed"))
        assert not [pod for pod in await site.physical.list(PODS, site.mount) if "late" in pod["metadata"]["name"]]
