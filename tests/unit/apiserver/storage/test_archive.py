"""Backup, restore, check, repair and export of data folders."""

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from tapestry.apiserver.core.store import Key, StorageError
from tapestry.apiserver.storage import archive
from tapestry.apiserver.storage.log import Entry
from tapestry.apiserver.storage.sqlite_log import FileLog
from tapestry.cli.main import main

from ..old_databases import write_version_1


def encoded_object(name: str, revision: int, **fields: object) -> bytes:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(revision)}
    return msgspec.json.encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **fields})


def entry(name: str, revision: int, **fields: object) -> Entry:
    return Entry(revision, Key("configmaps", "default", name), encoded_object(name, revision, **fields))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(folder: Path) -> Iterator[FileLog]:
    """A log in use with the objects a and b, and a deleted object c."""
    log = FileLog(folder)
    (folder / "pki").mkdir()
    (folder / "pki" / "ca.key").write_text("secret")
    log.append([entry("a", 1, data={"k": "v"}), entry("b", 2), entry("c", 3)])
    log.append([Entry(4, Key("configmaps", "default", "c"), None)])
    yield log
    log.close()


def names(folder: Path) -> list[str]:
    return [each.key.name for each in archive.read_entries(folder)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["apiserver", *map(str, arguments)])


def damage(folder: Path, statement: str, *values: object) -> None:
    connection = apsw.Connection(str(folder / "tapestry.db"))
    connection.execute(statement, values)
    connection.close()


def test_backup_of_running_log_has_one_revision_and_keys(log: FileLog, folder: Path, tmp_path: Path) -> None:
    assert archive.back_up(folder, tmp_path / "archive") == 4
    log.append([entry("later", 5)])
    archive.restore(tmp_path / "archive", tmp_path / "there")
    assert names(tmp_path / "there") == ["a", "b"]
    assert (tmp_path / "there" / "pki" / "ca.key").read_text() == "secret"
    assert names(folder) == ["a", "b", "later"]


def test_archive_is_readable_by_owner_only(log: FileLog, folder: Path, tmp_path: Path) -> None:
    archive.back_up(folder, tmp_path / "archive")
    assert (tmp_path / "archive").stat().st_mode & 0o077 == 0


def test_restored_log_does_not_reuse_revisions(log: FileLog, folder: Path, tmp_path: Path) -> None:
    archive.back_up(folder, tmp_path / "archive")
    log.append([entry("seen", 5)])
    revision = archive.restore(tmp_path / "archive", tmp_path / "there")
    restored = FileLog(tmp_path / "there")
    latest, _ = restored.load()
    restored.close()
    assert latest == revision > 5


def test_restore_migrates_archive_of_version_1(tmp_path: Path) -> None:
    write_version_1(tmp_path / "tapestry.db", [entry("a", 1), entry("b", 3)], latest=4)
    with tarfile.open(tmp_path / "archive", "w") as tar:
        tar.add(tmp_path / "tapestry.db", "tapestry.db")
    assert archive.restore(tmp_path / "archive", tmp_path / "there") == 4 + archive.RESTORE_REVISION_GAP
    assert names(tmp_path / "there") == ["a", "b"]


def test_restore_rejects_empty_database(tmp_path: Path) -> None:
    (tmp_path / "tapestry.db").touch()
    with tarfile.open(tmp_path / "archive", "w") as tar:
        tar.add(tmp_path / "tapestry.db", "tapestry.db")
    with pytest.raises(StorageError, match="version 0"):
        archive.restore(tmp_path / "archive", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_restore_renames_the_old_folder(log: FileLog, folder: Path, tmp_path: Path) -> None:
    archive.back_up(folder, tmp_path / "archive")
    log.append([entry("later", 5)])
    log.close()
    archive.restore(tmp_path / "archive", folder)
    [old_folder] = tmp_path.glob("data.before-*")
    assert (names(folder), names(old_folder)) == (["a", "b"], ["a", "b", "later"])


def test_restore_fails_while_server_runs(log: FileLog, folder: Path, tmp_path: Path) -> None:
    archive.back_up(folder, tmp_path / "archive")
    with pytest.raises(StorageError, match="another process has it open"):
        archive.restore(tmp_path / "archive", folder)
    assert names(folder) == ["a", "b"]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "pki/../../evil", "pki/sub/evil", "other.db"])
def test_restore_rejects_unknown_members(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "archive", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(StorageError, match="does not belong"):
        archive.restore(tmp_path / "archive", tmp_path / "there")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


ZEROS = 100 << 20


class Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def write_zeros_archive(path: Path, *members: tarfile.TarInfo) -> None:
    """Write an archive of members that consist of zeros, compressed by a factor of 1,000."""
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for each in members:
            tar.addfile(each, Zeros())


def member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def peak_restore_memory(tmp_path: Path, error: str) -> int:
    """Peak memory in bytes of a restore that fails."""
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match=error):
            archive.restore(tmp_path / "archive", tmp_path / "there")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert not (tmp_path / "there").exists()


def test_restore_of_huge_file_uses_little_memory(tmp_path: Path) -> None:
    write_zeros_archive(tmp_path / "archive", member("tapestry.db", ZEROS))
    assert (tmp_path / "archive").stat().st_size < 1 << 20
    assert peak_restore_memory(tmp_path, "not a database") < 20 << 20


def test_restore_of_huge_row_uses_little_memory(log: FileLog, folder: Path, tmp_path: Path) -> None:
    log.close()
    damage(folder, "UPDATE objects SET raw = zeroblob(?) WHERE name = 'a'", ZEROS)
    with tarfile.open(tmp_path / "archive", "w:gz", compresslevel=1) as tar:
        tar.add(folder / "tapestry.db", "tapestry.db")
    assert peak_restore_memory(tmp_path, "too big") < 20 << 20


def test_restore_of_huge_header_uses_little_memory(tmp_path: Path) -> None:
    huge = member("tapestry.db", 0)
    huge.pax_headers = {"comment": "0" * ZEROS}
    write_zeros_archive(tmp_path / "archive", huge)
    assert peak_restore_memory(tmp_path, "is not an archive") < 20 << 20


@pytest.mark.parametrize(("name", "size"), [("tapestry.db", 1 << 60), ("pki/ca.key", 2 << 20)])
def test_restore_rejects_oversized_file_without_reading_it(tmp_path: Path, name: str, size: int) -> None:
    with (tmp_path / "archive").open("wb") as file:
        file.write(member(name, size).tobuf(tarfile.GNU_FORMAT))
    assert peak_restore_memory(tmp_path, "do not fit on the disk|is over 1048576 bytes") < 20 << 20


def test_restore_rejects_too_many_files(tmp_path: Path) -> None:
    write_zeros_archive(tmp_path / "archive", *(member(f"pki/{number}", 0) for number in range(1001)))
    assert peak_restore_memory(tmp_path, "has more than 1000 files") < 20 << 20


def test_restore_reads_gzip_archive(log: FileLog, folder: Path, tmp_path: Path) -> None:
    archive.back_up(folder, tmp_path / "plain")
    (tmp_path / "archive").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    archive.restore(tmp_path / "archive", tmp_path / "there")
    assert names(tmp_path / "there") == ["a", "b"]


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 1000])
def test_restore_rejects_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(StorageError, match="archive"):
        archive.restore(tmp_path / "archive", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_check_of_intact_folder_finds_nothing(log: FileLog, folder: Path) -> None:
    assert archive.check_folder(folder) == []


@pytest.mark.parametrize(
    ("statement", "values", "problem"),
    [
        ("UPDATE objects SET raw = ? WHERE name = 'a'", (b"flipped",), "is not what was written"),
        ("UPDATE objects SET revision = 9 WHERE name = 'a'", (), "beyond the last one given out, 4"),
        ("UPDATE objects SET revision = 2 WHERE name = 'a'", (), "revision 2 was given out twice"),
        ("UPDATE objects SET name = 'z' WHERE name = 'a'", (), "says that it is default/a"),
        ("UPDATE objects SET revision = 3 WHERE name = 'a'", (), "says that it is of revision 1, not 3"),
    ],
)
def test_check_names_damaged_object_and_problem(
    log: FileLog, folder: Path, statement: str, values: tuple[object, ...], problem: str
) -> None:
    log.close()
    damage(folder, statement, *values)
    findings = archive.check_folder(folder)
    assert any(problem in str(each) for each in findings)
    assert {each.key.name for each in findings} <= {"a", "b", "z"}


def test_repair_moves_only_damaged_objects_to_file(log: FileLog, folder: Path) -> None:
    log.close()
    damage(folder, "UPDATE objects SET raw = ? WHERE name = 'a'", b"flipped")
    with pytest.raises(StorageError, match="is not what was written"):
        list(FileLog(folder).load()[1])
    assert run("check", "--file-rootpath", folder).exit_code == 1
    repaired = run("check", "--repair", "--file-rootpath", folder)
    assert repaired.exit_code == 0, repaired.output
    assert names(folder) == ["b"]
    [removed] = folder.glob("removed-*")
    assert msgspec.json.Decoder().decode_lines(removed.read_bytes())[0]["key"] == ["configmaps", "default", "a"]


def test_check_finds_zeroed_bytes_in_file(log: FileLog, folder: Path) -> None:
    log.append([entry(f"many-{each}", each + 10, data={"k": "v" * 500}) for each in range(200)])
    log.close()
    path = folder / "tapestry.db"
    content = bytearray(path.read_bytes())
    content[20_000:24_000] = bytes(4_000)
    path.write_bytes(content)
    assert archive.check_folder(folder)


def test_export_prints_objects_that_can_be_applied(log: FileLog, folder: Path, tmp_path: Path) -> None:
    printed = run("export", "--file-rootpath", folder)
    assert [each["metadata"] for each in yaml.safe_load_all(printed.output)] == [
        {"name": "a", "namespace": "default"},
        {"name": "b", "namespace": "default"},
    ]
    run("export", "--file-rootpath", folder, "--output", tmp_path / "out", "--full", "configmaps")
    [path] = tmp_path.glob("out/configmaps/default/a.yaml")
    assert yaml.safe_load(path.read_text())["metadata"]["uid"] == "uid-a"
    assert run("export", "--file-rootpath", folder, "pods").output == ""


def test_missing_folder_error_names_option(tmp_path: Path) -> None:
    for arguments in (["backup", tmp_path / "archive"], ["export"]):
        result = run(*arguments, "--file-rootpath", tmp_path / "nowhere")
        assert result.exit_code == 1
        assert "name the folder with --file-rootpath" in result.output
