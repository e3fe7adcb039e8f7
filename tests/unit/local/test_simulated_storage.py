"""Simulated storage beside the volume binder, in virtual time and under perturbation."""

from collections.abc import Callable

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.testing import Scenario, perturb
from tapestry.controlplane import volume_binder
from tapestry.controlplane.volume_matching import SELECTED_NODE
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)
from tapestry.local import simulated_storage
from tapestry.local.simulated_kubelet import simulated_node
from tapestry.local.simulated_storage import CSI_DRIVER, DRIVER, STORAGE_CLASS, is_disposable, provisioned_volume

AN_HOUR = 3600.0
SERVED = [PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, CSI_DRIVERS, CSI_NODES, NODES, EVENTS]
CLAIM: Object = {
    "metadata": {"name": "data", "namespace": "default", "uid": "u"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": name_of(STORAGE_CLASS),
    },
}


async def wait_until(client: Client, until: Callable[[Object], bool]) -> Object:
    found = await wait_for(
        client,
        PERSISTENT_VOLUME_CLAIMS,
        "data",
        "default",
        until=lambda obj: obj is not None and until(obj),
        timeout=AN_HOUR,
    )
    assert found is not None
    return found


async def life_of_a_volume(client: Client) -> None:
    await client.create(CSI_DRIVERS, CSI_DRIVER)
    await client.create(STORAGE_CLASSES, STORAGE_CLASS)
    await client.create(PERSISTENT_VOLUME_CLAIMS, CLAIM)
    selected = {"metadata": {"annotations": {SELECTED_NODE: "n"}}}
    await client.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), selected)
    claim = await wait_until(client, lambda obj: value_at(obj, "status", "phase") == "Bound")
    volume = claim["spec"]["volumeName"]
    assert volume == f"pvc-{uid_of(claim)}"
    grown = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    await client.patch(PERSISTENT_VOLUME_CLAIMS, object_named("data", "default"), grown)
    claim = await wait_until(client, lambda obj: value_at(obj, "status", "capacity", "storage") == "2Gi")
    assert (await client.get(PERSISTENT_VOLUMES, volume))["spec"]["capacity"] == {"storage": "2Gi"}
    await client.delete(PERSISTENT_VOLUME_CLAIMS, claim)
    await wait_for(client, PERSISTENT_VOLUMES, volume, until=lambda obj: obj is None, timeout=AN_HOUR)


async def registration_of_the_driver(client: Client) -> None:
    node = await client.create(NODES, simulated_node("n", {"cpu": "1"}))
    await client.create(NODES, {"metadata": {"name": "other"}})
    labels = {keys.SIMULATED_NODE: "", keys.NODE_TYPE: keys.NODE_TYPE_VIRTUAL}
    await client.create(NODES, {"metadata": {"name": "virtual", "labels": labels}})
    found = await wait_for(client, CSI_NODES, "n", until=bool, timeout=AN_HOUR)
    assert found is not None
    assert found["metadata"]["ownerReferences"][0]["uid"] == uid_of(node)
    other = {"name": "other.example.com", "nodeID": "x", "topologyKeys": None}
    await client.patch(CSI_NODES, found, {"spec": {"drivers": [other]}})
    names = ["other.example.com", DRIVER]
    until = lambda obj: [each["name"] for each in value_at(obj, "spec", "drivers", default=[])] == names  # noqa: E731
    await wait_for(client, CSI_NODES, "n", until=until, timeout=AN_HOUR)
    await client.delete(CSI_NODES, object_named("n"))
    await wait_for(client, CSI_NODES, "n", until=bool, timeout=AN_HOUR)
    assert await client.find(CSI_NODES, "other") is None
    assert await client.find(CSI_NODES, "virtual") is None


def install(manager: Manager) -> None:
    volume_binder.install(manager)
    simulated_storage.install(manager)


def test_perturbed_volume_is_provisioned_expanded_and_deleted() -> None:
    report = perturb(Scenario("storage", SERVED, install, life_of_a_volume, counts=lambda call: "/events" not in call))
    assert report.calls > 0
    assert not report.failures, report


def test_perturbed_driver_is_registered_on_simulated_nodes() -> None:
    perturb(Scenario("storage", SERVED, simulated_storage.install, registration_of_the_driver)).check()


def test_only_own_released_volumes_are_deleted() -> None:
    volume = provisioned_volume(CLAIM, STORAGE_CLASS)
    assert volume["spec"]["csi"]["driver"] == DRIVER
    assert is_disposable({**volume, "status": {"phase": "Released"}})
    assert not is_disposable({**volume, "status": {"phase": "Bound"}})
    retained = {**volume, "spec": {**volume["spec"], "persistentVolumeReclaimPolicy": "Retain"}}
    assert not is_disposable({**retained, "status": {"phase": "Released"}})
    foreign = {**volume, "metadata": {"name": "v"}}
    assert not is_disposable({**foreign, "status": {"phase": "Released"}})
