"""Simulated storage of a local cluster: a CSI driver without data, and its default storage class.

Its volumes are reachable from every node. The driver expands any of its volumes, also one that another cluster
provisioned. A CSINode lists it for each simulated node, without a limit of volumes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tapestry.apis import keys
from tapestry.client.client import Client
from tapestry.controller import Informer, Manager
from tapestry.controlplane.volume_matching import (
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    capacity_of,
    claim_reference,
    is_bound,
    requested_storage,
    storage_class_of,
    volume_mode_of,
    waits_for_consumer,
)
from tapestry.kube.errors import AlreadyExists, NotFound
from tapestry.kube.objects import (
    Object,
    annotations_of,
    is_deleting,
    is_owned_by,
    key_of,
    name_of,
    owner_reference,
    uid_of,
    value_at,
)
from tapestry.kube.quantity import parse_quantity
from tapestry.kube.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)

DRIVER = "simulated.csi.tapestry.io"
STORAGE_CLASS: Object = {
    "metadata": {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": DRIVER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
    "allowVolumeExpansion": True,
}
CSI_DRIVER: Object = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
CLAIM, VOLUME = "claim", "volume"
"""Kinds of keys."""


@dataclass(frozen=True)
class SimulatedStorage:
    """Provision, expand and delete volumes. A key is the kind and the key of an object."""

    client: Client
    claims: Informer
    volumes: Informer
    storage_classes: Informer

    async def reconcile(self, key: str) -> None:
        kind, _, object_key = key.partition(" ")
        try:
            if kind == VOLUME:
                await self.delete_released(object_key)
            elif (claim := self.claims.store.get(object_key)) is not None and not is_deleting(claim):
                await (self.expand(claim) if is_bound(claim) else self.provision(claim))
        except NotFound:
            return  # deleted in the meantime

    async def provision(self, claim: Object) -> None:
        storage_class = self.storage_classes.store.get(storage_class_of(claim))
        if storage_class is None or not needs_volume(claim, storage_class):
            return
        try:
            await self.client.create(PERSISTENT_VOLUMES, provisioned_volume(claim, storage_class))
        except AlreadyExists:
            return  # by an earlier call

    async def expand(self, claim: Object) -> None:
        volume = self.volumes.store.get(claim["spec"]["volumeName"])
        if value_at(volume, "spec", "csi", "driver") != DRIVER or volume is None:
            return
        capacity = volume["spec"]["capacity"]
        if capacity_of(volume) < requested_storage(claim):
            capacity = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
            await self.client.patch(PERSISTENT_VOLUMES, volume, {"spec": {"capacity": capacity}})
        reported = value_at(claim, "status", "capacity", "storage", default="0")
        if parse_quantity(reported).nano < parse_quantity(capacity["storage"]).nano:
            patch = {"status": {"capacity": capacity, "conditions": None}}
            await self.client.patch(PERSISTENT_VOLUME_CLAIMS, claim, patch, subresource="status")

    async def delete_released(self, name: str) -> None:
        volume = self.volumes.store.get(name)
        if volume is not None and is_disposable(volume):
            await self.client.delete(PERSISTENT_VOLUMES, volume)


@dataclass(frozen=True)
class SimulatedCsiNodes:
    """Register the driver on simulated nodes. Garbage collection deletes the CSINode of a deleted node."""

    client: Client
    nodes: Informer
    csi_nodes: Informer

    async def reconcile(self, name: str) -> None:
        node = self.nodes.store.get(name)
        existing = self.csi_nodes.store.get(name)
        if node is not None and not is_deleting(node) and not is_registered(node, existing):
            await self.client.converge(CSI_NODES, existing, csi_node(node, existing))


def is_registered(node: Object, existing: Object | None) -> bool:
    drivers = {each["name"]: each["nodeID"] for each in value_at(existing, "spec", "drivers") or ()}
    return existing is not None and drivers.get(DRIVER) == name_of(node) and is_owned_by(existing, node)


def csi_node(node: Object, existing: Object | None) -> Object:
    """Return the CSINode of a node, with our driver and those that others registered."""
    registered = value_at(existing, "spec", "drivers") or []
    owner = owner_reference({**node, "apiVersion": NODES.api_version, "kind": NODES.kind}, controller=False)
    return {
        "metadata": {"name": name_of(node), "ownerReferences": [owner]},
        "spec": {
            "drivers": [
                *(each for each in registered if each["name"] != DRIVER),
                {"name": DRIVER, "nodeID": name_of(node), "topologyKeys": None},
            ]
        },
    }


def needs_volume(claim: Object, storage_class: Object) -> bool:
    marks = annotations_of(claim)
    return (
        marks.get(STORAGE_PROVISIONER) == DRIVER == storage_class["provisioner"]
        and not value_at(claim, "spec", "volumeName")
        and (SELECTED_NODE in marks or not waits_for_consumer(storage_class))
    )


def provisioned_volume(claim: Object, storage_class: Object) -> Object:
    name = f"pvc-{uid_of(claim)}"
    return {
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER}},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "claimRef": claim_reference(claim),
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": name_of(storage_class),
            "volumeMode": volume_mode_of(claim),
        },
    }


def is_disposable(volume: Object) -> bool:
    """Return whether the driver must delete a volume that it provisioned."""
    return (
        annotations_of(volume).get(PROVISIONED_BY) == DRIVER == value_at(volume, "spec", "csi", "driver")
        and value_at(volume, "spec", "persistentVolumeReclaimPolicy") == "Delete"
        and value_at(volume, "status", "phase") == "Released"
        and not is_deleting(volume)
    )


async def ensure_storage(client: Client) -> None:
    """Create the driver and its storage class if they are missing."""
    for resource, obj in ((CSI_DRIVERS, CSI_DRIVER), (STORAGE_CLASSES, STORAGE_CLASS)):
        try:
            await client.create(resource, obj)
        except AlreadyExists:
            continue


def keys_of_volume(volume: Object) -> Iterable[str]:
    """Return the key of a volume to delete, and of the claim to expand with any other."""
    if is_disposable(volume):
        yield f"{VOLUME} {name_of(volume)}"
    elif (reference := value_at(volume, "spec", "claimRef")) is not None:
        yield f"{CLAIM} {reference.get('namespace')}/{reference.get('name')}"


def install(manager: Manager) -> None:
    """Add the simulated storage to `manager`."""
    claims, volumes = manager.informer(PERSISTENT_VOLUME_CLAIMS), manager.informer(PERSISTENT_VOLUMES)
    storage = SimulatedStorage(manager.client, claims, volumes, manager.informer(STORAGE_CLASSES))
    controller = manager.controller("simulated-storage", storage.reconcile)
    controller.watch(claims, lambda claim: (f"{CLAIM} {key_of(claim)}",))
    controller.watch(volumes, keys_of_volume)
    # A syncer copies the label to virtual nodes, and writes their CSINodes itself.
    own_nodes = f"{keys.SIMULATED_NODE},{keys.NODE_TYPE}!={keys.NODE_TYPE_VIRTUAL}"
    nodes, csi_nodes = manager.informer(NODES, labels=own_nodes), manager.informer(CSI_NODES)
    registrar = SimulatedCsiNodes(manager.client, nodes, csi_nodes)
    registration = manager.controller("simulated-csinodes", registrar.reconcile)
    registration.watch(nodes, when=is_new)
    registration.watch(csi_nodes)


def is_new(old: Object | None, new: Object | None) -> bool:
    return old is None and new is not None
