"""The unpacked image, to run its program without a container engine. This needs root.

The program gets the user, the variables and the folder of the image's configuration, a read-only root file system, and
its own mount and process namespaces, in which it is process 1, as in a container. It shares the network of the machine.
"""

import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oci_layout import Layout

SCRIPT = """
root=$1 home=$2 folder=$3; shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$home" "$root$folder"
mount -o remount,bind,ro "$root"
exec unshare --root="$root" --wd="$folder" "$@"
"""
MOUNT_POINTS = ("proc", "dev", "sys")


@dataclass(frozen=True)
class UnpackedImage:
    root: Path
    config: Mapping[str, Any]

    @property
    def environ(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.config["Env"])

    @property
    def identity(self) -> list[str]:
        user, group = self.config["User"].split(":")
        return [f"--setgid={group}", f"--setuid={user}"]

    @contextmanager
    def program(self, home: Path, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """Run the program with these arguments, and kill it and its children at the end.

        `home` is mounted over its folder, the only one that it can write to. `options` are those of Popen.
        """
        user, group = map(int, self.config["User"].split(":"))
        os.chown(home, user, group)
        folder = self.config["WorkingDir"]
        namespaces = ["unshare", "--mount", "--pid", "--fork"]
        program = [*self.identity, *self.config["Entrypoint"], *arguments]
        command = [*namespaces, "sh", "-euc", SCRIPT, "sh", str(self.root), str(home), folder, *program]
        with subprocess.Popen(command, env=self.environ, text=True, **options) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.kill(program_pid(process), signal.SIGKILL)  # process 1: the kernel kills the others

    def execute(self, process: subprocess.Popen[str], *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside a running program, as `docker exec` does."""
        namespaces = [f"--target={program_pid(process)}", "--mount", "--pid", "--root", "--wd"]
        return subprocess.run(
            ["nsenter", *namespaces, *self.identity, *command],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )


def program_pid(process: subprocess.Popen[str]) -> int:
    """Return the process ID of a running program, as the machine sees it."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def unpack(layout: Path, architecture: str, root: Path) -> UnpackedImage:
    """Unpack the image of an architecture into a new folder, with the owners and modes of all files."""
    content = Layout(layout, epoch=0)
    [index] = json.loads((layout / "index.json").read_text())["manifests"]
    images = {image["platform"]["architecture"]: image for image in content.document(index)["manifests"]}
    manifest = content.document(images[architecture])
    root.mkdir(mode=0o755)
    for layer in manifest["layers"]:
        with tarfile.open(content.blob(layer)) as tar:
            tar.extractall(root, numeric_owner=True, filter="fully_trusted")
    for name in MOUNT_POINTS:
        (root / name).mkdir()
    return UnpackedImage(root, content.document(manifest["config"])["config"])
