"""Pods down and their status up, by a syncer process between two real API servers; what a kubelet does is done by hand.

What each test shows is named as in the list of scenarios that Kubeocean is tested by, where it is one of those; ours
differ on purpose where docs/reference/compatibility.md says so.
"""

from tapestry.apis import keys
from tapestry.kube.conditions import is_true
from tapestry.kube.objects import annotations_of, labels_of, name_of, named, uid_of, value_at
from tapestry.kube.resources import PODS

from .lending import Lending

RUNNING = {
    "phase": "Running",
    "hostIP": "10.9.0.1",
    "podIP": "10.9.1.1",
    "podIPs": [{"ip": "10.9.1.1"}],
    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
}


async def test_a_bound_pod_has_one_twin_that_is_pinned_and_least_important(site: Lending) -> None:
    """P1."""
    await site.add_node(f"{site.name}-n1")
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(f"{site.name}-n1")
        pod = await site.bind_pod("work", f"{site.name}-n1")
        twin = await site.wait_for_twin("work")
        [term] = twin["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term == {
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"{site.name}-n1"]}]
        }
        assert twin["spec"]["priorityClassName"] == keys.PRIORITY_CLASS
        assert twin["spec"]["priority"] == -10000
        assert labels_of(twin)[keys.MANAGED_BY] == keys.TAPESTRY
        assert annotations_of(twin)[keys.VIRTUAL_POD_UID] == uid_of(pod)
        shown = await site.wait_for_pod("work", lambda pod: is_true(pod, keys.MAPPED))
        assert annotations_of(shown)[keys.PHYSICAL_POD_NAME] == name_of(twin)
        assert annotations_of(shown)[keys.PHYSICAL_POD_UID] == uid_of(twin)


async def test_what_a_twin_says_of_itself_is_the_pods_status(site: Lending) -> None:
    """P6."""
    await site.add_node(f"{site.name}-n1")
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(f"{site.name}-n1")
        await site.bind_pod("work", f"{site.name}-n1")
        await site.wait_for_twin("work")
        await site.set_twin_status("work", **RUNNING)
        pod = await site.wait_for_pod("work", lambda pod: value_at(pod, "status", "phase") == "Running")
        assert pod["status"]["podIP"] == "10.9.1.1"
        assert is_true(pod, "Ready")
        assert is_true(pod, keys.MAPPED)


async def test_a_deleted_pod_goes_after_its_twin(site: Lending) -> None:
    """P2."""
    await site.add_node(f"{site.name}-n1")
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(f"{site.name}-n1")
        await site.bind_pod("work", f"{site.name}-n1")
        await site.wait_for_pod("work", lambda pod: is_true(pod, keys.MAPPED))
        await site.virtual.delete(PODS, named(f"{site.name}-work", "default"))
        await site.wait_until_pod_is_gone("work")
        assert await site.physical.list(PODS, site.mount) == []


async def test_a_pod_whose_twin_was_deleted_below_has_failed(site: Lending) -> None:
    """P12."""
    await site.add_node(f"{site.name}-n1")
    await site.add_policy("all")
    with site.syncer():
        await site.wait_for_virtual_node(f"{site.name}-n1")
        await site.bind_pod("work", f"{site.name}-n1")
        await site.wait_for_pod("work", lambda pod: is_true(pod, keys.MAPPED))
        await site.physical.delete(PODS, named(await site.twin_name("work"), site.mount), grace_seconds=0)
        pod = await site.wait_for_pod("work", lambda pod: value_at(pod, "status", "phase") == "Failed")
        assert pod["status"]["reason"] == "PhysicalPodLost"
        assert await site.physical.list(PODS, site.mount) == []
