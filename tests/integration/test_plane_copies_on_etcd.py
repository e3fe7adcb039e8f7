"""A copy of a plane in etcd becomes a plane below another prefix."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tapestry.apiserver.assembly import ServerThreads
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.apiserver.storage.etcd.connection import epoch_guard, etcd_client
from tapestry.client.client import Client
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, DEPLOYMENTS, NAMESPACES
from tapestry.planes.etcd_prefixes import fill_prefix, has_identity, has_plane, prefix_snapshot
from tapestry.planes.open_plane import OpenPlane, open_plane
from tapestry.planes.plane_copies import copy_open_plane, fill_store
from tapestry.planes.plane_data import CopySource, PlaneHold
from tapestry.planes.plane_restores import Restored, restore_shared_plane, snapshot_plane
from tapestry.planes.sealing import load_group_key
from tapestry.vclusters.snapshots import no_check

from .etcds import Etcd, following


def config_for(etcd: Etcd, folder: Path, prefix: str) -> ApiServerConfig:
    settings = EtcdConfig(servers=[etcd.url], prefix=prefix)
    return ApiServerConfig(backend="etcd", etcd=settings, file_rootpath=str(folder))


@asynccontextmanager
async def opened(etcd: Etcd, folder: Path, prefix: str) -> AsyncIterator[tuple[OpenPlane, Client]]:
    config = config_for(etcd, folder, prefix)
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


async def test_interrupted_copy_leaves_no_plane_and_is_made_again(kube_assets: Path, tmp_path: Path) -> None:
    with Etcd(kube_assets, tmp_path) as etcd:
        async with opened(etcd, tmp_path / "a", "/planes/a") as (plane, client):
            for number in range(200):
                await client.create(CONFIGMAPS, object_named(f"c{number}", "default"))
            await copy_open_plane(plane.opened.store, tmp_path / "copy.tar")
            expected = {each.key for each in plane.opened.store.snapshot()}
        target = config_for(etcd, tmp_path / "b", "/planes/b")
        for epoch in (1, 2):
            async with asyncio.TaskGroup() as group, EtcdClient([etcd.url], Certificates()) as observer:
                fence = EpochFence(epoch, lambda: True)
                copying = group.create_task(fill_prefix(target, fence, tmp_path / "copy.tar"))
                while await observer.first_key(b"/planes/b/configmaps/", b"/planes/b/configmaps0") is None:
                    assert not copying.done()
                copying.cancel()
            assert not await has_plane(target.etcd)
        await fill_prefix(target, EpochFence(3, lambda: True), tmp_path / "copy.tar")
        assert await has_plane(target.etcd)
        _, entries = await prefix_snapshot(target.etcd)
        keys = {each.key for each in entries}
        assert keys <= expected
        assert {Key("configmaps", "default", f"c{number}") for number in range(200)} <= keys
        with pytest.raises(EpochLost):
            await fill_prefix(target, EpochFence(2, lambda: True), tmp_path / "copy.tar")
        assert await has_plane(target.etcd), "a stopped process does not empty the prefix of its successor"


def deployment() -> Object:
    labels, container = {"app": "web"}, {"name": "c", "image": "example.org/web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {**object_named("web", "default"), "spec": spec}


async def test_interrupted_restore_leaves_no_plane_and_is_made_again(kube_assets: Path, tmp_path: Path) -> None:
    with Etcd(kube_assets, tmp_path) as etcd:
        config, fence = config_for(etcd, tmp_path / "a", "/planes/a"), EpochFence(1, lambda: True)
        async with opened(etcd, tmp_path / "a", "/planes/a") as (plane, client):
            for number in range(200):
                await client.create(CONFIGMAPS, {**object_named(f"c{number}", "default"), "data": {"k": "old"}})
            await client.create(DEPLOYMENTS, deployment())
            uid = uid_of(await client.get(NAMESPACES, "kube-system"))
            source = CopySource(config, plane.opened.store, no_check)
            made = await snapshot_plane(source, 0, tmp_path / "snapshot.tar")
            for number in range(150):
                await client.patch(CONFIGMAPS, object_named(f"c{number}", "default"), {"data": {"k": "new"}})
            await client.create(CONFIGMAPS, object_named("later", "default"))
            unchanged = await client.get(CONFIGMAPS, "c199", "default")
            certificate = (tmp_path / "a" / "pki" / "ca.crt").read_bytes()

        shutil.rmtree(tmp_path / "a")

        def restore(fence: EpochFence, **options: bool) -> Coroutine[Any, Any, Restored]:
            file = tmp_path / "snapshot.tar"
            return restore_shared_plane(config, fence, file, objects=made.objects, is_new=False, **options)

        async with asyncio.TaskGroup() as group, etcd_client(config.etcd) as observer:
            restoring = group.create_task(restore(fence))
            while await has_identity(observer, config.etcd):
                assert not restoring.done()
            restoring.cancel()
        assert not await has_plane(config.etcd)
        restored = await restore(fence)
        assert restored.revision > made.revision
        assert (await restore(fence, with_workloads=False)).objects < restored.objects
        assert (await restore(fence)).objects == restored.objects
        async with opened(etcd, tmp_path / "a", "/planes/a") as (_, client):
            found = {name_of(each): each for each in await client.list(CONFIGMAPS, "default")}
            assert {value_at(found[f"c{number}"], "data", "k") for number in range(200)} == {"old"}
            assert "later" not in found
            assert found["c199"] == unchanged, "it was not written again"
            assert uid_of(await client.get(NAMESPACES, "kube-system")) == uid
        assert (tmp_path / "a" / "pki" / "ca.crt").read_bytes() == certificate, "it has its keys"
        async with EtcdClient([etcd.url], Certificates(), epoch_guard("/planes/a", EpochFence(2, lambda: True))) as raw:
            await raw.take_epoch()
        with pytest.raises(EpochLost):
            await restore(fence)
        assert await has_plane(config.etcd), "a stopped process does not replace the objects of its successor"
