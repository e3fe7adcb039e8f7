"""The container image: what it contains, and its program, run as a container engine runs it."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import image
from image_root import MOUNT_POINTS, UnpackedImage, program_pid, unpack
from oci_layout import sorted_paths
from tapestry.local.kubernetes import ControlPlane

from .clusters import PhysicalCluster
from .nodes import MACHINE, Kit, RealNode

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="the image is run in namespaces, which needs root"),
    pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="the image is built from Debian packages"),
]
TOOL = image.__file__
START_SECONDS = 120
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "version"},
    "spec": {
        "nodeName": "n1",
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "version",
                "image": image.NAME,
                "command": ["tapestry"],
                "args": ["version"],
                "securityContext": {
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}


def build(output: Path, *options: str, **environ: str) -> str:
    """Build an image and return the output of the build.

    The pinned versions of Debian packages disappear after security updates. The tests then use the newest ones.
    """
    command = [sys.executable, TOOL, "--output", str(output), *options]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    if "make image-lock" in done.stderr and "--newest" not in options:
        return build(output, "--newest", *options, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layout of the image for this machine."""
    folder = tmp_path_factory.mktemp("image") / "layout"
    assert f"built {image.NAME}" in build(folder, "--architecture", image.native_architecture())
    return folder


@pytest.fixture(scope="module")
def unpacked(layout: Path) -> UnpackedImage:
    return unpack(layout, image.native_architecture(), layout.with_name("root"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


def run(unpacked: UnpackedImage, home: Path, *arguments: str) -> str:
    with unpacked.program(home, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, output
    return output


def test_image_has_only_python_and_tapestry(unpacked: UnpackedImage) -> None:
    files = [path for path in sorted_paths(unpacked.root) if path.is_file() and not path.is_symlink()]
    programs = {path.name for path in files if path.parent.name in ("bin", "sbin")}
    assert programs == {"python3.11", "tapestry"}
    special = [path for path in files if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH)]
    assert special == []
    assert not list(unpacked.root.rglob("pip"))


def test_image_is_small_without_python(unpacked: UnpackedImage) -> None:
    assert size_without_python(unpacked.root) <= image.SIZE_LIMIT


def size_without_python(root: Path) -> int:
    files = [path for path in sorted_paths(root) if path.is_file() and not path.is_symlink()]
    python = root / "usr/lib/python3.11"
    return sum(path.stat().st_size for path in files if python not in path.parents and path.name != "python3.11")


def test_program_runs_as_nonroot_on_read_only_root(unpacked: UnpackedImage, home: Path) -> None:
    assert unpacked.config["User"] == "65532:65532"
    assert run(unpacked, home, "--version") == f"tapestry {image.VERSION}\n"
    assert "kind: Deployment" in run(unpacked, home, "manifests", "--image", image.NAME)


def test_every_module_can_be_imported(unpacked: UnpackedImage, home: Path) -> None:
    script = """
import importlib, os, pkgutil, sys, tapestry
try:
    open("/written", "w")
except OSError:
    pass
else:
    sys.exit("the root file system is writable")
assert (os.getuid(), os.getgid(), os.getgroups()) == (65532, 65532, []), os.getgroups()
for name in os.listdir("/usr/lib/python3.11/lib-dynload"):
    importlib.import_module(name.partition(".")[0])
for module in pkgutil.walk_packages(tapestry.__path__, "tapestry."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import ssl
print(len(ssl.create_default_context().get_ca_certs()), "authorities")
"""
    python = UnpackedImage(unpacked.root, {**unpacked.config, "Entrypoint": ["python3.11"]})
    assert " authorities" in run(python, home, "-c", script)


def test_up_runs_in_the_image(unpacked: UnpackedImage, home: Path) -> None:
    with unpacked.program(home, "up", "--clusters", "1", "--nodes", "2", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if "Ctrl-C" in line:
                break
        else:
            pytest.fail(output)
        status = unpacked.execute(process, "tapestry", "status")
        assert "cluster-1" in status.stdout, status
        os.kill(program_pid(process), signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0


@pytest.mark.long
def test_two_builds_have_one_digest(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = build(tmp_path / "first")
    other = {"TMPDIR": str(tmp_path / "elsewhere"), "PYTHONHASHSEED": "7", "TZ": "Asia/Shanghai"}
    command = ["sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, TOOL, "--output", str(tmp_path / "second")]
    options = ["--newest"] if "newest" in first else []
    second = subprocess.run(
        [*command, *options], env={**os.environ, **other}, capture_output=True, text=True, check=True
    )
    assert first.splitlines()[-1] == second.stdout.splitlines()[-1]
    assert first.splitlines()[-1].startswith("digest sha256:")


@pytest.mark.long
def test_dockerfile_gets_the_same_files(unpacked: UnpackedImage, tmp_path: Path) -> None:
    """The Dockerfile copies what `--root` writes."""
    build(tmp_path / "layout", "--architecture", image.native_architecture(), "--root", str(tmp_path / "root"))
    owned = [path for path in sorted_paths(tmp_path / "root") if path.lstat().st_uid == image.USER]
    assert owned == [tmp_path / "root" / image.HOME]
    assert listing(tmp_path / "root") == {
        name: entry for name, entry in listing(unpacked.root).items() if name not in MOUNT_POINTS
    }


def listing(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the content of each path."""

    def content(path: Path) -> bytes:
        if path.is_symlink():
            return os.readlink(path).encode()
        return path.read_bytes() if path.is_file() else b""

    return {path.relative_to(root).as_posix(): (path.lstat().st_mode, content(path)) for path in sorted_paths(root)}


@pytest.mark.long
@pytest.mark.kubernetes
def test_kubelet_runs_the_loaded_image(layout: Path, node_network: None, node_kit: Kit, tmp_path: Path) -> None:
    """containerd imports the archive without a network. The pod has the restrictions of our Deployments."""
    with (
        ControlPlane(tmp_path / "plane", node_kit.assets, controller_manager=True, address=MACHINE) as plane,
        RealNode("n1", 1, plane, tmp_path / "node", node_kit) as node,
    ):
        node.wait_until_ready()
        node.run("ctr", "--namespace=k8s.io", "images", "import", layout.with_suffix(".tar"))
        cluster = PhysicalCluster(plane, node_kit.assets, node)
        manifest = tmp_path / "pod.json"
        manifest.write_text(json.dumps(POD))
        cluster.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=60s")
        cluster.kubectl("apply", "-f", manifest)
        cluster.kubectl("wait", "pod/version", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
        assert cluster.kubectl("logs", "version").strip() == f"tapestry {image.VERSION}"


@pytest.mark.long
def test_images_of_both_architectures_have_same_files_and_size(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    build(tmp_path / "layout")
    names = []
    for architecture, machine in image.MACHINES.items():
        root = unpack(tmp_path / "layout", architecture, tmp_path / architecture).root
        size = size_without_python(root)
        record_property("figure", f"image for {architecture}: {size / 1e6:.1f} MB without Python")
        assert size <= image.SIZE_LIMIT
        found = {path.relative_to(root).as_posix().replace(machine, "MACHINE") for path in sorted_paths(root)}
        names.append({name for name in found if not re.search(r"/ld-linux|/libmvec|\.dist-info/", name)})
    assert names[0] == names[1]
