"""Command, ports and start of the lifecycle service of a world."""

import asyncio
from pathlib import Path

import pytest

from tapestry.kube.names import dns_label_error
from tapestry.local import world_service
from tapestry.local.world_folder import SERVICE_FOLDER, WorldError
from tapestry.local.world_service import WorldService
from tapestry.process.supervised_processes import SupervisedProcess


def test_ports_are_chosen_once(tmp_path: Path) -> None:
    service = WorldService(tmp_path / SERVICE_FOLDER)
    assert len(set(service.ports())) == 3
    assert service.command() == service.command()


def test_unreadable_ports_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("[1, 2]")
    with pytest.raises(WorldError, match="delete it"):
        WorldService(tmp_path).ports()


def test_service_that_ends_is_an_error(tmp_path: Path) -> None:
    service, process = WorldService(tmp_path), SupervisedProcess(tmp_path, ["false"], exit_message="exited with 1")
    with pytest.raises(WorldError, match=r"exited with 1; its log is .*log"):
        asyncio.run(service.wait(process))


def test_no_cluster_has_the_name_of_the_folder() -> None:
    assert dns_label_error(SERVICE_FOLDER)


def test_missing_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert world_service.has_service_packages()
    monkeypatch.setattr(world_service, "PACKAGES", ("missing.package",))
    assert not world_service.has_service_packages()
