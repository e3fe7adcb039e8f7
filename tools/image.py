"""Build the container image of Tapestry for all platforms, without a container engine.

The result is an OCI image layout in `dist/image`, and the same as one file in `dist/image.tar`, which container engines
load. The image contains Python and shared libraries from Debian packages, the wheels of requirements.lock, and this
project. It has no shell and no package manager, and runs as user 65532 with a read-only root file system.

The build is reproducible: the same commit and lock files result in the same digest. All files have the time of
SOURCE_DATE_EPOCH, or of the last commit. Downloads are cached in the user's cache folder, so a second build works
offline.
"""

import argparse
import fnmatch
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_downloads import (
    MACHINES,
    PACKAGES_LOCK,
    PYTHON,
    ROOT,
    Apt,
    ImageError,
    cache_folder,
    download_wheels,
    image_wheels,
    packages_for,
    parse_packages,
    run,
)
from kube_assets import sole_builder
from oci_layout import Descriptor, Layout, sorted_paths

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NAME = f"localhost/tapestry:{VERSION}"
USER = 65532
HOME = "home/nonroot"
STDLIB = f"usr/lib/python{PYTHON}"
PACKAGES_FOLDER = f"usr/local/lib/python{PYTHON}/dist-packages"
CA_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
PROGRAM = f"""#!/usr/bin/python{PYTHON} -sP
import sys

from tapestry.cli.main import main

sys.exit(main())
"""
CONFIG = {
    "User": f"{USER}:{USER}",
    "WorkingDir": f"/{HOME}",
    "Entrypoint": ["tapestry"],
    "Env": [
        "PATH=/usr/bin",
        f"HOME=/{HOME}",
        "LANG=C.UTF-8",
        f"SSL_CERT_FILE=/{CA_BUNDLE}",
        "PYTHONDONTWRITEBYTECODE=1",
    ],
}
LABELS = {
    "org.opencontainers.image.title": "Tapestry",
    "org.opencontainers.image.version": VERSION,
    "org.opencontainers.image.licenses": "Apache-2.0",
}
SIZE_LIMIT = 120_000_000
"""Largest size in bytes of the unpacked image without Python."""

SYSTEM_FILES = (
    "usr/bin/python*",
    "usr/lib/*-linux-gnu/*",
    "usr/lib64/*",
    "usr/lib/ld-linux-*",
    f"{STDLIB}/*",
    "usr/lib/os-release",
    "etc/os-release",
    "usr/share/doc/*/copyright",
    "usr/share/common-licenses/*",
    "usr/share/ca-certificates/*",
)
"""Files that are kept of Debian packages."""
LEFT_OUT_MODULES = (
    "curses",
    "dbm",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "sqlite3",
    "test",
    "venv",
)
LEFT_OUT_EXTENSIONS = (
    "_ctypes_test",
    "_curses*",
    "_dbm",
    "_sqlite3",
    "_test*",
    "_xx*",
    "nis",
    "ossaudiodev",
    "readline",
)
LEFT_OUT_SYSTEM_FILES = (
    "usr/lib/*/gconv/*",
    "usr/lib/*/audit/*",
    f"{STDLIB}/sitecustomize.py",
    *(f"{STDLIB}/{name}/*" for name in LEFT_OUT_MODULES),
    *(f"{STDLIB}/lib-dynload/{name}.*.so" for name in LEFT_OUT_EXTENSIONS),
)
"""Parts of the standard library that need further libraries or are only for developers."""
LEFT_OUT_WHEEL_FILES = (
    *("*/tests/*", "*/test/*", "*.pyi", "*.pyx", "*.pxd", "*.pxi", "*.c", "*.h", "*.proto", "*.data/*"),
    "apsw/sqlite_extra_binaries/*",  # command line tools of SQLite
    *("cffi/*", "pycparser/*"),  # compilers of bindings; cryptography has compiled ones
    *(
        f"google/{name}/*" for name in ("api", "cloud", "gapic", "logging", "longrunning", "type")
    ),  # only google/rpc is used
    *("grpc/beta/*", "grpc/framework/*"),  # interfaces of earlier versions, which the others do not use
    "opentelemetry/semconv/_incubating/*/[a-np-z]*",  # names of other systems; the SDK imports those of otel
    "pygments/*",  # rich imports it only to highlight source code
)


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def merged_name(name: str) -> str:
    """Return the path of a file of a Debian package in an image in which /lib is a link to /usr/lib."""
    name = name.removeprefix("./")
    return f"usr/{name}" if re.match(r"(bin|sbin|lib|lib64)/", name) else name


# -- the three layers, as folders


def unpack_package(package: Path, root: Path) -> None:
    """Unpack the files of a Debian package that the image needs, and its description for vulnerability scanners."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        with tarfile.open(fileobj=reading.stdout, mode="r|") as tar:
            for member in tar:
                name = merged_name(member.name)
                if member.isdir() or not matches(name, SYSTEM_FILES) or matches(name, LEFT_OUT_SYSTEM_FILES):
                    continue
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    path.symlink_to(member.linkname)
                elif file := tar.extractfile(member):
                    write_file(path, file.read(), is_program=bool(member.mode & 0o111))
    if reading.returncode != 0:
        raise ImageError(f"dpkg-deb cannot read {package.name}: delete it and build again")
    control = run("dpkg-deb", "--field", package)
    write_file(root / "var/lib/dpkg/status.d" / package.name.partition("_")[0], control.encode())


def write_file(path: Path, content: bytes, *, is_program: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if is_program else 0o644)


def write_system(root: Path, packages: Iterable[Path]) -> None:
    """Write Python, the shared libraries that it needs, and the files that every Linux system has."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        unpack_package(package, root)
    authorities = root / "usr/share/ca-certificates"
    bundle = b"".join(path.read_bytes() for path in sorted(authorities.rglob("*.crt")))
    shutil.rmtree(authorities)
    write_file(root / CA_BUNDLE, bundle)
    write_file(root / "etc/passwd", f"root:x:0:0::/root:/\nnonroot:x:{USER}:{USER}::/{HOME}:/\n".encode())
    write_file(root / "etc/group", f"root:x:0:\nnonroot:x:{USER}:\n".encode())
    write_file(root / "etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    for name, mode in (("tmp", 0o1777), (HOME, 0o700)):
        (root / name).mkdir(parents=True)
        (root / name).chmod(mode)


def write_wheels(root: Path, wheels: Iterable[Path]) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith("/") or matches(name, LEFT_OUT_WHEEL_FILES):
                    continue
                write_file(root / PACKAGES_FOLDER / name, archive.read(name))


def write_project(root: Path, folder: Path, epoch: int) -> None:
    """Write this project as it is installed from its wheel, and the program that is the entrypoint."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    hint = "Install the development dependencies first: make setup"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, hint=hint, environ=environ)
    write_wheels(root, folder.glob("*.whl"))
    write_file(root / "usr/bin/tapestry", PROGRAM.encode(), is_program=True)


@dataclass(frozen=True)
class Tree:
    """The layers of the image for one architecture, as folders."""

    architecture: str
    folder: Path

    @property
    def system(self) -> Path:
        return self.folder / "system"

    @property
    def dependencies(self) -> Path:
        return self.folder / "dependencies"

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def layers(self) -> Sequence[Path]:
        return self.system, self.dependencies, self.project

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of Python and of everything else in bytes."""
        python = rest = 0
        for layer in self.layers:
            for path in sorted_paths(layer):
                if path.is_file() and not path.is_symlink():
                    name = path.relative_to(layer).as_posix()
                    if matches(name, ("usr/bin/python*", f"{STDLIB}/*")):
                        python += path.stat().st_size
                    else:
                        rest += path.stat().st_size
        return python, rest


def compile_modules(native: Tree, trees: Iterable[Tree]) -> None:
    """Compile all modules with the Python of the image, so that the result does not depend on that of this machine.

    The image never checks them against the sources: its root file system is read-only.
    """
    libraries = native.system / f"usr/lib/{MACHINES[native.architecture]}-linux-gnu"
    loader = next(libraries.glob("ld-linux-*.so.*"))
    python = (loader, "--library-path", libraries, native.system / f"usr/bin/python{PYTHON}", "-sSP")
    environ = {"PYTHONHOME": str(native.system / "usr"), "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}
    for tree in trees:
        for layer in tree.layers:
            run(
                *(*python, "-m", "compileall", "-q", "-f", "-r", "100", "--invalidation-mode", "unchecked-hash"),
                *("-s", layer, "-p", "/", layer),
                environ=environ,
            )


# -- the build


def native_architecture() -> str:
    machine = platform.machine().replace("arm64", "aarch64")
    try:
        return {value: key for key, value in MACHINES.items()}[machine]
    except KeyError:
        raise ImageError(f"cannot build on a {machine} machine: use one of {', '.join(MACHINES.values())}") from None


def build_trees(folder: Path, architectures: Sequence[str], epoch: int, *, is_newest: bool = False) -> list[Tree]:
    """Build the layers for these architectures as folders. With `is_newest`, use the newest Debian packages."""
    cache = cache_folder(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    native = native_architecture()
    trees = {name: Tree(name, folder / name) for name in dict.fromkeys((*architectures, native))}
    with sole_builder(cache):
        locked = Apt(cache).newest_packages(report) if is_newest else parse_packages(PACKAGES_LOCK.read_text())
        packages = {name: Apt(cache).download(packages_for(name, locked), report) for name in trees}
        wheels = {name: download_wheels(image_wheels(), name, cache, report) for name in architectures}
    for name, tree in trees.items():
        report(f"unpacking {name}")
        write_system(tree.system, packages[name])
    for name in architectures:
        write_wheels(trees[name].dependencies, wheels[name])
        write_project(trees[name].project, folder / f"{name}-wheel", epoch)
    report("compiling modules")
    wanted = [trees[name] for name in architectures]
    compile_modules(trees[native], wanted)
    return wanted


def write_layout(trees: Iterable[Tree], folder: Path, name: str, epoch: int) -> Descriptor:
    """Write the layout of an image with these platforms, and return the descriptor of its index."""
    shutil.rmtree(folder, ignore_errors=True)
    layout = Layout(folder, epoch)
    images = []
    for tree in trees:
        report(f"writing the layers for {tree.architecture}")
        layers = [layout.add_layer(layer, {HOME: USER}) for layer in tree.layers]
        images.append(layout.add_image(tree.architecture, {**CONFIG, "Labels": LABELS}, layers))
    index = layout.add_index(name, images, LABELS)
    layout.write_archive(folder.with_suffix(".tar"))
    return index


def write_root(tree: Tree, folder: Path) -> None:
    """Write the root file system of the image into a folder, for another tool that makes an image of it."""
    for layer in tree.layers:
        shutil.copytree(layer, folder, symlinks=True, dirs_exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder / HOME, USER, USER)


def build_time() -> int:
    """Return the time of all files: SOURCE_DATE_EPOCH, or the time of the last commit."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    return int(run("git", "log", "-1", "--format=%ct", hint="Outside of a git repository, set SOURCE_DATE_EPOCH."))


def report(line: str) -> None:
    print(line, flush=True)


def size_lines(trees: Iterable[Tree]) -> Iterator[str]:
    for tree in trees:
        python, rest = tree.sizes()
        yield (
            f"{tree.architecture}: {rest / 1e6:.1f} MB unpacked (limit {SIZE_LIMIT / 1e6:.0f} MB), "
            f"and Python {python / 1e6:.1f} MB"
        )


def lock_packages() -> None:
    cache = cache_folder(os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    with sole_builder(cache):
        packages = Apt(cache).newest_packages(report)
    PACKAGES_LOCK.write_text("".join(f"{package.line}\n" for package in packages))
    report(f"{PACKAGES_LOCK.relative_to(ROOT)} contains {len(packages)} packages")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default=NAME, help=f"name and tag of the image (default {NAME})")
    parser.add_argument(
        "--architecture", action="append", choices=list(MACHINES), help="build only this one; repeat for several"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "image", help="folder of the layout")
    parser.add_argument("--root", type=Path, help="write only the root file system into this folder, for a Dockerfile")
    parser.add_argument("--newest", action="store_true", help="use the newest Debian packages, not the pinned ones")
    parser.add_argument("--lock", action="store_true", help="pin the newest Debian packages, and build nothing")
    options = parser.parse_args()
    try:
        if options.lock:
            lock_packages()
            return 0
        build_image(options)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


def build_image(options: argparse.Namespace) -> None:
    started = time.monotonic()
    epoch = build_time()
    os.umask(0o022)  # modes of folders are part of the image
    with tempfile.TemporaryDirectory(prefix="tapestry-image-") as work:
        trees = build_trees(Path(work), options.architecture or list(MACHINES), epoch, is_newest=options.newest)
        for line in size_lines(trees):
            report(line)
        if options.root:
            [tree] = trees
            write_root(tree, options.root)
            return
        index = write_layout(trees, options.output, options.name, epoch)
    report(f"built {options.name} in {time.monotonic() - started:.0f} s: {options.output}")
    report(f"digest {index['digest']}")


if __name__ == "__main__":
    sys.exit(main())
