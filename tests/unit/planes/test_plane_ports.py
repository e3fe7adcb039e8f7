"""Ports of single planes: chosen from a range, kept in the records, and free again with the plane."""

import random
import socket
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tapestry.apis.planes import PLANES, plane_id
from tapestry.client.client import Client
from tapestry.client.watch import wait_for
from tapestry.controller.store import Store
from tapestry.kube.objects import Object, object_named, value_at
from tapestry.planes import plane_ports
from tapestry.planes.plane_ports import PlanePorts, PortReconciler

from .plane_processes import (
    TIMEOUT,
    call,
    create_plane,
    is_accepted,
    issue,
    running_planes,
    wait_until_open,
)


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_ports, "RETRY_SECONDS", 0.05)


@pytest.fixture
def first() -> int:
    """First of three consecutive free ports, below those that the kernel gives to other programs."""
    while True:
        port = random.randrange(20_000, 32_000)
        if all(is_free(each) for each in range(port, port + 3)):
            return port


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def create(management: Client, name: str) -> Object:
    """Create a plane, and return its record when its port is decided."""
    await create_plane(management, name, controllers=["none"])
    return await wait_for_port(management, name)


async def wait_for_port(management: Client, name: str) -> Object:
    def is_decided(plane: Object | None) -> bool:
        return any(value_at(plane, "status", field) is not None for field in ("port", "portMessage"))

    found = await wait_for(management, PLANES, name, until=is_decided, timeout=TIMEOUT)
    assert found is not None
    return found


@pytest.mark.parametrize("client_certificate", [False, True])
async def test_kubeconfig_for_own_port_needs_no_server_name(
    tmp_path: Path, first: int, client_certificate: bool
) -> None:
    async with running_planes(tmp_path / "data", port_range=f"{first}-{first + 1}") as (_, management):
        plane = await create(management, "one")
        assert plane["status"]["port"] == first
        await issue(management, tmp_path / "admin", ownPort=True, clientCertificate=client_certificate)
        cluster = yaml.safe_load((tmp_path / "admin").read_text())["clusters"][0]["cluster"]
        assert cluster["server"] == f"https://127.0.0.1:{first}"
        assert "tls-server-name" not in cluster
        assert await is_accepted(tmp_path / "admin")


async def test_planes_keep_their_ports_after_a_restart(tmp_path: Path, first: int) -> None:
    ports = f"{first}-{first + 2}"
    async with running_planes(tmp_path / "data", port_range=ports) as (_, management):
        planes = [await create(management, name) for name in ("zero", "one", "two")]
        assert [each["status"]["port"] for each in planes] == [first, first + 1, first + 2]
        await issue(management, tmp_path / "admin", ownPort=True)
        await management.delete(PLANES, object_named("zero"))
        await wait_for(management, PLANES, "zero", until=lambda plane: plane is None, timeout=TIMEOUT)
    async with running_planes(tmp_path / "data", port_range=ports) as (process, management):
        await wait_until_open(process, planes[1])
        assert (await create(management, "three"))["status"]["port"] == first
        await issue(management, tmp_path / "again", ownPort=True)
        assert await is_accepted(tmp_path / "admin")
        assert (await management.get(PLANES, "two"))["status"]["port"] == first + 2


async def test_former_port_is_closed_until_its_plane_is_known() -> None:
    status = {"id": "one-id", "holder": "here", "port": 7001}
    record, opened, known = {"metadata": {"name": "one"}, "status": status}, list[int](), set[str]()

    async def listen(_: str, port: int, __: str) -> Any:
        opened.append(port)

    planes: Any = SimpleNamespace(store=Store[Object]())
    planes.store.put("one", record)
    ports, client = PlanePorts(listen, "127.0.0.1", range(7000, 7003)), Client(cast(Any, None))
    reconciler = PortReconciler("here", ports, planes, client, lambda _: True, known.__contains__)
    await reconciler.reconcile("one")
    assert opened == []
    known.add(plane_id(record))
    await reconciler.reconcile("one")
    assert opened == [7001]


async def test_port_is_free_again_when_its_plane_is_deleted(tmp_path: Path, first: int) -> None:
    async with running_planes(tmp_path / "data", port_range=f"{first}-{first}") as (process, management):
        await create(management, "one")
        waiting = await create(management, "two")
        assert waiting["status"]["portMessage"].startswith(f"no port from {first} to {first} is free")
        assert (await wait_until_open(process, waiting)).plane is not None
        status, error = await call(management, "kubeconfig", "two", ownPort=True)
        assert (status, "portMessage" in error["message"]) == (503, True)
        await management.delete(PLANES, object_named("one"))

        def has_port(plane: Object | None) -> bool:
            return value_at(plane, "status", "port") == first

        served = await wait_for(management, PLANES, "two", until=has_port, timeout=TIMEOUT)
        assert served is not None
        assert "portMessage" not in served["status"]


async def test_new_plane_skips_ports_of_other_programs(tmp_path: Path, first: int) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        async with running_planes(tmp_path / "data", port_range=f"{first}-{first + 2}") as (_, management):
            assert (await create(management, "one"))["status"]["port"] == first + 1


async def test_plane_waits_for_its_port_in_use(tmp_path: Path, first: int) -> None:
    ports = f"{first}-{first + 2}"
    async with running_planes(tmp_path / "data", port_range=ports) as (_, management):
        await create(management, "one")
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", first))
        other.listen()
        async with running_planes(tmp_path / "data", port_range=ports) as (_, management):

            def is_waiting(plane: Object | None) -> bool:
                return value_at(plane, "status", "portMessage") is not None

            waiting = await wait_for(management, PLANES, "one", until=is_waiting, timeout=TIMEOUT)
            assert waiting is not None
            assert waiting["status"]["port"] == first
            other.close()
            await wait_for(management, PLANES, "one", until=lambda plane: not is_waiting(plane), timeout=TIMEOUT)
            assert not is_free(first)


async def test_process_without_range_removes_ports(tmp_path: Path, first: int) -> None:
    async with running_planes(tmp_path / "data", port_range=f"{first}-{first}") as (_, management):
        plane = await create(management, "one")
    async with running_planes(tmp_path / "data") as (_, management):

        def has_no_port(plane: Object | None) -> bool:
            return value_at(plane, "status", "port") is None

        await wait_for(management, PLANES, "one", until=has_no_port, timeout=TIMEOUT)
        assert is_free(first)
        assert plane_id(await management.get(PLANES, "one")) == plane_id(plane)


@pytest.mark.parametrize("selected_by", ["ownPort", "byPath", "clientCertificate"])
async def test_address_of_the_listener_is_in_all_certificates(tmp_path: Path, first: int, selected_by: str) -> None:
    options = {"address": "127.0.0.2:0", "port_range": f"{first}-{first + 2}"}
    async with running_planes(tmp_path / "data", **options) as (_, management):
        await create(management, "one")
        await issue(management, tmp_path / "admin", **{selected_by: True})
        cluster = yaml.safe_load((tmp_path / "admin").read_text())["clusters"][0]["cluster"]
        assert cluster["server"].startswith("https://127.0.0.2:")
        assert await is_accepted(tmp_path / "admin")
