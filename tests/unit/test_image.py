"""Contents of the image, and the Dockerfile that results in the same image."""

import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest

import image

DOCKERFILE = (image.ROOT / "Dockerfile").read_text().replace("\\\n", "")


def test_dockerfile_has_the_configuration_of_the_image() -> None:
    final = DOCKERFILE.rpartition("FROM scratch")[2]
    lines = dict(re.findall(r"^(\w+) (.+)$", final, re.MULTILINE))
    assert lines["USER"] == image.CONFIG["User"]
    assert lines["WORKDIR"] == image.CONFIG["WorkingDir"]
    assert json.loads(lines["ENTRYPOINT"]) == image.CONFIG["Entrypoint"]
    assert shlex.split(lines["ENV"]) == image.CONFIG["Env"]


@pytest.mark.parametrize(
    ("name", "merged"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/lib/os-release", "usr/lib/os-release"),
        ("./library/file", "library/file"),
    ],
)
def test_files_of_packages_are_below_usr(name: str, merged: str) -> None:
    assert image.merged_name(name) == merged


@pytest.mark.parametrize(
    ("name", "is_included"),
    [
        ("usr/bin/python3.11", True),
        ("usr/lib/python3.11/asyncio/base_events.py", True),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", True),
        ("usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", False),
        ("usr/lib/python3.11/test/support/__init__.py", False),
        ("usr/lib/x86_64-linux-gnu/libssl.so.3", True),
        ("usr/lib/x86_64-linux-gnu/gconv/UTF-7.so", False),
        ("usr/sbin/update-ca-certificates", False),
        ("usr/share/doc/libc6/copyright", True),
        ("usr/share/man/man1/python3.11.1.gz", False),
    ],
)
def test_only_needed_files_of_packages_are_included(name: str, is_included: bool) -> None:
    assert is_included == (
        image.matches(name, image.SYSTEM_FILES) and not image.matches(name, image.LEFT_OUT_SYSTEM_FILES)
    )


def test_wheels_are_unpacked_without_sources_and_tests(tmp_path: Path) -> None:
    names = ("module/__init__.py", "module/native.so", "module/native.c", "module/tests/test_it.py", "module/py.typed")
    with zipfile.ZipFile(tmp_path / "module.whl", "w") as archive:
        for name in names:
            archive.writestr(name, "")
    image.write_wheels(tmp_path / "root", [tmp_path / "module.whl"])
    folder = tmp_path / "root" / image.PACKAGES_FOLDER / "module"
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "native.so", "py.typed"]


def test_sizes_count_python_separately(tmp_path: Path) -> None:
    tree = image.Tree("amd64", tmp_path)
    image.write_file(tree.system / "usr/bin/python3.11", b"123", is_program=True)
    image.write_file(tree.system / "usr/lib/python3.11/os.py", b"45")
    image.write_file(tree.dependencies / "usr/local/lib/a.py", b"6789")
    tree.project.mkdir()
    assert tree.sizes() == (5, 4)


def test_build_time_comes_from_environment_or_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert image.build_time() == 12
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert image.build_time() > 1_700_000_000
