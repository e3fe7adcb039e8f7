"""Errors of `tapestry up`: each names a remedy, and nothing is changed."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .worlds import TAPESTRY, TIMEOUT_SECONDS, running_world, starting_world

pytestmark = pytest.mark.timeout(300)  # worlds start and end within it, on a shared machine
SMALL = ("--clusters", "1", "--nodes", "1")


def output_of_failure(folder: Path, *flags: str, code: int = 1, **variables: str) -> str:
    """Run `tapestry up`, expect it to fail with `code`, and return its output."""
    with starting_world(folder, *flags, **variables) as world:
        output, _ = world.process.communicate(timeout=TIMEOUT_SECONDS)
    assert world.process.returncode == code, output
    assert "Traceback" not in output
    return output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--clusters", "0"), "0 is not in the range x>=1"),
        (("--nodes", "-1"), "-1 is not in the range 0<=x<=5000"),
        (("--nodes", "many"), "'many' is not a valid integer"),
    ],
)
def test_invalid_numbers_are_rejected(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    assert words in output_of_failure(tmp_path / "world", *flags, code=2)
    assert not (tmp_path / "world").exists()


def test_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert "contains other files (thesis.tex); choose another folder with --data" in output_of_failure(tmp_path)
    done = subprocess.run(
        [TAPESTRY, "down", "--data", tmp_path, "--purge"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "thesis.tex" in done.stderr) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_unwritable_folder_is_reported() -> None:
    assert "choose another folder with --data" in output_of_failure(Path("/proc/tapestry"))


def test_world_with_unknown_layout_is_not_touched(tmp_path: Path) -> None:
    record = json.dumps({"layout": 99})
    (tmp_path / "world.json").write_text(record)
    assert "layout 99 is not supported" in output_of_failure(tmp_path)
    assert (tmp_path / "world.json").read_text() == record


def test_missing_kubernetes_binaries_error_suggests_make_target(tmp_path: Path) -> None:
    output = output_of_failure(tmp_path / "world", "--real-kubernetes", KUBEBUILDER_ASSETS=str(tmp_path))
    assert "kube-controller-manager" in output
    assert "make kube-assets" in output
    assert not (tmp_path / "world").exists()


@pytest.fixture(scope="module")
def stopped_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a world that ran and was stopped."""
    folder = tmp_path_factory.mktemp("up") / "world"
    with running_world(folder, *SMALL):
        second = subprocess.run(
            [TAPESTRY, "up", "--data", folder], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        assert second.returncode == 1
        assert "`tapestry down` stops it" in second.stderr
    return folder


def test_port_in_use_is_reported_and_nothing_lost(stopped_world: Path) -> None:
    port = json.loads((stopped_world / "cluster-1" / "cluster.json").read_text())["port"]
    with socket.create_server(("127.0.0.1", port)):
        output = output_of_failure(stopped_world)
    assert f"('127.0.0.1', {port}): address already in use" in output
    assert "stop the process that uses it" in output
    with running_world(stopped_world) as world:
        assert "virtual nodes" in world.output


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """File system of 1 MiB, too small for a world."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_fails_and_start_works_with_space(full_disk: Path) -> None:
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    output = output_of_failure(full_disk / "world", *SMALL)
    assert "No space left on device" in output
    subprocess.run(["mount", "-o", "remount,size=64m", full_disk], check=True)
    with running_world(full_disk / "world", *SMALL) as world:
        assert "virtual nodes" in world.output
