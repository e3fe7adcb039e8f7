"""Folder of a world: record, lock and foreign content."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapestry.local.world_folder import LAYOUT, WorldError, WorldFolder, WorldRecord


@pytest.fixture
def folder(tmp_path: Path) -> WorldFolder:
    return WorldFolder(tmp_path / "world")


def test_world_keeps_its_requested_size(folder: WorldFolder) -> None:
    assert folder.resolve_record(None, None, real_kubernetes=False) == WorldRecord(2, 5)
    with folder.claim(folder.resolve_record(3, 1, real_kubernetes=False)):
        pass
    assert folder.resolve_record(None, None, real_kubernetes=False) == WorldRecord(3, 1)


def test_joined_clusters_are_recorded(folder: WorldFolder) -> None:
    with folder.claim(WorldRecord(2, 5)):
        folder.write_record(WorldRecord(2, 5, joined=2))
    assert folder.resolve_record(3, None, real_kubernetes=False) == WorldRecord(3, 5, joined=2)


def test_existing_world_may_grow_but_not_shrink(folder: WorldFolder) -> None:
    with folder.claim(WorldRecord(3, 4)):
        pass
    assert folder.resolve_record(1, 0, real_kubernetes=False) == WorldRecord(3, 4)
    assert folder.resolve_record(4, 9, real_kubernetes=False) == WorldRecord(4, 9)


def test_world_keeps_its_control_plane_type(folder: WorldFolder) -> None:
    with folder.claim(WorldRecord(1, 1, real_kubernetes=True)):
        pass
    with pytest.raises(WorldError, match=r"created with --real-kubernetes and cannot change; use that option$"):
        folder.resolve_record(None, None, real_kubernetes=False)


def test_world_cannot_switch_to_real_kubernetes(folder: WorldFolder) -> None:
    with folder.claim(WorldRecord(1, 1)):
        pass
    with pytest.raises(WorldError, match=r"created without --real-kubernetes and cannot change; .*--purge"):
        folder.resolve_record(None, None, real_kubernetes=True)


def test_world_without_record_is_recognized(folder: WorldFolder) -> None:
    for name in ("virtual", "cluster-1", "cluster-2", "third"):
        (folder.path / name).mkdir(parents=True)
        (folder.path / name / "cluster.json").touch()
    assert folder.read_record() == WorldRecord(2, 0, joined=2)


@pytest.mark.parametrize(
    ("text", "message"), [('{"layout": 7}', f"layout 7 is not supported, only {LAYOUT}"), ("{", "cannot be read")]
)
def test_unreadable_world_remains_and_can_be_deleted(folder: WorldFolder, text: str, message: str) -> None:
    folder.path.mkdir()
    folder.record_file.write_text(text)
    with pytest.raises(WorldError, match=message) as caught:
        folder.resolve_record(None, None, real_kubernetes=False)
    assert "tapestry down --purge" in str(caught.value)
    assert folder.record_file.read_text() == text
    assert folder.delete()
    assert not folder.path.exists()


def test_foreign_folder_is_neither_used_nor_deleted(folder: WorldFolder) -> None:
    folder.path.mkdir()
    (folder.path / "diary.txt").write_text("dear diary")
    with pytest.raises(WorldError, match=r"contains other files \(diary.txt\); choose another folder with --data"):
        folder.resolve_record(None, None, real_kubernetes=False)
    with pytest.raises(WorldError, match=r"diary.txt"):
        folder.delete()
    assert [each.name for each in folder.path.iterdir()] == ["diary.txt"]


def test_missing_world_cannot_be_deleted(folder: WorldFolder) -> None:
    assert not folder.delete()


def test_uncreatable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = WorldFolder(tmp_path / "file" / "world")
    with (
        pytest.raises(WorldError, match=r"file/world: Not a directory; choose another folder"),
        folder.claim(WorldRecord(1, 1)),
    ):
        raise AssertionError("unreachable")


RUNNER = """
import sys
from pathlib import Path
from tapestry.local.world_folder import WorldFolder, WorldRecord

with WorldFolder(Path(sys.argv[1])).claim(WorldRecord(1, 1)):
    print("claimed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(folder: WorldFolder) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that runs the world."""
    command = [sys.executable, "-c", RUNNER, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        yield process
        process.kill()


def test_second_process_learns_the_pid_of_the_first(
    folder: WorldFolder, other_process: "subprocess.Popen[bytes]"
) -> None:
    assert folder.running_pid() == other_process.pid
    with (
        pytest.raises(WorldError, match=rf"already run by process {other_process.pid}; `tapestry down`"),
        folder.claim(WorldRecord(1, 1)),
    ):
        raise AssertionError("unreachable")
    with pytest.raises(WorldError, match="stop it first"):
        folder.delete()
    assert folder.running_pid() == other_process.pid


def test_killed_process_releases_the_world(folder: WorldFolder, other_process: "subprocess.Popen[bytes]") -> None:
    other_process.kill()
    folder.wait_for_exit()
    assert folder.running_pid() is None
    with folder.claim(WorldRecord(1, 1)):
        assert int(folder.pid_file.read_text()) == os.getpid()
    assert json.loads(folder.record_file.read_text())["clusters"] == 1
