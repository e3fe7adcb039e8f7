"""Copying to and from containers: places, and archives that come from an untrusted container."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from tapestry.inspect.anykind.archives import Place, download_command, extract_archive, parse_place, write_archive


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("./a:b", Place("./a:b")),
        ("/a:b", Place("/a:b")),
        ("file", Place("file")),
        ("web:/tmp/x", Place("/tmp/x", "web")),
        ("team/web:x", Place("x", "web", "team")),
    ],
)
def test_place_is_parsed(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["web:", ":x", "/web:", "team/:x"])
def test_invalid_place_is_rejected(text: str) -> None:
    if text.startswith("/"):
        assert parse_place(text) == Place(text)
    else:
        with pytest.raises(ValueError, match="NAMESPACE/"):
            parse_place(text)


def test_folder_arrives_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "file").write_bytes(os.urandom(100_000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o750)
    archive = io.BytesIO()
    write_archive(source, "data", archive)
    archive.seek(0)
    extract_archive(archive, "data", tmp_path / "target")
    assert (tmp_path / "target/inner/file").read_bytes() == (source / "inner/file").read_bytes()
    assert (tmp_path / "target/run").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("is_folder", [True, False])
def test_file_arrives_under_its_new_name(tmp_path: Path, is_folder: bool) -> None:
    (tmp_path / "a").write_text("content")
    archive = io.BytesIO()
    write_archive(tmp_path / "a", "a", archive)
    archive.seek(0)
    target = tmp_path / "target"
    if is_folder:
        target.mkdir()
    extract_archive(archive, "a", target)
    assert (target / "a" if is_folder else target).read_text() == "content"


def hostile_entries() -> dict[str, tarfile.TarInfo]:
    entries = {name: tarfile.TarInfo(f"data/{name}") for name in ("link", "hard link", "device")}
    entries["link"].type, entries["link"].linkname = tarfile.SYMTYPE, "../../outside"
    entries["hard link"].type, entries["hard link"].linkname = tarfile.LNKTYPE, "/etc/passwd"
    entries["device"].type = tarfile.CHRTYPE
    entries["parent"] = tarfile.TarInfo("data/../../escaped")
    entries["absolute"] = tarfile.TarInfo("/etc/escaped")
    entries["other name"] = tarfile.TarInfo("elsewhere")
    return entries


@pytest.mark.parametrize("name", sorted(hostile_entries()))
def test_hostile_archive_writes_nothing_outside(tmp_path: Path, name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        writer.addfile(hostile_entries()[name])
    archive.seek(0)
    target = tmp_path / "deep" / "target"
    with pytest.raises((ValueError, tarfile.TarError)):
        extract_archive(archive, "data", target)
    assert not list(tmp_path.rglob("escaped"))
    assert [each for each in tmp_path.rglob("*") if not each.is_dir()] == []


def test_paths_that_look_like_options_are_names() -> None:
    assert download_command("/tmp/-x")[-1] == "./-x"
