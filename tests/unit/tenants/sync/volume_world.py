"""Volumes of a tenant in process: its syncer, the volume binders of both clusters, and a simulated provisioner."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tapestry.apis.clusterbindings import Binding
from tapestry.apis.field_types import SecretReference
from tapestry.apis.hostclusters import HostClusterSpec, OfferedStorageClass
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller import Manager
from tapestry.controller.config import ManagerConfig, Metrics, Probes
from tapestry.controller.testing import running_clock
from tapestry.controlplane import volume_binder
from tapestry.kube.objects import Object, name_of, object_named, value_at
from tapestry.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, Resource
from tapestry.local import simulated_storage
from tapestry.syncer.components import Syncer
from tapestry.syncer.current_binding import CurrentBinding
from tapestry.tenants.sync.volumes import TenantVolumes, wire_volumes

from ...syncer.world import A_DAY
from .twin_world import MOUNT

CONFIG = ManagerConfig(name="controllers", metrics=Metrics(address=""), probes=Probes(address=""))
OFFER = (OfferedStorageClass("fast", "standard"),)
HOST = HostClusterSpec(SecretReference("host", "tapestry-hosts"), storage_classes=OFFER)
CLASS: Object = {
    **object_named("fast"),
    "provisioner": "host.tapestry.io",
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
    "allowVolumeExpansion": True,
}
HOST_CLASS = {**simulated_storage.STORAGE_CLASS, "volumeBindingMode": "Immediate"}
Until = Callable[[Object], bool]


class OfferingBinding(CurrentBinding):
    """The binding of a tenant to which its host cluster offers storage classes."""

    def get(self) -> Binding | None:
        binding = super().get()
        return replace(binding, host=HOST) if binding is not None else None


def wire(syncer: Syncer) -> TenantVolumes:
    binding = OfferingBinding(syncer.identity, syncer.caches.bindings, syncer.caches.mount_namespaces)
    return wire_volumes(replace(syncer, current_binding=binding), lambda _: None)


def install_binder(manager: Manager) -> None:
    volume_binder.install(manager)


def install_storage(manager: Manager) -> None:
    volume_binder.install(manager)
    simulated_storage.install(manager)


@asynccontextmanager
async def volume_controllers(plane: Client, host: Client) -> AsyncIterator[None]:
    """Run the volume binders of both clusters, and the provisioner of the host cluster."""
    clock, managers = running_clock(), list[Manager]()
    for client, install in ((plane, install_binder), (host, install_storage)):
        connect = partial(getattr, client, "transport")
        manager = Manager(CONFIG, connect, identity="controllers", now=clock.now, monotonic=clock.monotonic)
        manager.register("volumes", install)
        managers.append(manager)
    async with asyncio.TaskGroup() as group:
        for each in managers:
            group.create_task(each.run())
        yield
        for each in managers:
            each.stop()


def new_claim(name: str = "data", size: str = "1Gi", **spec: Any) -> Object:
    content = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    return {**object_named(name, "team-a"), "spec": {"storageClassName": "fast", **content}}


async def add_classes(plane: Client, host: Client) -> None:
    await plane.create(STORAGE_CLASSES, CLASS)
    await host.create(STORAGE_CLASSES, HOST_CLASS)


async def wait_for_claim(client: Client, until: Until, name: str = "data") -> Object:
    found = await wait_for(
        *(client, PERSISTENT_VOLUME_CLAIMS, name, "team-a"),
        until=lambda each: each is not None and until(each),
        timeout=A_DAY,
    )
    assert found is not None
    return found


async def wait_for_volume(client: Client, name: str, until: Callable[[Object | None], bool]) -> Object | None:
    return await wait_for(client, PERSISTENT_VOLUMES, name, until=until, timeout=A_DAY)


async def wait_until_none(client: Client, resource: Resource, namespace: str | None = None) -> None:
    """Wait until all objects of a kind are gone."""
    for each in await client.list(resource, namespace):
        await wait_for(client, resource, name_of(each), namespace, until=lambda obj: obj is None, timeout=A_DAY)


def is_bound(obj: Object | None) -> bool:
    return bool(value_at(obj, "status", "phase") == "Bound")


async def the_twin(host: Client) -> Object:
    [twin] = await host.list(PERSISTENT_VOLUME_CLAIMS, MOUNT)
    return twin
