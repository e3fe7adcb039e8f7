"""Credentials of planes on a real etcd: changes survive restarts, wake-ups and moves, whoever makes them."""

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from tests.unit.planes.plane_processes import (
    call,
    create_plane,
    is_accepted,
    issue,
    running_planes,
    wait_for_status,
    wait_until_open,
)

from tapestry.apis.planes import PLANES, PlaneSpec, plane_id
from tapestry.apiserver.access import reloading_file
from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.access.ephemeral_tokens import create_token
from tapestry.apiserver.access.rotation import STAGED_CA, rotate_ca
from tapestry.apiserver.core.config import ApiServerConfig
from tapestry.apiserver.core.config import Etcd as EtcdConfig
from tapestry.apiserver.core.epochs import EpochFence
from tapestry.apiserver.core.store import StorageError
from tapestry.cli.main import main
from tapestry.client.client import Client
from tapestry.kube.errors import TransportError
from tapestry.kube.objects import Object, object_named
from tapestry.planes.app import PlaneProcess
from tapestry.planes.config import PlanesConfig, plane_server_config
from tapestry.planes.plane_data import PlaneHold, restore_keys, update_keys
from tapestry.planes.plane_set import PlaneState
from tapestry.planes.sealing import GroupKey, load_group_key

from .etcds import Etcd

HOUR = timedelta(hours=1)
KEY = GroupKey(b"k" * 32, "group.key")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files for changes on every request."""
    monkeypatch.setattr(reloading_file, "CHECK_INTERVAL", 0.0)


@pytest.fixture(scope="module")
def etcd(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(kube_assets, tmp_path_factory.mktemp("etcd")) as shared:
        yield shared


@pytest.fixture
def prefix() -> str:
    return f"/{secrets.token_hex(4)}"


@asynccontextmanager
async def running(
    etcd: Etcd, prefix: str, folder: Path, name: str = "a", later: timedelta = timedelta(0)
) -> AsyncIterator[tuple[PlaneProcess, Client]]:
    """Run a process of the group of this test."""
    options = {
        "name": name,
        "backend": "etcd",
        "etcd": EtcdConfig(servers=[etcd.url], prefix=prefix),
        "group_key": str(folder / "group.key"),
    }
    async with running_planes(folder / name, later=later, **options) as process:
        yield process


async def new_plane(management: Client, **spec: object) -> Object:
    return await create_plane(management, "one", backend="etcd", controllers=["none"], **spec)


def config_for(etcd: Etcd, prefix: str, folder: Path, plane: str = "plane") -> ApiServerConfig:
    planes = PlanesConfig(data=str(folder), etcd=EtcdConfig(servers=[etcd.url], prefix=prefix))
    return plane_server_config(planes, plane, PlaneSpec(backend="etcd"))


def at(process: PlaneProcess, kubeconfig: Path) -> Path:
    """Return the kubeconfig with the address of another process."""
    document = yaml.safe_load(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = process.address
    file = kubeconfig.with_suffix(".moved")
    file.write_text(yaml.safe_dump(document))
    return file


async def test_revocations_survive_a_restart(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with running(etcd, prefix, tmp_path) as (_, management):
        plane = await new_plane(management)
        token = await issue(management, tmp_path / "token")
        serial = await issue(management, tmp_path / "certificate", clientCertificate=True)
        for name in ("other", "eve"):
            await issue(management, tmp_path / name, user=name, groups=["system:masters"])
        for arguments in ({"token": token}, {"serial": serial}, {"user": "eve"}):
            assert await call(management, "revoke", **arguments) == (204, None)
    async with running(etcd, prefix, tmp_path) as (process, management):
        await wait_until_open(process, plane)
        assert await is_accepted(at(process, tmp_path / "other"))
        for name in ("token", "certificate", "eve"):
            assert not await is_accepted(at(process, tmp_path / name)), name
        listed = (await call(management, "credentials"))[1]
        assert [each["user"] for each in listed["tokens"]] == ["other"]
        assert {each.get("serial", each.get("user")) for each in listed["revokedCertificates"]} == {serial, "eve"}


async def test_sleeping_plane_keeps_a_revocation_when_it_wakes(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with running(etcd, prefix, tmp_path) as (process, management):
        plane = await new_plane(management)
        token = await issue(management, tmp_path / "token")
        await issue(management, tmp_path / "other")
        entry = process.plane_set.get(plane_id(plane))
        assert entry is not None
        await process.plane_set.close(entry, PlaneState.ASLEEP)
        assert await call(management, "revoke", token=token) == (204, None)
        assert entry.state is PlaneState.ASLEEP
        assert not await is_accepted(tmp_path / "token")
        assert await is_accepted(tmp_path / "other")
        assert entry.state is PlaneState.OPEN
        assert not await is_accepted(tmp_path / "token")


async def test_rotated_and_revoked_credentials_move_with_the_plane(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with (
        running(etcd, prefix, tmp_path, "a") as (_, management),
        running(etcd, prefix, tmp_path, "b") as (other, _),
    ):
        await new_plane(management, process="a")
        await issue(management, tmp_path / "before", clientCertificate=True)
        token = await issue(management, tmp_path / "token")
        status, result = await call(management, "rotate-ca", overlapSeconds=3600)
        assert status == 200
        assert (await call(management, "rotate-signing-key"))[0] == 200
        await issue(management, tmp_path / "after", clientCertificate=True)
        assert await call(management, "revoke", token=token) == (204, None)
        await management.patch(PLANES, object_named("one"), {"spec": {"process": "b"}})
        await wait_for_status(management, "one", holder="b", phase="Open")
        for name in ("before", "after"):
            assert await is_accepted(at(other, tmp_path / name)), name
        assert not await is_accepted(at(other, tmp_path / "token"))
        status, others_result = await call(management, "rotate-ca", overlapSeconds=0)
        assert (status, others_result != result) == (200, True), "the process that holds the plane answers"
        with pytest.raises(TransportError, match="certificate verify failed"):
            await is_accepted(at(other, tmp_path / "after"))


async def test_end_of_rotation_and_removal_of_tokens_reach_etcd(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    async with running(etcd, prefix, tmp_path) as (_, management):
        plane = await new_plane(management)
        await issue(management, tmp_path / "token", user="expired", seconds=60)
        assert (await call(management, "rotate-ca", overlapSeconds=60))[0] == 200
    async with running(etcd, prefix, tmp_path, later=timedelta(hours=1)) as (process, _):
        await wait_until_open(process, plane)
        copy = config_for(etcd, prefix, tmp_path / "copy", plane_id(plane))
        key = load_group_key(tmp_path / "group.key")
        await restore_keys(plane_id(plane), copy, PlaneHold(EpochFence(2, lambda: True), key))
    folder = Path(copy.file_rootpath)
    assert len(x509.load_pem_x509_certificates((folder / "pki" / "ca.crt").read_bytes())) == 1
    assert not (folder / "pki" / "retirements.json").exists()
    assert "expired" not in (folder / "tokens.json").read_text()


async def test_change_that_etcd_does_not_store_is_undone(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    config, is_valid = config_for(etcd, prefix, tmp_path), True
    folder = Path(config.file_rootpath)
    hold = PlaneHold(EpochFence(1, lambda: is_valid), KEY)
    await restore_keys("plane", config, hold)
    before = (folder / "pki" / "ca.crt").read_bytes()

    def rotate_and_lose_lease() -> None:
        nonlocal is_valid
        create_token(folder, "ada", (), HOUR, datetime.now(UTC))
        rotate_ca(folder, HOUR, datetime.now(UTC))
        is_valid = False

    with pytest.raises(StorageError, match="could not renew its Lease"):
        await update_keys("plane", config, hold, rotate_and_lose_lease)
    assert (folder / "pki" / "ca.crt").read_bytes() == before
    assert not (folder / "tokens.json").exists()


async def test_interrupted_rotation_does_not_replace_keys_of_another_process(
    etcd: Etcd, prefix: str, tmp_path: Path
) -> None:
    here, there = (config_for(etcd, prefix, tmp_path / name) for name in ("here", "there"))
    await restore_keys("plane", here, PlaneHold(EpochFence(1, lambda: True), KEY))
    staged = Path(here.file_rootpath) / "pki" / STAGED_CA
    CertificateAuthority(staged).certificate_pem()
    hold = PlaneHold(EpochFence(2, lambda: True), KEY)
    await update_keys("plane", there, hold, lambda: rotate_ca(Path(there.file_rootpath), HOUR, datetime.now(UTC)))
    await restore_keys("plane", here, PlaneHold(EpochFence(3, lambda: True), KEY))
    assert not staged.exists()
    certificates = [(Path(each.file_rootpath) / "pki" / "ca.crt").read_bytes() for each in (here, there)]
    assert certificates[0] == certificates[1]


async def test_serving_certificate_is_stored_only_with_its_key(etcd: Etcd, prefix: str, tmp_path: Path) -> None:
    here, there = (config_for(etcd, prefix, tmp_path / name) for name in ("here", "there"))
    folder = Path(here.file_rootpath)
    hold = PlaneHold(EpochFence(1, lambda: True), KEY)
    await restore_keys("plane", here, hold)
    certificate, key = CertificateAuthority(folder / "pki").server_certificate(["localhost"])
    valid = certificate.read_bytes(), key.read_bytes()
    key.write_bytes((folder / "pki" / "ca.key").read_bytes())
    for is_stored in (False, True):
        await update_keys("plane", here, hold, lambda: create_token(folder, "ada", (), HOUR, datetime.now(UTC)))
        await restore_keys("plane", there, hold)
        copies = [Path(there.file_rootpath) / "pki" / each.name for each in (certificate, key)]
        assert [each.exists() for each in copies] == [is_stored, is_stored]
        key.write_bytes(valid[1])
    assert tuple(each.read_bytes() for each in copies) == valid


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("token create --user ada", "tapestry planes kubeconfig NAME"),
        ("token revoke x", "tapestry planes revoke NAME --token ID"),
        ("certificate create --user ada", "tapestry planes kubeconfig NAME --client-certificate"),
        ("certificate revoke --user ada", "tapestry planes revoke NAME"),
        ("apiserver rotate-ca", "tapestry planes rotate-ca NAME"),
        ("apiserver rotate-signing-key", "tapestry planes rotate-signing-key NAME"),
    ],
)
async def test_folder_commands_refuse_copies_of_keys_in_etcd(
    etcd: Etcd, prefix: str, tmp_path: Path, command: str, advice: str
) -> None:
    config = config_for(etcd, prefix, tmp_path)
    await restore_keys("plane", config, PlaneHold(EpochFence(1, lambda: True), KEY))
    before = contents_of(Path(config.file_rootpath))
    result = CliRunner().invoke(main, [*command.split(), "--file-rootpath", config.file_rootpath])
    assert result.exit_code == 1
    assert f"`{advice}`" in result.output
    assert "plane plane" in result.output
    assert contents_of(Path(config.file_rootpath)) == before


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
