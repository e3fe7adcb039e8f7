"""Planes on a real etcd: their keys, their moves between processes, and the management API of a group."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tapestry.apis.keys import SYSTEM_NAMESPACE
from tapestry.apis.planes import PLANE, PLANES, PlaneSpec, plane_id
from tapestry.apiserver.access.authentication import Credentials
from tapestry.apiserver.access.ephemeral_tokens import TOKENS_FILE, create_token, load_tokens
from tapestry.apiserver.assembly import OpenServer, ServerThreads, open_server
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.core.epochs import EpochFence, EpochLost
from tapestry.apiserver.core.requests import APISERVER_USER
from tapestry.apiserver.storage.etcd.client import Certificates, EtcdClient
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controlplane.in_process_transport import InProcessTransport
from tapestry.kube.conditions import is_condition_true
from tapestry.kube.crds import crd
from tapestry.kube.errors import AlreadyExists, KubeError
from tapestry.kube.objects import Object, name_of, object_named, uid_of, value_at
from tapestry.kube.resources import CONFIGMAPS, CRDS, LEASES, NAMESPACES
from tapestry.planes import plane_controller
from tapestry.planes.app import remove_etcd_leftovers, run_planes
from tapestry.planes.config import PlanesConfig, management_server_config, plane_server_config, planes_prefix
from tapestry.planes.etcd_prefixes import find_prefixes
from tapestry.planes.management import (
    create_namespace,
    management_controllers,
    management_keys,
    planes_manager,
    process_identity,
)
from tapestry.planes.plane_data import PlaneHold, delete_plane_data, restore_keys, update_keys
from tapestry.planes.plane_set import PlaneSet, PlaneState
from tapestry.planes.processes import Processes
from tapestry.planes.sealed_files import open_sealed_files
from tapestry.planes.sealing import GroupKey, SealError, load_group_key

from .etcds import Etcd

KEY = GroupKey(b"k" * 32, "group.key")


@pytest.fixture(scope="module")
def etcd(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(kube_assets, tmp_path_factory.mktemp("etcd")) as shared:
        yield shared


@pytest.fixture
def prefix() -> str:
    """Key prefix of one test, which isolates it from others."""
    return f"/{secrets.token_hex(4)}"


@dataclass
class Lease:
    """The Lease of a process, as its fences see it."""

    is_valid: bool = True

    def hold(self, epoch: int) -> PlaneHold:
        return PlaneHold(EpochFence(epoch, lambda: self.is_valid), KEY)


def hold(epoch: int) -> PlaneHold:
    return Lease().hold(epoch)


def config_for(etcd: Etcd, prefix: str, folder: Path, plane: str = "plane") -> ApiServerConfig:
    planes = PlanesConfig(data=str(folder), etcd=EtcdConfig(servers=[etcd.url], prefix=prefix))
    return plane_server_config(planes, plane, PlaneSpec(backend="etcd"))


def files_of(config: ApiServerConfig) -> dict[str, bytes]:
    pki = Path(config.file_rootpath) / "pki"
    return {each.name: each.read_bytes() for each in pki.glob("*")}


def client_of(opened: OpenServer) -> Client:
    return Client(InProcessTransport(opened.request_handler, APISERVER_USER))


# -- keys


async def test_keys_follow_a_plane_to_another_process(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    here, there = (config_for(etcd, prefix, tmp_path / name) for name in ("here", "there"))
    await restore_keys("plane", here, hold(1))
    assert files_of(here).keys() >= {"ca.crt", "ca.key", "service-accounts.key", "front-proxy-ca.key"}
    await restore_keys("plane", there, hold(2))
    assert files_of(there) == files_of(here)
    assert all(each.stat().st_mode & 0o077 == 0 for each in (Path(there.file_rootpath) / "pki").glob("*"))


async def test_etcd_has_no_key_in_clear_text(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config = config_for(etcd, prefix, tmp_path)
    await update_keys("plane", config, hold(1), partial(new_token, config))
    async with EtcdClient([etcd.url], Certificates()) as client:
        values = [each.value or b"" async for _, page in all_keys(client, prefix) for each in page]
    assert len(values) > 5
    assert not any(word in value for value in values for word in (b"BEGIN", b"PRIVATE", b"admin", b"expires"))


def all_keys(client: EtcdClient, prefix: str) -> AsyncIterator[tuple[int, list[object]]]:
    return client.list_pages(f"{prefix}/".encode(), f"{prefix}0".encode())  # type: ignore[return-value]


def new_token(config: ApiServerConfig) -> str:
    _, text = create_token(
        Path(config.file_rootpath), "admin", ("system:masters",), timedelta(hours=1), datetime.now(UTC)
    )
    return text


async def test_local_files_are_replaced_by_those_in_etcd(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config = config_for(etcd, prefix, tmp_path)
    await restore_keys("plane", config, hold(1))
    valid, pki = files_of(config), Path(config.file_rootpath) / "pki"
    (pki / "ca.crt").write_bytes(b"stale")
    (pki / "ca.key").unlink()
    (pki / "other.key").write_bytes(b"stale")
    (pki / "apiserver.crt").write_bytes(b"of this process")
    await restore_keys("plane", config, hold(1))
    assert files_of(config) == {**valid, "apiserver.crt": b"of this process"}


async def test_keys_of_another_plane_are_refused(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    ours, theirs = (config_for(etcd, prefix, tmp_path, plane) for plane in ("ours", "theirs"))
    await restore_keys("ours", ours, hold(1))
    await restore_keys("theirs", theirs, hold(1))
    with pytest.raises(SealError, match=r"sealed with another key than other\.key"):
        await restore_keys("ours", ours, PlaneHold(hold(1).fence, GroupKey(b"o" * 32, "other.key")))
    async with EtcdClient([etcd.url], Certificates()) as client:
        path = f"{prefix}/planes/ours/sealed/pki/ca.key".encode()
        own, _ = await client.get(path)
        foreign, _ = await client.get(path.replace(b"ours", b"theirs"))
        await client.put(path, foreign.value or b"", own.revision, 0)
    before = files_of(ours)
    with pytest.raises(SealError, match=r"pki/ca\.key of ours in etcd was changed"):
        await restore_keys("ours", ours, hold(1))
    assert files_of(ours)["ca.key"] == before["ca.key"]


async def test_stopped_process_stores_no_keys(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    here, there = (config_for(etcd, prefix, tmp_path / name) for name in ("here", "there"))
    await restore_keys("plane", here, hold(1))
    await restore_keys("plane", there, hold(2))
    with pytest.raises(EpochLost):
        await update_keys("plane", here, hold(1), partial(new_token, here))


async def test_processes_that_start_together_share_one_ca(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config = EtcdConfig(servers=[etcd.url], prefix=prefix)

    async def certificate(name: str) -> bytes:
        async with open_sealed_files(config, tmp_path / name, KEY, "management"):
            return (tmp_path / name / "pki" / "ca.crt").read_bytes()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(certificate(name)) for name in "abcd"]
    assert len({each.result() for each in tasks}) == 1


async def test_tokens_of_all_processes_are_valid_in_each(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config = EtcdConfig(servers=[etcd.url], prefix=prefix)
    async with (
        open_sealed_files(config, tmp_path / "a", KEY, "management") as a,
        open_sealed_files(config, tmp_path / "b", KEY, "management") as b,
        asyncio.TaskGroup() as group,
    ):
        followers = [group.create_task(files.follow()) for files in (a, b)]
        for files, name in ((a, "a"), (b, "b"), (a, "a")):
            await files.update(partial(new_token, ApiServerConfig(file_rootpath=str(tmp_path / name))))
        async with EtcdClient([etcd.url], Certificates()) as client, asyncio.timeout(10):
            while any(len(load_tokens(tmp_path / name / TOKENS_FILE)) < 3 for name in ("a", "b")):
                await client.current_revision(b"/")
        assert (tmp_path / "a" / TOKENS_FILE).read_bytes() == (tmp_path / "b" / TOKENS_FILE).read_bytes()
        for each in followers:
            each.cancel()


# -- planes


@asynccontextmanager
async def plane_set() -> AsyncIterator[PlaneSet]:
    with closing(ServerThreads()) as threads:
        async with asyncio.TaskGroup() as group:
            planes = PlaneSet(group, threads)
            yield planes
            await planes.close_all()


async def test_plane_moves_with_objects_and_tokens(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    here, there = (config_for(etcd, prefix, tmp_path / name) for name in ("here", "there"))
    async with plane_set() as one, plane_set() as other:
        entry = one.add("plane", here, hold(1))
        opened = await one.open(entry)
        assert opened is not None
        await client_of(opened.opened).create(CONFIGMAPS, object_named("kept", "default"))
        token = await update_keys("plane", here, hold(1), partial(new_token, here))
        await one.close(entry, PlaneState.SUSPENDED)
        moved = await other.open(other.add("plane", there, hold(2)))
        assert moved is not None
        assert await client_of(moved.opened).get(CONFIGMAPS, "kept", "default")
        assert moved.opened.http_handler.authenticate(Credentials(bearer_token=token)).name == "admin"


async def test_plane_that_was_taken_fails_alone(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    taken, sound = (config_for(etcd, prefix, tmp_path / "here", plane) for plane in ("taken", "sound"))
    async with plane_set() as one, plane_set() as other:
        entry, neighbour = one.add("taken", taken, hold(1)), one.add("sound", sound, hold(1))
        opened, unaffected = await one.open(entry), await one.open(neighbour)
        assert opened is not None
        assert unaffected is not None
        task = entry.task
        assert task is not None
        config = config_for(etcd, prefix, tmp_path / "there", "taken")
        assert await other.open(other.add("taken", config, hold(2))) is not None
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        assert entry.state is PlaneState.FAILED
        assert "another process has taken" in entry.message
        assert await one.open(entry) is None, "it cannot open again in the old epoch"
        assert "this process holds epoch 1, but epoch 2 is current" in entry.message
        await client_of(unaffected.opened).create(CONFIGMAPS, object_named("written", "default"))


async def test_plane_without_a_valid_lease_only_reads(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    lease = Lease()
    async with plane_set() as planes:
        opened = await planes.open(planes.add("plane", config_for(etcd, prefix, tmp_path), lease.hold(1)))
        assert opened is not None
        client = client_of(opened.opened)
        await client.create(CONFIGMAPS, object_named("made", "default"))
        lease.is_valid = False
        with pytest.raises(KubeError, match="could not renew its Lease"):
            await client.create(CONFIGMAPS, object_named("late", "default"))
        assert await client.get(CONFIGMAPS, "made", "default")
        lease.is_valid = True
        await client.create(CONFIGMAPS, object_named("later", "default"))


async def test_deleted_plane_leaves_nothing(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config = config_for(etcd, prefix, tmp_path)
    async with plane_set() as planes:
        entry = planes.add("plane", config, hold(1))
        assert await planes.open(entry) is not None
        await planes.remove(entry)
    for _ in range(2):
        await delete_plane_data(config, hold(1))
    assert not files_of(config)
    async with EtcdClient([etcd.url], Certificates()) as client:
        assert [page async for _, page in all_keys(client, prefix)] == [[]]


# -- a group of processes


@dataclass
class Process:
    """A process of a group, without its listener."""

    client: Client
    planes: PlaneSet
    processes: Processes


@asynccontextmanager
async def process(
    name: str, etcd: Etcd, prefix: str, folder: Path, *, named_only: bool = False
) -> AsyncIterator[Process]:
    """Run a process that serves the management API and holds planes."""
    config = PlanesConfig(
        name=name,
        data=str(folder / name),
        backend="etcd",
        etcd=EtcdConfig(servers=[etcd.url], prefix=prefix),
        group_key=str(folder / "group.key"),
        named_only=named_only,
    )
    key = load_group_key(config.group_key_file)
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(closing(ServerThreads()))
        await stack.enter_async_context(management_keys(config, key))
        opened = await stack.enter_async_context(open_server(management_server_config(config), threads))
        await install_planes(client_of(opened))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        manager = planes_manager(opened, config, process_identity(config))
        planes, processes = PlaneSet(group, threads), Processes(name, manager.elector, is_named_only=named_only)
        manager.register(
            "planes",
            lambda each: plane_controller.install(each, config, planes, str, processes, key),
        )
        managers = [manager, management_controllers(opened, config)]
        tasks = [group.create_task(each.run()) for each in managers]
        try:
            yield Process(client_of(opened), planes, processes)
        finally:
            await planes.close_all()
            for each in managers:
                each.stop()
            await asyncio.wait(tasks)


async def install_planes(client: Client) -> None:
    await create_namespace(client, SYSTEM_NAMESPACE)
    with suppress(AlreadyExists):
        await client.create(CRDS, crd(PLANE))
    await wait_for(
        *(client, CRDS, name_of(crd(PLANE))),
        until=lambda found: found is not None and is_condition_true(found, "Established"),
        timeout=30,
    )


async def create_plane(creator: Process, name: str, **spec: object) -> Object:
    """Create a plane, and wait until it is open."""
    await creator.client.create(PLANES, object_named(name) | {"spec": {"backend": "etcd", **spec}})
    return await wait_for_status(creator.client, name, phase="Open")


async def wait_for_status(client: Client, name: str, **status: object) -> Object:
    def is_reached(plane: Object | None) -> bool:
        return status.items() <= value_at(plane, "status", default={}).items()

    found = await wait_for(client, PLANES, name, until=is_reached, timeout=60)
    assert found is not None
    return found


def plane_client(process: Process, plane: Object) -> Client:
    entry = process.planes.get(plane_id(plane))
    assert entry is not None
    assert entry.plane is not None
    return client_of(entry.plane.opened)


async def wait_for_holder(client: Client, name: str, holder: str) -> Object:
    def is_reached(plane: Object | None) -> bool:
        status = value_at(plane, "status", default={})
        return (status.get("holder"), status.get("phase")) == (holder, "Open")

    found = await wait_for(client, PLANES, name, until=is_reached, timeout=60)
    assert found is not None
    return found


async def test_plane_moves_between_two_processes_of_a_group(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("a", etcd, prefix, tmp_path) as a, process("b", etcd, prefix, tmp_path) as b:
        await a.client.create(PLANES, object_named("p") | {"spec": {"backend": "etcd", "process": "a"}})
        plane = await wait_for_holder(b.client, "p", "a")
        id = plane_id(plane)
        entry = a.planes.get(id)
        assert entry is not None
        assert entry.plane is not None
        await client_of(entry.plane.opened).create(CONFIGMAPS, object_named("kept", "default"))
        await b.client.patch(PLANES, object_named("p"), {"spec": {"process": "b"}})
        await wait_for_holder(a.client, "p", "b")
        assert a.planes.get(id) is None
        moved = b.planes.get(id)
        assert moved is not None
        assert moved.plane is not None
        assert await client_of(moved.plane.opened).get(CONFIGMAPS, "kept", "default")
        leases = {name_of(each) for each in await a.client.list(LEASES, "tapestry-system")}
        assert leases == {"planes-a", "planes-b"}
        elections = await a.client.list(LEASES, "kube-system")
        assert [name_of(each) for each in elections] == ["controlplane"], "controllers of the management API run once"
        await a.client.delete(PLANES, await a.client.get(PLANES, "p"))
        await wait_for(b.client, PLANES, "p", until=lambda plane: plane is None, timeout=60)
    async with EtcdClient([etcd.url], Certificates()) as client:
        assert [page async for _, page in all_keys(client, f"{prefix}/planes")] == [[]]


async def test_plane_moves_to_its_own_process_and_back(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with (
        process("shared", etcd, prefix, tmp_path) as shared,
        process("alone", etcd, prefix, tmp_path, named_only=True) as alone,
    ):
        for number in range(6):
            await shared.client.create(PLANES, object_named(f"p{number}") | {"spec": {"backend": "etcd"}})
        planes = [await wait_for_holder(shared.client, f"p{number}", "shared") for number in range(6)]
        assert not list(alone.planes), "no plane without its name goes there"
        id = plane_id(planes[0])
        for turn, (here, there, name) in enumerate(((shared, alone, "alone"), (alone, shared, "shared"))):
            entry = here.planes.get(id)
            assert entry is not None
            assert entry.plane is not None
            await client_of(entry.plane.opened).create(CONFIGMAPS, object_named(f"made-{turn}", "default"))
            before = files_of(entry.config)
            await here.client.patch(PLANES, object_named("p0"), {"spec": {"process": name}})
            await wait_for_holder(there.client, "p0", name)
            assert here.planes.get(id) is None
            moved = there.planes.get(id)
            assert moved is not None
            assert moved.plane is not None
            assert await client_of(moved.plane.opened).get(CONFIGMAPS, f"made-{turn}", "default")
            assert files_of(moved.config)["ca.key"] == before["ca.key"]
        assert (await shared.client.get(PLANES, "p0"))["status"]["epoch"] == 3


async def test_plane_returns_to_its_own_process_after_a_restart(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("shared", etcd, prefix, tmp_path) as shared:
        async with process("alone", etcd, prefix, tmp_path, named_only=True):
            await shared.client.create(PLANES, object_named("p") | {"spec": {"backend": "etcd", "process": "alone"}})
            await wait_for_holder(shared.client, "p", "alone")
        async with process("alone", etcd, prefix, tmp_path, named_only=True) as again:
            id = plane_id(await again.client.get(PLANES, "p"))
            await wait_for_epoch(shared.client, "p", 2)
        assert shared.planes.get(id) is None


async def wait_for_epoch(client: Client, name: str, epoch: int) -> None:
    def is_reached(plane: Object | None) -> bool:
        return value_at(plane, "status", "epoch") == epoch

    await wait_for(client, PLANES, name, until=is_reached, timeout=60)


async def test_plane_is_taken_back_in_a_later_epoch(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    """A management API that was restored from a backup has older epochs than the planes."""
    async with process("a", etcd, prefix, tmp_path) as a:
        plane = await create_plane(a, "p")
        await plane_client(a, plane).create(CONFIGMAPS, object_named("kept", "default"))
        await write_epoch(etcd, f"{prefix}/planes/{plane_id(plane)}", 20)
        plane = await wait_for_status(a.client, "p", phase="Open", epoch=21)
        assert await plane_client(a, plane).get(CONFIGMAPS, "kept", "default")


async def write_epoch(etcd: Etcd, prefix: str, epoch: int) -> None:
    async with EtcdClient([etcd.url], Certificates()) as client:
        current, _ = await client.get(f"{prefix}/epoch".encode())
        await client.put(current.path, b"%d" % epoch, current.revision, 0)


async def test_plane_without_its_prefix_does_not_open_empty(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("a", etcd, prefix, tmp_path) as a:
        plane = await create_plane(a, "p")
    async with EtcdClient([etcd.url], Certificates()) as client:
        root = f"{prefix}/planes/{plane_id(plane)}"
        await client.delete_range(f"{root}/".encode(), f"{root}0".encode())
    async with process("a", etcd, prefix, tmp_path) as a:
        failed = await wait_for_status(a.client, "p", phase="Failed")
        assert f"there is no plane below {root} in etcd" in failed["status"]["message"]
        await a.client.delete(PLANES, failed)
        await wait_for(a.client, PLANES, "p", until=lambda plane: plane is None, timeout=60)


# -- copies


@pytest.mark.parametrize("state", ["open here", "suspended", "held by another process"])
async def test_plane_in_etcd_is_copied(etcd: Etcd, prefix: str, tmp_path: Path, state: str) -> None:
    async with process("a", etcd, prefix, tmp_path) as a, process("b", etcd, prefix, tmp_path) as b:
        source = await create_plane(a, "source", process="a")
        client = plane_client(a, source)
        for number in range(600):  # more than a page
            await client.create(CONFIGMAPS, object_named(f"c{number}", "default"))
        identity, ca = await client.get(NAMESPACES, "kube-system"), ca_of(tmp_path / "a", source)
        if state == "suspended":
            await a.client.patch(PLANES, object_named("source"), {"spec": {"state": "Suspended"}})
            await wait_for_status(a.client, "source", phase="Suspended")
        target = "b" if state == "held by another process" else "a"
        copy = await create_plane(a, "copy", copyOf="source", process=target)
        copied = plane_client(b if target == "b" else a, copy)
        found = {name_of(each) for each in await copied.list(CONFIGMAPS, "default")}
        assert {f"c{number}" for number in range(600)} <= found
        assert uid_of(await copied.get(NAMESPACES, "kube-system")) != uid_of(identity)
        assert ca_of(tmp_path / target, copy) != ca


def ca_of(folder: Path, plane: Object) -> bytes:
    return (folder / "planes" / plane_id(plane) / "pki" / "ca.crt").read_bytes()


@pytest.mark.parametrize(("source", "target"), [("file", "etcd"), ("etcd", "file"), ("memory", "etcd")])
async def test_plane_is_copied_to_another_backend(
    etcd: Etcd, prefix: str, tmp_path: Path, source: str, target: str
) -> None:
    async with process("a", etcd, prefix, tmp_path) as a:
        client = plane_client(a, await create_plane(a, "source", backend=source))
        await client.create(CONFIGMAPS, {**object_named("c", "default"), "data": {"k": "v"}})
        copied = plane_client(a, await create_plane(a, "copy", copyOf="source", backend=target))
        assert (await copied.get(CONFIGMAPS, "c", "default"))["data"] == {"k": "v"}


async def test_incomplete_copy_is_made_again(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("a", etcd, prefix, tmp_path) as a:
        client = plane_client(a, await create_plane(a, "source"))
        await client.create(CONFIGMAPS, object_named("c", "default"))
        await a.client.create(  # no process of this name
            PLANES, object_named("copy") | {"spec": {"backend": "etcd", "copyOf": "source", "process": "later"}}
        )
        root = f"{prefix}/planes/{plane_id(await a.client.get(PLANES, 'copy'))}"
        stray = msgspec.json.encode({**object_named("stray", "default"), "apiVersion": "v1", "kind": "ConfigMap"})
        async with EtcdClient([etcd.url], Certificates()) as raw:
            for path, value in (("epoch", b"5"), ("configmaps/default/stray", stray), ("sealed/pki/ca.key", b"stale")):
                assert (await raw.put(f"{root}/{path}".encode(), value, 0, 0))[0]
        await a.client.patch(PLANES, object_named("copy"), {"spec": {"process": "a"}})
        copy = await wait_for_status(a.client, "copy", phase="Open")
        assert copy["status"]["epoch"] == 6, "a process that still copies in epoch 5 cannot write any more"
        copied = plane_client(a, copy)
        assert await copied.get(CONFIGMAPS, "c", "default")
        assert await copied.find(CONFIGMAPS, "stray", "default") is None


async def test_copy_of_an_incomplete_plane_waits(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("a", etcd, prefix, tmp_path) as a:
        spec = {"backend": "etcd", "process": "later"}
        source = await a.client.create(PLANES, object_named("source") | {"spec": spec})
        root = f"{prefix}/planes/{plane_id(source)}"
        obj = msgspec.json.encode({**object_named("c", "default"), "apiVersion": "v1", "kind": "ConfigMap"})
        async with EtcdClient([etcd.url], Certificates()) as raw:
            await raw.put(f"{root}/configmaps/default/c".encode(), obj, 0, 0)
        await a.client.create(PLANES, object_named("copy") | {"spec": {"backend": "etcd", "copyOf": "source"}})
        failed = await wait_for_status(a.client, "copy", phase="Failed")
        assert failed["status"]["message"] == "spec.copyOf: plane 'source' has no data yet"
        await a.client.patch(PLANES, object_named("source"), {"spec": {"process": "a"}})
        await wait_for_status(a.client, "copy", phase="Open")


# -- leftovers


async def test_only_incomplete_planes_without_a_record_are_removed(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with process("a", etcd, prefix, tmp_path) as a:
        known, lost = [plane_id(await create_plane(a, name)) for name in ("known", "lost")]
        await a.client.patch(PLANES, object_named("lost"), {"metadata": {"finalizers": None}})
        await a.client.delete(PLANES, object_named("lost"))
        async with EtcdClient([etcd.url], Certificates()) as raw:
            for key in ("claimed/epoch", "halfcopied/epoch", "halfcopied/configmaps/default/c", "halfcopied/sealed/x"):
                await raw.put(f"{prefix}/planes/{key}".encode(), b"3", 0, 0)
            await raw.put(f"{prefix}/planes-of-others/x/epoch".encode(), b"3", 0, 0)
            for backend, others in (("file", {"claimed", "halfcopied"}), ("etcd", set())):
                config = PlanesConfig(backend=backend, etcd=EtcdConfig(servers=[etcd.url], prefix=prefix))
                await remove_etcd_leftovers(config, a.client)
                assert set(await find_prefixes(planes_prefix(config))) == {known, lost, *others}
            assert (await raw.get(f"{prefix}/planes-of-others/x/epoch".encode()))[0].value == b"3"


async def test_start_removes_incomplete_planes(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    settings = EtcdConfig(servers=[etcd.url], prefix=prefix)
    config = PlanesConfig(data=str(tmp_path), name="here", address="127.0.0.1:0", backend="etcd", etcd=settings)
    async with EtcdClient([etcd.url], Certificates()) as raw:
        await raw.put(f"{prefix}/planes/halfcopied/configmaps/default/c".encode(), b"3", 0, 0)
    assert await find_prefixes(planes_prefix(config)) == ["halfcopied"]
    async with run_planes(config, lambda _: {}), asyncio.timeout(20):
        while await find_prefixes(planes_prefix(config)):
            pass
