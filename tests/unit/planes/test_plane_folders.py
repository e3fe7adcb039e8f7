"""Folders of planes: created and deleted completely or not at all, also if the process is killed."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tapestry.apiserver.access.certificates import CertificateAuthority
from tapestry.apiserver.core.store import StorageError
from tapestry.apiserver.storage.archive import RESTORE_PREFIX, locked_folder
from tapestry.apiserver.storage.sqlite_log import FileLog
from tapestry.planes.plane_folders import (
    TEMPORARY_PREFIX,
    Leftovers,
    create_plane_folder,
    delete_plane_folder,
    lock_root,
    remove_leftovers,
    temporary_folder,
)


def test_each_plane_has_its_own_keys(tmp_path: Path) -> None:
    for each in ("a", "b"):
        create_plane_folder(tmp_path, each)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    for name in ("ca.crt", "ca.key", "front-proxy-ca.key", "service-accounts.key"):
        first, second = (tmp_path / each / "pki" / name for each in ("a", "b"))
        assert first.read_bytes() != second.read_bytes()
        assert first.stat().st_mode & 0o077 == 0
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def test_existing_plane_is_not_replaced(tmp_path: Path) -> None:
    create_plane_folder(tmp_path, "a")
    before = CertificateAuthority(tmp_path / "a" / "pki").certificate_pem()
    with pytest.raises(FileExistsError, match="choose another plane ID"):
        create_plane_folder(tmp_path, "a")
    assert CertificateAuthority(tmp_path / "a" / "pki").certificate_pem() == before
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("plane_id", ["", ".", "..", "../a", "a/b", ".tmp-a", "A", "-a", "a" * 64, "a\n"])
def test_invalid_ids_are_rejected(tmp_path: Path, plane_id: str) -> None:
    for act in (create_plane_folder, delete_plane_folder):
        with pytest.raises(ValueError, match="is not a plane ID"):
            act(tmp_path / "root", plane_id)
    assert list(tmp_path.rglob("pki")) == []


def test_deleted_plane_is_gone_and_may_be_deleted_again(tmp_path: Path) -> None:
    create_plane_folder(tmp_path, "a")
    for _ in range(2):
        delete_plane_folder(tmp_path, "a")
        assert os.listdir(tmp_path) == []


def test_open_plane_is_not_deleted(tmp_path: Path) -> None:
    create_plane_folder(tmp_path, "a")
    log = FileLog(tmp_path / "a")
    with pytest.raises(StorageError, match="has it open"):
        delete_plane_folder(tmp_path, "a")
    assert os.listdir(tmp_path) == ["a"]
    log.close()


def test_leftovers_are_removed_and_planes_remain(tmp_path: Path) -> None:
    for each in ("known", "unknown"):
        create_plane_folder(tmp_path, each)
    leftover = tmp_path / f"{TEMPORARY_PREFIX}x"
    (leftover / "data").mkdir(parents=True)
    (leftover / "data" / "tapestry.db").write_text("half")
    (tmp_path / ".other").mkdir()
    (tmp_path / "notes.txt").touch()
    assert remove_leftovers(tmp_path, {"known"}) == Leftovers([leftover.name], ["unknown"])
    assert sorted(os.listdir(tmp_path)) == [".other", "known", "notes.txt", "unknown"]
    assert remove_leftovers(tmp_path, {"known", "unknown"}) == Leftovers()


def test_folders_of_killed_backups_and_restores_are_removed(tmp_path: Path) -> None:
    create_plane_folder(tmp_path, "known")
    for each in (".backup-x", ".restore-y"):
        (tmp_path / each / "data").mkdir(parents=True)
    (tmp_path / ".restore-file").touch()
    (tmp_path / ".restore-link").symlink_to(tmp_path / "known")
    with locked_folder(tmp_path, RESTORE_PREFIX) as used:
        assert remove_leftovers(tmp_path, {"known"}) == Leftovers([".backup-x", ".restore-y"])
        assert sorted(os.listdir(tmp_path)) == sorted([used.name, ".restore-file", ".restore-link", "known"])
    assert remove_leftovers(tmp_path, {"known"}) == Leftovers()
    assert (tmp_path / "known" / "pki").exists()


def test_folders_in_use_are_not_leftovers(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as used:
        assert remove_leftovers(tmp_path, ()) == Leftovers()
        assert used.exists()
    with lock_root(tmp_path, fcntl.LOCK_EX):
        pass
    assert remove_leftovers(tmp_path / "missing", ()) == Leftovers()


KILLED = """
import os, shutil, sys
from pathlib import Path
from tapestry.apiserver.core.store import Key
from tapestry.apiserver.storage.copies import write_database
from tapestry.apiserver.storage.log import Entry
from tapestry.planes.plane_copies import copy_plane_folder, create_plane_from_copy
from tapestry.planes.plane_folders import create_plane_folder, delete_plane_folder

OPERATIONS = (
    lambda root: create_plane_folder(root, "empty"),
    lambda root: copy_plane_folder(root / "source", root / "copy.tar"),
    lambda root: create_plane_from_copy(root, "copied", root / "copy.tar"),
    lambda root: delete_plane_folder(root, "source"),
)
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
RAW = b'{"apiVersion":"v1","metadata":{"name":"x","namespace":"default","uid":"u","resourceVersion":"1"}}'


def run_killed(operation, root, steps):
    def kill(event, arguments):
        nonlocal steps
        if event in EVENTS and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            steps -= 1
            if steps < 0:
                os._exit(9)

    sys.addaudithook(kill)
    operation(root)
    os._exit(0)


parent, base = Path(sys.argv[1]), Path(sys.argv[2])
os.fsync = lambda _: None  # a kill loses nothing that was written
create_plane_folder(base, "source")
write_database(base / "source" / "tapestry.db", (1, [Entry(1, Key("configmaps", "default", "x"), RAW)]))
for number, operation in enumerate(OPERATIONS):
    is_finished, steps = False, 0
    while not is_finished:
        root = shutil.copytree(base, parent / f"{number}-{steps}")
        if not (child := os.fork()):
            run_killed(operation, root, steps)
        is_finished, steps = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, steps + 1
    operation(base)
"""


def test_operations_killed_at_any_step_leave_only_complete_planes(tmp_path: Path) -> None:
    """A child process is killed before each of its changes of the file system, one after another."""
    roots = tmp_path / "roots"
    command = [sys.executable, "-c", KILLED, str(roots), str(tmp_path / "base")]
    subprocess.run(command, timeout=120, check=True)
    seen, removed = set(), 0
    for root in roots.iterdir():
        removed += len(remove_leftovers(root, ()).removed)
        assert remove_leftovers(root, ()).removed == []
        names = tuple(sorted(os.listdir(root)))
        seen.add(names)
        for plane in (root / each for each in names if each != "copy.tar"):
            assert {"ca.crt", "ca.key", "service-accounts.key"} <= set(os.listdir(plane / "pki"))
            assert CertificateAuthority(plane / "pki").key_pair() is not None
            log = FileLog(plane)
            assert [each.key.name for each in log.load()[1]] == ([] if plane.name == "empty" else ["x"])
            log.close()
    assert removed > 40
    assert seen == {
        ("source",),
        ("empty", "source"),
        ("copy.tar", "empty", "source"),
        ("copied", "copy.tar", "empty", "source"),
        ("copied", "copy.tar", "empty"),
    }
