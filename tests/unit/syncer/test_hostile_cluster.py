"""A physical cluster that lies: it controls its own nodes and twins, and nothing else."""

import asyncio

from tapestry.apis import keys
from tapestry.apis.clusterbindings import CLUSTER_BINDINGS
from tapestry.apis.names import virtual_cluster_label
from tapestry.controller.testing import in_virtual_time
from tapestry.kube.objects import labels_of, object_named, uid_of, value_at
from tapestry.kube.resources import EVENTS, NAMESPACES, NODES, PODS

from .world import MOUNT, World, new_world


async def forge_twin(world: World, name: str) -> None:
    """Create a physical pod that looks like the twin of a virtual pod, as binding `east` would create it."""
    pod = await world.pod(name)
    cluster = uid_of(await world.virtual.get(NAMESPACES, "kube-system"))
    labels = {
        keys.MANAGED_BY: keys.TAPESTRY,
        keys.VIRTUAL_CLUSTER: virtual_cluster_label(cluster),
        keys.CLUSTER_BINDING_UID: uid_of(await world.virtual.get(CLUSTER_BINDINGS, "east")),
    }
    annotations = {
        keys.VIRTUAL_POD_NAMESPACE: "default",
        keys.VIRTUAL_POD_NAME: name,
        keys.VIRTUAL_POD_UID: uid_of(pod),
    }
    place = (await world.twin_ref(name))["metadata"]
    containers = [{"name": "c", "image": "busybox:1"}]
    twin = await world.physical.create(
        PODS,
        {
            "metadata": {**place, "labels": labels, "annotations": annotations},
            "spec": {"nodeName": "n1", "containers": containers},
        },
    )
    status = {"phase": "Running", "podIP": "10.6.6.6"}
    await world.physical.patch(PODS, twin, {"status": status}, subresource="status")
    event = {
        "metadata": {"name": "lie", "namespace": MOUNT},
        "involvedObject": {"kind": "Pod", "name": place["name"], "namespace": MOUNT, "uid": uid_of(twin)},
        "reason": "Lie",
        "message": "x",
    }
    await world.physical.create(EVENTS, event)


@in_virtual_time
async def test_cluster_cannot_change_pods_of_another_binding() -> None:
    """Both node names start alike: `vnode-east-` and `vnode-east-west-`."""
    world = await new_world("east", "east-west")
    other = uid_of(await world.virtual.get(CLUSTER_BINDINGS, "east-west"))
    node = {"metadata": {"name": "vnode-east-west-n1", "labels": {keys.CLUSTER_BINDING_UID: other}}}
    await world.virtual.create(NODES, node)
    async with world.syncer("east"):
        await world.add_pod("theirs", node="vnode-east-west-n1")
        await asyncio.sleep(5)
        before = await world.pod("theirs")
        await forge_twin(world, "theirs")
        await asyncio.sleep(60)
        assert await world.pod("theirs") == before
        assert await world.events("Lie") == []


@in_virtual_time
async def test_invalid_node_values_are_dropped() -> None:
    world = await new_world("east")
    async with world.syncer("east"):
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        conditions = [{"type": "Ready", "status": "True", "message": "m" * 3_000_000}]
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "169.254.169.254"}],
        }
        labels = {f"label-{number}": "x" for number in range(2000)}
        await world.physical.create(NODES, {"metadata": {"name": "n2", "labels": labels}, "status": status})
        await asyncio.sleep(5)
        actual = await world.virtual.get(NODES, "vnode-east-n2")
        assert len(labels_of(actual)) < 600
        assert len(value_at(actual, "status", "conditions")[0]["message"]) <= 4096
        assert "169.254.169.254" not in str(actual["status"]["addresses"])


@in_virtual_time
async def test_forwarded_event_is_truncated() -> None:
    world = await new_world("east")
    async with world.syncer("east"):
        name = "work-" + "w" * 200
        await world.run_pod(name)
        twin = await world.twin(name)
        about = {"kind": "Pod", "name": twin["metadata"]["name"], "namespace": MOUNT, "uid": uid_of(twin)}
        event = {"metadata": {"name": "long", "namespace": MOUNT}, "involvedObject": about, "reason": "Long"}
        await world.physical.create(EVENTS, {**event, "message": f"{twin['metadata']['name']} " * 1000})
        await asyncio.sleep(5)
        [found] = await world.events("Long")
        assert len(found["message"].encode()) <= 4096
        assert object_named(name)["metadata"]["name"] in found["message"]
