"""Folders of pods on disk: volumes, kubeconfigs, working folders and logs of containers.

<uid>/volumes/<volume>/...          files of the volume, kept in sync with its sources
<uid>/kubeconfigs/<name>            kubeconfig with the token that a container has mounted
<uid>/containers/<name>/            working folder of a container
<uid>/tmp/<name>/                   /tmp of a container with namespaces
<uid>/rootfs/                       place where the root of a container with namespaces is built
<uid>/containers/<name>-<run>.log   log of a run
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tapestry.client.kubeconfig_entries import kubeconfig_document
from tapestry.kube.objects import Object, namespace_of, uid_of
from tapestry.local.container_commands import TOKEN_MOUNT_PATH
from tapestry.local.volume_sources import VolumeFiles, projected_sources


@dataclass(frozen=True)
class PodFolder:
    path: Path

    def volume(self, name: str) -> Path:
        return self.path / "volumes" / name

    def container(self, name: str) -> Path:
        return self.path / "containers" / name

    def log(self, container: str, run: int) -> Path:
        return self.path / "containers" / f"{container}-{run}.log"

    def tmp(self, container: str) -> Path:
        return self.path / "tmp" / container

    @property
    def root(self) -> Path:
        return self.path / "rootfs"

    def create(self, containers: Iterable[Object]) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for each in containers:
            for folder in (self.container(each["name"]), self.tmp(each["name"])):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, volume: str, files: VolumeFiles) -> None:
        """Make a volume consist of exactly these files."""
        folder = self.volume(volume)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        desired = {folder / safe_path(name): content for name, content in files.items()}
        for path in [each for each in folder.rglob("*") if each.is_file() and each not in desired]:
            path.unlink()
        for path, content in desired.items():
            if not path.exists() or path.read_bytes() != content:
                replace_file(path, content)

    def mounts(self, container: Object) -> dict[str, Path]:
        return {
            each["mountPath"].rstrip("/") or "/": self.volume(each["name"]) / safe_path(each.get("subPath") or "")
            for each in container.get("volumeMounts") or ()
        }

    def kubeconfig(self, pod: Object, container: Object, server: str, *, mounted: bool = False) -> Path | None:
        """Write a kubeconfig with the pod's token of this cluster, if the container has that mounted.

        `mounted` says whether the container finds the token by its mount path.
        """
        folder = self.mounts(container).get(TOKEN_MOUNT_PATH)
        if folder is None or not has_token(pod, container):
            return None
        if mounted:
            folder = Path(TOKEN_MOUNT_PATH)
        cluster = {"server": server, "certificate-authority": str(folder / "ca.crt")}
        user = {"tokenFile": str(folder / "token")}
        document = kubeconfig_document("home", cluster, user, namespace_of(pod))
        path: Path = self.path / "kubeconfigs" / container["name"]  # outside the volumes
        replace_file(path, json.dumps(document, indent=2).encode())
        return path

    def delete_old_logs(self, container: str, before: int) -> None:
        for path in (self.path / "containers").glob(f"{container}-*.*"):
            run = path.stem.removeprefix(f"{container}-")
            if run.isdecimal() and int(run) < before:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def has_token(pod: Object, container: Object) -> bool:
    """Return whether the token volume is one of this cluster; a leased pod has a Secret of another cluster there."""
    mounts = container.get("volumeMounts") or ()
    names = {each["name"] for each in mounts if each["mountPath"].rstrip("/") == TOKEN_MOUNT_PATH}
    volumes = [each for each in pod["spec"].get("volumes") or () if each["name"] in names]
    return any("serviceAccountToken" in part for volume in volumes for part in projected_sources(volume))


def safe_path(name: str) -> PurePosixPath:
    """Return a path that stays below its folder; API servers admit no other."""
    return PurePosixPath(*(part for part in PurePosixPath(name).parts if part not in ("..", "/")))


def replace_file(path: Path, content: bytes) -> None:
    """Write a private file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)


def pod_folder(root: Path, pod: Object) -> PodFolder:
    return PodFolder(root / uid_of(pod))


def remove_orphaned(root: Path, pods: Collection[Object]) -> None:
    """Delete the folders of pods that no longer exist."""
    known = {uid_of(pod) for pod in pods}
    for path in root.iterdir() if root.is_dir() else ():
        if path.name not in known:
            PodFolder(path).remove()
