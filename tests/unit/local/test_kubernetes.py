"""Finding and starting a control plane, without a real one."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import kube_assets
from tapestry.local.kubernetes import (
    AssetsMissing,
    ControlPlane,
    ControlPlaneFailed,
    assets_folder,
    find_assets,
    free_ports,
)


@pytest.mark.parametrize(
    "environ",
    [{}, {"XDG_CACHE_HOME": "/elsewhere"}, {"KUBEBUILDER_ASSETS": "/opt/kubebuilder"}, {"KUBEBUILDER_ASSETS": ""}],
)
def test_programs_are_found_where_the_build_puts_them(environ: Mapping[str, str]) -> None:
    assert assets_folder(environ) == kube_assets.assets_folder(environ)


def test_missing_programs_are_named_with_advice(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    with pytest.raises(AssetsMissing) as caught:
        find_assets({"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert str(caught.value) == (
        f"no kube-apiserver, kubectl in {tmp_path}: run make kube-assets (needs Go 1.24+), or set KUBEBUILDER_ASSETS"
    )


def test_ports_differ() -> None:
    assert len(set(free_ports(50))) == 50


def test_exited_program_is_reported_with_log_and_stopped(tmp_path: Path) -> None:
    etcd = tmp_path / "etcd"
    etcd.write_text("#!/bin/sh\necho the disk is on fire\nexit 7\n")
    etcd.chmod(0o755)
    plane = ControlPlane(tmp_path / "plane", tmp_path)
    with pytest.raises(ControlPlaneFailed, match=r"(?s)^etcd exited with 7; the end of .*: *\nthe disk is on fire\n"):
        plane.start()
    assert plane.pids() == {}


def test_running_component_cannot_be_launched_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="started control plane"):
        ControlPlane(tmp_path, tmp_path).launch("etcd")
