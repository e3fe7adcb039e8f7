"""The reconciler of pod statuses: which changes of a virtual pod it reacts to."""

import msgspec

from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import Object
from tapestry.syncer.bottomup.pod_status import Patch, PodStatusReconciler
from tapestry.syncer.components import Syncer

from ..world import new_world

KEY = "default/work"


def pod_status_reconciler(syncer: Syncer, resizes: dict[str, Object]) -> PodStatusReconciler:
    client, now = syncer.clients.virtual, syncer.manager.now
    return PodStatusReconciler(syncer.identity, syncer.caches, syncer.partition, client, now, resizes, {})


@in_virtual_time
async def test_result_of_the_last_patch_is_not_reconciled() -> None:
    world = await new_world("east")
    async with world.syncer("east") as syncer:
        await world.run_pod()
        pod, twin = syncer.caches.virtual_pods.store.get(KEY), syncer.caches.twin_of(KEY)
        assert pod is not None
        assert twin is not None
        resizes: dict[str, Object] = {}
        reconciler = pod_status_reconciler(syncer, resizes)
        before = msgspec.structs.replace(pod, status_digest="of an earlier status")
        assert reconciler.is_affected(before, pod)  # somebody else may have written it
        reconciler.patches[KEY] = Patch("1", pod.version, twin.version, None)
        assert not reconciler.is_affected(before, pod)
        resizes[pod.uid] = {"type": "PodResizePending"}
        assert reconciler.is_affected(before, pod)
        del resizes[pod.uid]
        reconciler.patches[KEY] = Patch("1", pod.version, "an earlier version of the twin", None)
        assert reconciler.is_affected(before, pod)


@in_virtual_time
async def test_only_status_changes_of_pods_with_twins_are_reconciled() -> None:
    world = await new_world("east")
    async with world.syncer("east") as syncer:
        await world.run_pod()
        pod = syncer.caches.virtual_pods.store.get(KEY)
        assert pod is not None
        reconciler = pod_status_reconciler(syncer, {})
        assert reconciler.is_affected(None, pod)
        assert not reconciler.is_affected(pod, pod)
        assert not reconciler.is_affected(pod, None)
        another = {**pod.object, "metadata": {**pod.object["metadata"], "name": "another"}}
        without_twin = msgspec.structs.replace(pod, object=another)
        assert not reconciler.is_affected(None, without_twin)
