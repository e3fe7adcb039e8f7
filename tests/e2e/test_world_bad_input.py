"""What `tapestry up` says where it cannot do what it is told: one line, what to do, and nothing is touched."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .worlds import LONGEST, TAPESTRY, started, up

pytestmark = pytest.mark.timeout(300)  # worlds start and end in here, on a machine that others use, too
SMALL = ("--clusters", "1", "--nodes", "1")


def told(folder: Path, *flags: str, code: int = 1, **variables: str) -> str:
    """What is said before it ends."""
    with started(folder, *flags, **variables) as world:
        said, _ = world.process.communicate(timeout=LONGEST)
    assert world.process.returncode == code, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--clusters", "0"), "0 is not in the range x>=1"),
        (("--nodes", "-1"), "-1 is not in the range 0<=x<=5000"),
        (("--nodes", "many"), "'many' is not a valid integer"),
    ],
)
def test_numbers_that_make_no_world_are_refused(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    assert words in told(tmp_path / "world", *flags, code=2)
    assert not (tmp_path / "world").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    assert "contains other files (thesis.tex); choose another folder with --data" in told(tmp_path)
    done = subprocess.run(
        [TAPESTRY, "down", "--data", tmp_path, "--purge"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "thesis.tex" in done.stderr) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_named() -> None:
    assert "choose another folder with --data" in told(Path("/proc/tapestry"))


def test_a_world_of_an_unknown_layout_is_left_alone(tmp_path: Path) -> None:
    record = json.dumps({"layout": 99})
    (tmp_path / "world.json").write_text(record)
    assert "layout 99 is not supported" in told(tmp_path)
    assert (tmp_path / "world.json").read_text() == record


def test_without_the_programs_of_kubernetes_it_is_said_where_they_come_from(tmp_path: Path) -> None:
    said = told(tmp_path / "world", "--real-kubernetes", KUBEBUILDER_ASSETS=str(tmp_path))
    assert "kube-controller-manager" in said
    assert "make kube-assets" in said
    assert not (tmp_path / "world").exists()


@pytest.fixture(scope="module")
def stopped_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world that has been, and was stopped."""
    folder = tmp_path_factory.mktemp("up") / "world"
    with up(folder, *SMALL):
        second = subprocess.run(
            [TAPESTRY, "up", "--data", folder], capture_output=True, text=True, timeout=LONGEST, check=False
        )
        assert second.returncode == 1
        assert "`tapestry down` stops it" in second.stderr
    return folder


def test_a_port_that_somebody_has_taken_is_named_and_nothing_is_lost(stopped_world: Path) -> None:
    port = json.loads((stopped_world / "cluster-1" / "cluster.json").read_text())["port"]
    with socket.create_server(("127.0.0.1", port)):
        said = told(stopped_world)
    assert f"('127.0.0.1', {port}): address already in use" in said
    assert "stop the process that uses it" in said
    with up(stopped_world) as world:
        assert "virtual nodes" in world.said


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that a world hardly fits into."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_an_error_and_with_room_the_world_comes_up(full_disk: Path) -> None:
    ballast = full_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    said = told(full_disk / "world", *SMALL)
    assert "No space left on device" in said
    subprocess.run(["mount", "-o", "remount,size=64m", full_disk], check=True)
    with up(full_disk / "world", *SMALL) as world:
        assert "virtual nodes" in world.said
