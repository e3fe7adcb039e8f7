"""Copying of files between this machine and containers: tar archives in both directions, as kubectl does.

The container needs `tar`.  Archives from a container are untrusted: they cannot write outside the target folder.
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO


@dataclass(frozen=True, slots=True)
class Place:
    """A path on this machine, or in a pod."""

    path: str
    pod: str = ""
    namespace: str = ""


def parse_place(text: str) -> Place:
    """Parse `[[NAMESPACE/]POD:]PATH`.  A path on this machine that contains a colon starts with `./` or `/`."""
    head, colon, path = text.partition(":")
    if not colon or head.startswith((".", "/")):
        return Place(text)
    namespace, slash, pod = head.rpartition("/")
    if not path or not pod or (slash and not namespace):
        raise ValueError(f"{text!r}: expected [[NAMESPACE/]POD:]PATH")
    return Place(path, pod, namespace)


def upload_command(folder: str) -> tuple[str, ...]:
    """Return the command that unpacks an archive in a folder."""
    return "tar", "-xmf", "-", "-C", folder


def download_command(source: str) -> tuple[str, ...]:
    path = PurePosixPath(source)
    name = f"./{path.name}" if path.name.startswith("-") else path.name
    return "tar", "-cf", "-", "-C", str(path.parent), name


def write_archive(source: Path, name: str, file: IO[bytes]) -> None:
    """Write an archive with a file or folder under another name."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(source, arcname=name)


def extract_archive(file: IO[bytes], name: str, target: Path) -> None:
    """Extract an archive whose only top-level entry is `name`, to `target`.  Raise ValueError for other archives.

    Links that lead outside, absolute names and devices are rejected.
    """
    with tarfile.open(fileobj=file, mode="r") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if parts[:1] != (name,) or ".." in parts:
                raise ValueError(f"the archive of the container has the unexpected entry {member.name!r}")
            relative = PurePosixPath(*parts[1:])
            if not parts[1:] and member.isfile():
                extract_file(archive, member, target)
                continue
            target.mkdir(parents=True, exist_ok=True)
            if parts[1:]:
                archive.extract(member.replace(name=str(relative), deep=False), target, filter="data")


def extract_file(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    file = target / PurePosixPath(member.name).name if target.is_dir() else target
    content = archive.extractfile(member)
    assert content is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    with content, file.open("wb") as output:
        while chunk := content.read(1 << 20):
            output.write(chunk)
    file.chmod(member.mode & 0o777)
