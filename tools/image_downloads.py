"""Debian packages and wheels of the image, pinned by hash and downloaded once, into the user's cache folder."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
PACKAGES_LOCK = ROOT / "tools" / "image" / "packages.lock"
REQUIREMENTS_LOCK = ROOT / "requirements.lock"
PYTHON = "3.11"
GLIBC = (2, 36)
"""Version of the C library in Debian 12, which limits the wheels that can be loaded."""
EXTRAS = ("server", "etcd", "service", "otel")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Names of processor architectures: those of Debian and OCI, and those of the kernel and of wheels."""

LIBRARIES = (
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libssl3",
    "libstdc++6",
)
PACKAGES = (
    *("base-files", "ca-certificates", f"libpython{PYTHON}-minimal", f"libpython{PYTHON}-stdlib"),
    *(*LIBRARIES, "libuuid1", f"python{PYTHON}-minimal", "zlib1g"),
)
INDEPENDENT = {"ca-certificates"}
"""Packages for all architectures."""

Report = Callable[[str], None]


class ImageError(Exception):
    """A build step failed. The message says what to do."""


@dataclass(frozen=True)
class Package:
    """A Debian package, pinned by the hash of its file."""

    architecture: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"

    @property
    def line(self) -> str:
        return f"{self.architecture} {self.name} {self.version} sha256:{self.sha256}"


@dataclass(frozen=True)
class Wheel:
    """A distribution of requirements.lock. One of the hashes is that of its wheel for each architecture."""

    name: str
    version: str
    hashes: frozenset[str]

    @property
    def requirement(self) -> str:
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{each}" for each in sorted(self.hashes))])


def cache_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapestry" / "image"


def run(*command: str | Path, cwd: Path = ROOT, hint: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """Return the output of a command. Raise ImageError with the end of its errors and the hint if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=cwd, env=environ, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ImageError(f"{command[0]} is not installed: build on Debian or Ubuntu, or use the Dockerfile") from None
    if done.returncode != 0:
        errors = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ImageError(f"{command[0]} failed: {errors}" + (f"\n{hint}" if hint else ""))
    return done.stdout


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- Debian packages


def parse_packages(text: str) -> list[Package]:
    """Parse the lock file: one line for each package, `ARCHITECTURE NAME VERSION sha256:HASH`."""
    fields = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Package(architecture, name, version, sha256.removeprefix("sha256:"))
            for architecture, name, version, sha256 in fields]  # fmt: skip


def packages_for(architecture: str, packages: Iterable[Package]) -> list[Package]:
    return [package for package in packages if package.architecture in (architecture, "all")]


def current_packages(listing: str) -> Iterator[Package]:
    """Yield the packages of the output of `apt-cache show`."""
    for paragraph in listing.strip().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", paragraph, re.MULTILINE))
        yield Package(fields["Architecture"], fields["Package"], fields["Version"], fields["SHA256"])


@dataclass(frozen=True)
class Apt:
    """apt with the package sources of this machine, and with its own lists for all architectures."""

    cache: Path

    def options(self) -> list[str]:
        state = self.cache / "apt"
        for folder in ("lists/partial", "archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        return [
            *("-q", "-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::State::status={state}/status"),
            *("-o", f"Dir::Cache={state}", "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3"),
            *(part for machine in MACHINES for part in ("-o", f"APT::Architectures::={machine}")),
        ]

    def update(self, report: Report) -> None:
        report("updating the lists of Debian packages")
        run("apt-get", *self.options(), "update", hint="Check the package sources and the network of this machine.")

    def newest_packages(self, report: Report) -> list[Package]:
        """Return the newest version of each package for each architecture."""
        self.update(report)
        names = [
            name if name in INDEPENDENT else f"{name}:{machine}"
            for name in PACKAGES
            for machine in (["all"] if name in INDEPENDENT else MACHINES)
        ]
        hint = f"The package sources must contain Debian 12 (bookworm), which has Python {PYTHON}."
        listing = run("apt-cache", *self.options(), "show", "--no-all-versions", *names, hint=hint)
        return sorted(current_packages(listing), key=lambda package: (package.architecture, package.name))

    def download(self, packages: Iterable[Package], report: Report) -> list[Path]:
        """Return the files of the packages, after a download of those that are not in the cache."""
        folder = self.cache / "debs"
        folder.mkdir(parents=True, exist_ok=True)
        packages = list(packages)
        missing = [package for package in packages if not (folder / package.file).exists()]
        if missing:
            self.update(report)
            report(f"downloading {len(missing)} Debian packages")
            names = [
                f"{package.name}:{package.architecture}={package.version}".replace(":all=", "=") for package in missing
            ]
            hint = "If a version is no longer available, run `make image-lock` and commit the new lock file."
            run("apt-get", *self.options(), "download", *names, cwd=folder, hint=hint)
        for package in packages:
            check_hash(folder / package.file, {package.sha256})
        return [folder / package.file for package in packages]


def check_hash(path: Path, accepted: Iterable[str]) -> None:
    """Raise ImageError if a file is not the pinned one, and delete it, so that the next build downloads it again."""
    if sha256_of(path) not in accepted:
        path.unlink()
        raise ImageError(f"{path.name}: the hash of the downloaded file is not in the lock file; build again")


# -- wheels


def locked_wheels(names: Iterable[str], lock: str) -> list[Wheel]:
    """Return the entries of requirements.lock with these names."""
    found = {}
    for name, version, rest in re.findall(r"^(\S+)==(\S+)(.*(?:\n    .*)*)", lock, re.MULTILINE):
        found[name] = Wheel(name, version, frozenset(re.findall(r"--hash=sha256:(\w+)", rest)))
    if absent := sorted(set(names) - set(found)):
        raise ImageError(f"requirements.lock does not contain {', '.join(absent)}: run `make lock`")
    return [found[name] for name in sorted(names)]


def runtime_distributions(project: Mapping[str, object], requires: Callable[[str], list[str] | None]) -> set[str]:
    """Return the names of all distributions that the project needs in the image, directly or indirectly.

    `requires` returns the requirements of a distribution.
    """
    environment = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    optional = project["optional-dependencies"]
    direct = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]  # type: ignore[index,misc]
    todo = [Requirement(line) for line in direct]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras) or frozenset({""})
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for line in requires(name) or []:
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({**environment, "extra": e}) for e in extras):
                todo.append(further)
    return {name for name, _ in seen}


def image_wheels() -> list[Wheel]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return locked_wheels(runtime_distributions(project, requires), REQUIREMENTS_LOCK.read_text())


def download_wheels(wheels: Iterable[Wheel], architecture: str, cache: Path, report: Report) -> list[Path]:
    """Return the files of the wheels for an architecture, after a download of those that are not in the cache."""
    folder = cache / "wheels" / architecture
    folder.mkdir(parents=True, exist_ok=True)
    wheels = list(wheels)
    if missing := [wheel for wheel in wheels if wheel_file(folder, wheel) is None]:
        report(f"downloading {len(missing)} wheels for {architecture}")
        requirements = folder / "requirements.txt"
        requirements.write_text("\n".join(wheel.requirement for wheel in missing))
        major, minor = GLIBC
        platforms = [f"manylinux_{major}_{each}_{MACHINES[architecture]}" for each in range(minor, 4, -1)]
        older = [f"manylinux{each}_{MACHINES[architecture]}" for each in ("2014", "2010", "1")]
        run(
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--require-hashes", "--dest", folder, "--requirement", requirements),
            *(f"--platform={each}" for each in (*platforms, *older)),
            *(f"--python-version={PYTHON}", "--implementation=cp", f"--abi=cp{PYTHON.replace('.', '')}"),
            *("--abi=abi3", "--abi=none"),
            hint="Check the package index and the network of this machine.",
        )
    files = []
    for wheel in wheels:
        path = wheel_file(folder, wheel)
        if path is None:
            raise ImageError(f"{wheel.name} {wheel.version}: pip downloaded no wheel for {architecture}")
        check_hash(path, wheel.hashes)
        files.append(path)
    return files


def wheel_file(folder: Path, wheel: Wheel) -> Path | None:
    for path in sorted(folder.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(path.name)
        if name == wheel.name and str(version) == wheel.version:
            return path
    return None
