"""Pinned packages and wheels of the image."""

import hashlib
import os
from pathlib import Path

import pytest

import image_downloads
from image_downloads import Apt, ImageError, Package, Wheel, locked_wheels, packages_for, runtime_distributions

LOCK = """\
alpha==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:ab
beta-c==2.0 ; sys_platform == 'linux' \\
    --hash=sha256:bb
dev-tool==3.0 \\
    --hash=sha256:dd
"""
LISTING = """\
Package: libc6
Architecture: amd64
Version: 2.36-9
Description: C library
 Package: not a field
SHA256: 00ff

Package: ca-certificates
Architecture: all
Version: 1:2025
SHA256: 11ff
"""


def test_wheels_have_versions_and_hashes_of_lock_file() -> None:
    assert locked_wheels({"beta-c", "alpha"}, LOCK) == [
        Wheel("alpha", "1.0", frozenset({"aa", "ab"})),
        Wheel("beta-c", "2.0", frozenset({"bb"})),
    ]
    with pytest.raises(ImageError, match=r"gamma: run `make lock`"):
        locked_wheels({"alpha", "gamma"}, LOCK)


def test_distributions_are_those_of_extras_and_their_requirements() -> None:
    project = {
        "dependencies": ["alpha>=1"],
        "optional-dependencies": {"server": ["Beta_C[fast]"], "etcd": [], "service": [], "otel": [], "dev": ["tool"]},
    }
    requirements = {
        "alpha": ["alpha-core", "windows-only ; sys_platform == 'win32'", "extra-only ; extra == 'more'"],
        "beta-c": ["speedups ; extra == 'fast'", "alpha"],
    }
    found = runtime_distributions(project, requirements.get)
    assert found == {"alpha", "alpha-core", "beta-c", "speedups"}


def test_image_has_the_locked_runtime_dependencies() -> None:
    names = {wheel.name for wheel in image_downloads.image_wheels()}
    assert {"aiohttp", "uvloop", "apsw", "cryptography", "grpcio", "opentelemetry-sdk"} <= names
    assert not names & {"pytest", "ruff", "mypy", "hatchling", "hypothesis"}


def test_lock_file_has_every_package_for_every_architecture() -> None:
    packages = image_downloads.parse_packages(image_downloads.PACKAGES_LOCK.read_text())
    for architecture in image_downloads.MACHINES:
        found = [package.name for package in packages_for(architecture, packages)]
        assert sorted(found) == sorted(image_downloads.PACKAGES)
    assert image_downloads.parse_packages("\n".join(package.line for package in packages)) == packages


def test_current_packages_are_read_from_apt() -> None:
    found = list(image_downloads.current_packages(LISTING))
    assert found == [Package("amd64", "libc6", "2.36-9", "00ff"), Package("all", "ca-certificates", "1:2025", "11ff")]
    assert found[1].file == "ca-certificates_1%3a2025_all.deb"


def test_cached_package_with_another_hash_is_deleted(tmp_path: Path) -> None:
    package = Package("amd64", "libc6", "1", hashlib.sha256(b"right").hexdigest())
    path = tmp_path / "debs" / package.file
    path.parent.mkdir()
    path.write_bytes(b"right")
    assert Apt(tmp_path).download([package], print) == [path]
    path.write_bytes(b"wrong")
    with pytest.raises(ImageError, match="hash of the downloaded file"):
        Apt(tmp_path).download([package], print)
    assert not path.exists()


def test_missing_program_and_failure_explain_the_remedy() -> None:
    with pytest.raises(ImageError, match="use the Dockerfile"):
        image_downloads.run("no-such-program")
    with pytest.raises(ImageError, match=r"broken\nTry again"):
        image_downloads.run("sh", "-c", "echo broken >&2; exit 1", hint="Try again.", environ=os.environ)
