"""Container image built from programs of this machine, because no registry is available.

It contains busybox with links for all its commands, and kubectl as an in-cluster client: it finds its API server in the
environment, and token and CA in the mounted service account. The same image is the sandbox image of pods. Other images
have the same files and other commands.
"""

import hashlib
import io
import json
import platform
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = "tapestry.invalid/toolbox:1"
IDLE = ["sleep", "infinity"]


@dataclass(frozen=True)
class Contents:
    """Files and names of the images."""

    busybox: Path
    programs: tuple[Path, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Text of other files, which are executable, by their path."""
    paths: tuple[Path, ...] = ()
    """Files and folders of this machine that have the same paths in the images."""
    others: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Configurations of other images than IMAGE, by their names."""


def write_images(path: Path, contents: Contents) -> None:
    """Write the images as a docker-archive, the format of `docker save` and `ctr images import`."""
    layer = path.with_suffix(".layer")
    write_layer(layer, contents)
    with layer.open("rb") as file:
        content = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    manifest = []
    with tarfile.open(path, "w") as archive:
        for number, (name, config) in enumerate({IMAGE: {"Cmd": IDLE}, **contents.others}.items()):
            settings = {
                "architecture": architecture(),
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], **config},
                "rootfs": {"type": "layers", "diff_ids": [content]},
            }
            add_document(archive, f"config-{number}.json", settings)
            manifest.append({"Config": f"config-{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
        add_document(archive, "manifest.json", manifest)
        archive.add(layer, "layer.tar")
    layer.unlink()


def write_layer(path: Path, contents: Contents) -> None:
    busybox = contents.busybox
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(path, "w", dereference=True) as layer:
        for folder in ("bin", "etc", "tmp"):
            layer.addfile(entry(folder, tarfile.DIRTYPE))
        for program in (busybox, *contents.programs):
            layer.add(program.resolve(), f"bin/{program.name}")
        for command in set(commands) - {busybox.name}:
            link = entry(f"bin/{command}", tarfile.SYMTYPE)
            link.linkname = busybox.name
            layer.addfile(link)
        for each in contents.paths:
            layer.add(each, filter=without_caches)
        for name, text in contents.files.items():
            file = entry(name, tarfile.REGTYPE)
            file.size = len(text)
            layer.addfile(file, io.BytesIO(text.encode()))


def without_caches(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info


def python_paths() -> tuple[Path, ...]:
    """Return the interpreter of this process with its libraries, without the tests and without other packages."""
    interpreter, modules = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip", "lib2to3"}
    parts = [each for each in modules.iterdir() if each.name not in left_out and not each.name.startswith("config-")]
    extensions = [each for each in (modules / "lib-dynload").glob("*.so") if not each.name.startswith("_tkinter.")]
    linked = {library for each in (interpreter, *extensions) for library in linked_libraries(each)}
    return (interpreter, *parts, *sorted(linked))


def linked_libraries(program: Path) -> list[Path]:
    """Return the shared libraries of a program, and the loader."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(word) for word in listing.split() if word.startswith("/") and Path(word).exists()]


def entry(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o755
    return info


def add_document(archive: tarfile.TarFile, name: str, document: object) -> None:
    content = json.dumps(document).encode()
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def architecture() -> str:
    """Return the architecture of this machine as image configurations name it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def is_static(program: Path) -> bool:
    """Return True if a program is statically linked: it does not name a loader in its first bytes."""
    with program.open("rb") as file:
        return b"/ld-" not in file.read(4096)
