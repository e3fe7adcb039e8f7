"""OCI image layouts: layers as tar files, configurations, manifests and one index, all reproducible.

The digests depend only on the files, their modes and the given time. Entries are sorted, and owners are fixed.
"""

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

Descriptor = dict[str, Any]


@dataclass
class HashingWriter:
    """File-like object that passes writes on, and hashes and counts them."""

    target: Any
    sha256: Any = field(default_factory=hashlib.sha256)
    size: int = 0

    def write(self, content: bytes) -> int:
        self.sha256.update(content)
        self.size += len(content)
        self.target.write(content)
        return len(content)

    def flush(self) -> None:
        self.target.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256.hexdigest()}"


@dataclass(frozen=True)
class Layer:
    descriptor: Descriptor
    diff_id: str
    """Digest of the uncompressed tar file."""


@dataclass(frozen=True)
class Layout:
    """A folder in the OCI image layout. `epoch` is the time of all files, in seconds."""

    folder: Path
    epoch: int

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs" / "sha256"

    def add_layer(self, root: Path, owners: Mapping[str, int]) -> Layer:
        """Add the files below `root`. `owners` maps paths to user and group IDs; all others belong to root."""
        self.blobs.mkdir(parents=True, exist_ok=True)
        unfinished = self.blobs / "unfinished"
        with unfinished.open("wb") as file:
            compressed = HashingWriter(file)
            with gzip.GzipFile(filename="", mode="wb", fileobj=compressed, mtime=0, compresslevel=6) as zipped:
                content = HashingWriter(zipped)
                with tarfile.open(fileobj=content, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                    for path in sorted_paths(root):
                        add_path(tar, root, path, self.epoch, owners)
        descriptor = {"mediaType": LAYER, "digest": compressed.digest, "size": compressed.size}
        unfinished.rename(self.blob(descriptor))
        return Layer(descriptor, content.digest)

    def add_document(self, media_type: str, document: object) -> Descriptor:
        content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        descriptor = {
            "mediaType": media_type,
            "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
            "size": len(content),
        }
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.blob(descriptor).write_bytes(content)
        return descriptor

    def add_image(self, architecture: str, config: Mapping[str, Any], layers: Iterable[Layer]) -> Descriptor:
        """Add the configuration and the manifest of an image for Linux."""
        layers = list(layers)
        document = {
            "architecture": architecture,
            "os": "linux",
            "created": datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add_document(CONFIG, document),
            "layers": [layer.descriptor for layer in layers],
        }
        platform = {"architecture": architecture, "os": "linux"}
        return {**self.add_document(MANIFEST, manifest), "platform": platform}

    def add_index(self, name: str, images: Iterable[Descriptor], annotations: Mapping[str, str]) -> Descriptor:
        """Add the index of the images of all platforms, and make it the content of this layout under that name."""
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": list(images),
            "annotations": dict(annotations),
        }
        named = {
            **self.add_document(INDEX, index),
            # containerd reads the first annotation, other tools the tag in the second one.
            "annotations": {
                "io.containerd.image.name": name,
                "org.opencontainers.image.ref.name": name.rpartition(":")[2],
            },
        }
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]}
        (self.folder / "index.json").write_text(json.dumps(content, sort_keys=True, indent=2) + "\n")
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}\n')
        return named

    def blob(self, descriptor: Descriptor) -> Path:
        return self.blobs / descriptor["digest"].removeprefix("sha256:")

    def document(self, descriptor: Descriptor) -> Any:
        return json.loads(self.blob(descriptor).read_bytes())

    def write_archive(self, path: Path) -> None:
        """Write the layout as one tar file, which container engines load."""
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for each in sorted_paths(self.folder):
                add_path(tar, self.folder, each, self.epoch, {})


def sorted_paths(root: Path) -> Iterator[Path]:
    """Yield the paths below a folder: each folder before its content, all in the order of their names."""
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from sorted_paths(path)


def add_path(tar: tarfile.TarFile, root: Path, path: Path, epoch: int, owners: Mapping[str, int]) -> None:
    name = path.relative_to(root).as_posix()
    info = tarfile.TarInfo(name)
    info.mtime = epoch
    info.uid = info.gid = owners.get(name, 0)
    info.mode = path.lstat().st_mode & 0o7777
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = path.stat().st_size
        with path.open("rb") as file:
            tar.addfile(info, file)
