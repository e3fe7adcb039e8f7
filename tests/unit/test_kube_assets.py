"""The build of the Kubernetes programs, with a shell script as the compiler."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kube_assets

SCRIPT = kube_assets.__file__
FOLDER = kube_assets.assets_folder({"XDG_CACHE_HOME": "."})

GO = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "half of it" > "$2"
{then}
echo "$3" > "$2"
"""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Fake compiler, the only program on PATH.  It writes the package name instead of a binary."""
    return compiler(tmp_path, then="")


def compiler(tmp_path: Path, then: str) -> Path:
    path = tmp_path / "bin" / "go"
    path.parent.mkdir(exist_ok=True)
    path.write_text(GO.format(then=then))
    path.chmod(0o755)
    return path


def command(tmp_path: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    """Arguments for subprocess."""
    environ = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path), **environ}
    return {"args": [sys.executable, SCRIPT, *arguments], "env": environ, "text": True}


def run(tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(tmp_path, *arguments, **environ), capture_output=True, check=False)


def built(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text().strip() for path in (tmp_path / FOLDER).iterdir() if path.name != ".lock"}


def test_every_program_is_built_once(tmp_path: Path, go: Path) -> None:
    first = run(tmp_path, "--nodes")
    assert first.returncode == 0
    assert "built kube-apiserver in 0 s" in first.stdout
    wanted = kube_assets.CONTROL_PLANE + kube_assets.NODE
    assert built(tmp_path) == {program.name: program.package for program in wanted}
    second = run(tmp_path, "--nodes")
    assert second.returncode == 0
    assert "building" not in second.stdout


def test_node_programs_are_built_on_request_only(tmp_path: Path, go: Path) -> None:
    assert run(tmp_path).returncode == 0
    assert built(tmp_path).keys() == {program.name for program in kube_assets.CONTROL_PLANE}
    assert run(tmp_path, "--nodes").returncode == 0
    assert built(tmp_path).keys() >= {"kube-apiserver", "kubelet", "kube-proxy"}


def test_clients_are_built_alone_on_request(tmp_path: Path, go: Path) -> None:
    assert run(tmp_path, "--clients").returncode == 0
    assert built(tmp_path).keys() == {"helm", "kwok", "metrics-server"}


def test_conformance_tests_are_built_with_kubectl_on_request(tmp_path: Path, go: Path) -> None:
    assert run(tmp_path, "--conformance").returncode == 0
    assert built(tmp_path) == {
        "agnhost": "k8s.io/kubernetes/test/images/agnhost",
        "e2e.test": "k8s.io/kubernetes/test/e2e",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    }


def test_built_programs_need_no_compiler(tmp_path: Path, go: Path) -> None:
    run(tmp_path)
    go.unlink()
    assert run(tmp_path).returncode == 0


def test_single_program_is_built_alone(tmp_path: Path, go: Path) -> None:
    assert run(tmp_path, "--only", "kubectl").returncode == 0
    assert built(tmp_path) == {"kubectl": "k8s.io/kubernetes/cmd/kubectl"}


def test_unknown_program_error_lists_known_ones(tmp_path: Path, go: Path) -> None:
    done = run(tmp_path, "--only", "kubectl,kubelot")
    assert done.returncode == 2
    assert "kubelot: not among kube-apiserver, etcd, kubectl" in done.stderr


def test_failed_build_leaves_no_program(tmp_path: Path) -> None:
    compiler(tmp_path, then="exit 4")
    done = run(tmp_path, "--only", "etcd")
    assert done.returncode == 1
    assert "etcd: `go build` ended with 4" in done.stdout
    assert "etcd" not in built(tmp_path)


def test_next_run_removes_leftovers_of_a_killed_run(tmp_path: Path) -> None:
    compiler(tmp_path, then="kill -s KILL $PPID; exit 1")
    assert run(tmp_path, "--only", "etcd").returncode < 0
    assert built(tmp_path) == {".etcd.unfinished": "half of it"}
    compiler(tmp_path, then="")
    assert run(tmp_path, "--only", "kubectl").returncode == 0
    assert built(tmp_path).keys() == {"kubectl"}


def test_second_run_waits_for_the_first_and_builds_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    compiler(tmp_path, then=f'read -r _ < "{tmp_path}/gate"')
    etcd = command(tmp_path, "--only", "etcd")
    with (
        subprocess.Popen(**etcd, stdout=subprocess.DEVNULL) as first,
        open(tmp_path / "gate", "w") as gate,  # returns once the first compiler reads it
        subprocess.Popen(**etcd, stdout=subprocess.PIPE) as second,
    ):
        assert second.stdout is not None
        assert "another run is building" in second.stdout.readline()
        gate.write("\n")
        gate.close()
        assert second.stdout.read() == ""
        assert first.wait() == second.wait() == 0


def test_missing_go_is_reported_in_one_line(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == kube_assets.GO_ABSENT
    assert done.stdout.count("\n") == 1
    assert "install Go 1.24+, or set KUBEBUILDER_ASSETS" in done.stdout


def test_configured_assets_take_precedence(tmp_path: Path, go: Path) -> None:
    done = run(tmp_path, KUBEBUILDER_ASSETS="/opt/kubebuilder")
    assert done.returncode == 0
    assert "nothing is built" in done.stdout
    assert run(tmp_path, "--print-dir", KUBEBUILDER_ASSETS="/opt/kubebuilder").stdout == "/opt/kubebuilder\n"
    assert not (tmp_path / FOLDER).exists()
