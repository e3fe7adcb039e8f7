"""A process that holds planes: from records to kubeconfigs, copies and restarts."""

from pathlib import Path

import pytest
import yaml

from tapestry.apis.planes import PLANES, plane_id
from tapestry.apiserver.core.store import StorageError
from tapestry.client.transport import Request
from tapestry.client.watch import wait_for
from tapestry.kube.errors import Invalid, Unauthorized, Unavailable
from tapestry.kube.objects import name_of, object_named, uid_of
from tapestry.kube.resources import CONFIGMAPS, NAMESPACES
from tapestry.planes.plane_set import PlaneState

from .plane_processes import (
    TIMEOUT,
    client_with,
    create_plane,
    kubeconfig_of,
    running_planes,
    wait_for_phase,
    wait_for_status,
)


@pytest.mark.parametrize("by_path", [False, True])
async def test_kubeconfig_of_a_plane_works(tmp_path: Path, by_path: bool) -> None:
    async with running_planes(tmp_path / "data") as (process, management):
        plane = await create_plane(management, "one")
        assert plane["status"]["address"] == f"{process.address}/planes/{plane_id(plane)}"
        file = await kubeconfig_of(management, "one", tmp_path / "one", byPath=by_path)
        cluster = yaml.safe_load(file.read_text())["clusters"][0]["cluster"]
        assert ("tls-server-name" in cluster) is not by_path
        async with client_with(file) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
        assert plane["status"]["objects"] > 0
        assert plane["status"]["bytes"] > 0


async def test_credentials_of_a_plane_do_not_work_elsewhere(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        for name in ("one", "two"):
            await create_plane(management, name)
        first = yaml.safe_load((await kubeconfig_of(management, "one", tmp_path / "one")).read_text())
        for other in (await kubeconfig_of(management, "two", tmp_path / "two"), tmp_path / "data" / "kubeconfig"):
            mixed = yaml.safe_load(other.read_text())
            mixed["users"][0]["user"] = first["users"][0]["user"]
            (tmp_path / "mixed").write_text(yaml.safe_dump(mixed))
            async with client_with(tmp_path / "mixed") as client:
                with pytest.raises(Unauthorized):
                    await client.list(NAMESPACES)


async def test_user_without_groups_has_no_management_rights(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one", user="eve", groups=[])) as eve:
            response = await eve.transport.send(Request("GET", "/api/v1/namespaces"))
        assert response.status == 403


async def test_copy_has_the_objects_but_another_identity(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
            identity = uid_of(await client.get(NAMESPACES, "kube-system"))
        await create_plane(management, "two", copyOf="one")
        async with client_with(await kubeconfig_of(management, "two", tmp_path / "two")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")
            assert uid_of(await client.get(NAMESPACES, "kube-system")) != identity
        assert name_of(await management.get(PLANES, "one")) == "one"


async def test_copy_outlives_its_source(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
        await create_plane(management, "two", copyOf="one")
        await management.delete(PLANES, object_named("one"))
        await wait_for(management, PLANES, "one", until=lambda found: found is None, timeout=TIMEOUT)
    async with running_planes(tmp_path / "data") as (_, management):
        await wait_for_status(management, "two", epoch=2, phase="Open")
        async with client_with(await kubeconfig_of(management, "two", tmp_path / "two")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")


async def test_open_plane_in_memory_is_copied_to_folder(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one", backend="memory")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
        await create_plane(management, "two", copyOf="one")
        async with client_with(await kubeconfig_of(management, "two", tmp_path / "two")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")
        await management.patch(PLANES, object_named("one"), {"spec": {"state": "Suspended"}})
        await wait_for_phase(management, "one", "Suspended")
        await management.create(PLANES, object_named("three") | {"spec": {"copyOf": "one"}})
        failed = await wait_for_phase(management, "three", "Failed")
        assert "only its process can copy it while it is open" in failed["status"]["message"]
        await management.create(PLANES, object_named("four") | {"spec": {"copyOf": "two", "backend": "memory"}})
        failed = await wait_for_phase(management, "four", "Failed")
        assert "a plane with the backend memory cannot be a copy" in failed["status"]["message"]


async def test_plane_without_its_data_fails_instead_of_opening_empty(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        folder = tmp_path / "data" / "planes" / plane_id(await create_plane(management, "one"))
    folder.rename(tmp_path / "elsewhere")
    async with running_planes(tmp_path / "data") as (_, management):
        failed = await wait_for_phase(management, "one", "Failed")
        assert f"there is no plane in {folder}" in failed["status"]["message"]
        assert not folder.exists()
        (tmp_path / "elsewhere").rename(folder)
        await wait_for_phase(management, "one", "Open")


async def test_changed_limits_apply_from_the_start_of_the_closing(tmp_path: Path) -> None:
    """A request opens a plane as soon as it is closed, maybe before the controller does."""
    async with running_planes(tmp_path / "data") as (process, management):
        entry = process.plane_set.get(plane_id(await create_plane(management, "one")))
        assert entry is not None
        seen: list[tuple[PlaneState, int]] = []
        process.plane_set.on_change(lambda entry: seen.append((entry.state, entry.config.max_watches)))
        changed = await management.patch(PLANES, object_named("one"), {"spec": {"limits": {"watches": 7}}})
        await wait_for_status(management, "one", observedGeneration=changed["metadata"]["generation"], phase="Open")
        assert seen == [(PlaneState.ASLEEP, 7), (PlaneState.OPENING, 7), (PlaneState.OPEN, 7)]


async def test_changed_limits_apply_to_a_sleeping_plane(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (process, management):
        entry = process.plane_set.get(plane_id(await create_plane(management, "one", idleSeconds=3600)))
        assert entry is not None
        await process.plane_set.close(entry, PlaneState.ASLEEP)
        changed = await management.patch(PLANES, object_named("one"), {"spec": {"limits": {"watches": 7}}})
        await wait_for_status(management, "one", observedGeneration=changed["metadata"]["generation"], phase="Asleep")
        assert entry.config.max_watches == 7


@pytest.mark.parametrize("size", ["-1", "1" * 33, "many"])
async def test_invalid_size_is_rejected(tmp_path: Path, size: str) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        with pytest.raises(Invalid, match=r"spec\.limits\.bytes"):
            await management.create(PLANES, object_named("one") | {"spec": {"limits": {"bytes": size}}})


async def test_planes_are_open_again_after_a_restart(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            await client.create(CONFIGMAPS, object_named("mine", "default"))
    async with running_planes(tmp_path / "data") as (_, management):
        await wait_for_status(management, "one", epoch=2, phase="Open")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            assert await client.get(CONFIGMAPS, "mine", "default")


async def test_restart_revokes_the_token_of_the_last_start(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data"):
        before = (tmp_path / "data" / "admin-token").read_text()
    async with running_planes(tmp_path / "data") as (_, management):
        assert await management.list(PLANES) == []
        (tmp_path / "data" / "admin-token").write_text(before)
        async with client_with(tmp_path / "data" / "kubeconfig") as former:
            with pytest.raises(Unauthorized):
                await former.list(PLANES)


async def test_suspended_plane_tells_its_reason_until_it_is_resumed(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        await create_plane(management, "one")
        async with client_with(await kubeconfig_of(management, "one", tmp_path / "one")) as client:
            suspended = {"state": "Suspended", "suspendReason": "over budget"}
            await management.patch(PLANES, object_named("one"), {"spec": suspended})
            await wait_for_phase(management, "one", "Suspended")
            with pytest.raises(Unavailable, match="over budget"):
                await client.get(NAMESPACES, "default")
            await management.patch(PLANES, object_named("one"), {"spec": {"state": "Open"}})
            await wait_for_phase(management, "one", "Open")
            assert await client.get(NAMESPACES, "default")


async def test_deleted_plane_leaves_no_files(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data") as (_, management):
        plane = await create_plane(management, "one")
        assert (tmp_path / "data" / "planes" / plane_id(plane)).exists()
        await management.delete(PLANES, object_named("one"))
        await wait_for(management, PLANES, "one", until=lambda found: found is None, timeout=TIMEOUT)
        assert list((tmp_path / "data" / "planes").iterdir()) == []


async def test_start_removes_what_killed_restores_have_left(tmp_path: Path) -> None:
    leftovers = [tmp_path / "data" / ".restore-x", tmp_path / "data" / "planes" / ".restore-y"]
    for each in leftovers:
        each.mkdir(parents=True)
    async with running_planes(tmp_path / "data"):
        assert not any(each.exists() for each in leftovers)


async def test_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with running_planes(tmp_path / "data"):
        with pytest.raises(StorageError, match="another process"):
            async with running_planes(tmp_path / "data"):
                pass
