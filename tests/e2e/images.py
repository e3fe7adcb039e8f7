"""An image for containers, made of what is on this machine: there is no registry to pull from.

It has busybox under the names of all its commands, and kubectl, which in a container is a client like any other: it
finds its API server by the environment, its token and its authority in the mounted service account.  The same image
serves as the sandbox of pods, whose whole work is to be there.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

IMAGE = "tapestry.invalid/toolbox:1"
IDLE = ["sleep", "infinity"]


def write_image(path: Path, busybox: Path, kubectl: Path) -> None:
    """Write a docker-archive, as `docker save` and `ctr images import` know it, of the one image."""
    layer = path.with_suffix(".layer")
    write_layer(layer, busybox, kubectl)
    with layer.open("rb") as file:
        content = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    settings = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Cmd": IDLE, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [content]},
    }
    with tarfile.open(path, "w") as archive:
        add_document(archive, "config.json", settings)
        manifest = {"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}
        add_document(archive, "manifest.json", [manifest])
        archive.add(layer, "layer.tar")
    layer.unlink()


def write_layer(path: Path, busybox: Path, kubectl: Path) -> None:
    commands = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(path, "w") as layer:
        for folder in ("bin", "etc", "tmp"):
            layer.addfile(entry(folder, tarfile.DIRTYPE))
        for program in (busybox, kubectl):
            layer.add(program.resolve(), f"bin/{program.name}")
        for command in set(commands) - {busybox.name}:
            link = entry(f"bin/{command}", tarfile.SYMTYPE)
            link.linkname = busybox.name
            layer.addfile(link)


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
    """This machine's, in the words of images."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def is_static(program: Path) -> bool:
    """Whether a program runs without libraries; any other names its loader near its beginning."""
    with program.open("rb") as file:
        return b"/ld-" not in file.read(4096)
