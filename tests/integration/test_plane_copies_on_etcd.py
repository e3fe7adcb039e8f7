"""A copy of a plane in etcd becomes a plane below another prefix."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.planes.open_plane import OpenPlane, open_plane
from tapestry.planes.plane_copies import copy_open_plane, fill_store
from tapestry.planes.plane_data import PlaneHold
from tapestry.planes.sealing import load_group_key

from .etcds import Etcd, following


@asynccontextmanager
async def opened(etcd: Etcd, folder: Path, prefix: str) -> AsyncIterator[tuple[OpenPlane, Client]]:
    config = ApiServerConfig(
        backend="etcd", etcd=EtcdConfig(servers=[etcd.url], prefix=prefix), file_rootpath=str(folder)
    )
    with closing(ServerThreads()) as threads:
        hold = PlaneHold(EpochFence(1, lambda: True), load_group_key(folder.parent / "group.key"))
        async with open_plane(folder.name, config, threads, hold=hold) as plane:
            yield plane, Client(InProcessTransport(plane.opened.request_handler, APISERVER_USER))


async def test_copy_fills_another_prefix(kube_assets: Path, tmp_path: Path) -> None:
    with Etcd(kube_assets, tmp_path) as etcd:
        async with opened(etcd, tmp_path / "a", "/planes/a") as (plane, client):
            await client.create(CONFIGMAPS, {**object_named("x", "default"), "data": {"k": "v"}})
            old_uid = uid_of(await client.get(NAMESPACES, "kube-system"))
            await copy_open_plane(plane.opened.store, tmp_path / "copy.tar")
        async with following(etcd.url, "/planes/b") as store:
            await fill_store(store, tmp_path / "copy.tar")
            last = max(store.snapshot(), key=lambda each: each.revision)
            assert last.key.name == "kube-system"
        async with opened(etcd, tmp_path / "b", "/planes/b") as (_, client):
            assert (await client.get(CONFIGMAPS, "x", "default"))["data"] == {"k": "v"}
            assert uid_of(await client.get(NAMESPACES, "kube-system")) != old_uid
