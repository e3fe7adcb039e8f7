"""Build a real Kubernetes from Go modules into the user's cache folder.

The default is the control plane. Options add the node programs, the tests of Kubernetes, or other clients. The modules
are pinned in the go.mod and go.sum of the folders of tools/kube-assets. A program appears in the folder only when it is
complete. Existing programs are not built again. If KUBEBUILDER_ASSETS is set, that folder is used as it is and nothing
is built.
"""

import argparse
import contextlib
import fcntl
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "kube-assets"
GO_ABSENT = 3  # exit code with which `make test` continues without Kubernetes


def pinned(module: str, path: str) -> str:
    """Return the version, without the v, that tools/kube-assets requires of a Go module."""
    found = re.search(rf"^require {re.escape(path)} v(\S+)$", (MODULES / module / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"tools/kube-assets/{module}/go.mod: no line `require {path} vX.Y.Z`")
    return found[1]


KUBERNETES = pinned("kubernetes", "k8s.io/kubernetes")
ETCD = pinned("etcd", "go.etcd.io/etcd/server/v3")


def kubernetes_stamps() -> str:
    """Return linker flags that set the version of the programs. Without them they report v0.0.0."""
    major, minor, _ = KUBERNETES.split(".")
    stamps = {
        "k8s.io/component-base/version.gitVersion": f"v{KUBERNETES}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{KUBERNETES}",
    }
    return " ".join(f"-X {name}={value}" for name, value in stamps.items())


@dataclass(frozen=True)
class Program:
    """A program to build. `seconds` is the build time on two cores without Go's build cache. With it, it is a tenth."""

    name: str
    module: str
    package: str
    seconds: int
    manifests: tuple[str, ...] = ()
    """Patterns of files of the Go module that are copied to `NAME.yaml` beside the program."""
    tags: str = ""
    """Build tags, separated by commas."""

    @property
    def command(self) -> list[str]:
        """The Go command: a test program has no main package."""
        return ["go", "test", "-c"] if self.name.endswith(".test") else ["go", "build"]

    @property
    def linker_flags(self) -> str:
        return f"-s -w {kubernetes_stamps()}" if self.module == "kubernetes" else "-s -w"


CONTROL_PLANE = [
    Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", 270),
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3", 30),
    Program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl", 40),
    Program("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", 100),
    Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", 10),
]
NODE = [
    Program("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet", 30),
    Program("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy", 10),
]
CONFORMANCE = [
    Program("e2e.test", "kubernetes", "k8s.io/kubernetes/test/e2e", 535),
    Program("agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost", 20),  # in the containers of the tests
    *(program for program in CONTROL_PLANE if program.name == "kubectl"),  # called by the tests
]
CLIENTS = [
    Program("helm", "helm", "helm.sh/helm/v3/cmd/helm", 115),
    Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", 170),
    Program("metrics-server", "metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server", 120),
]
QUEUES = [
    Program(
        "kueue",
        "kueue",
        "sigs.k8s.io/kueue/cmd/kueue",
        600,
        ("config/components/crd/bases/*.yaml", "config/components/webhook/manifests.yaml"),
    ),
]
# Service discovery other than that of Kubernetes needs the libraries of all cloud providers.
DISCOVERY = "remove_all_sd,enable_kubernetes_sd"
MONITORING = [
    Program("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", 240, tags=DISCOVERY),
    Program("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", 60, tags=DISCOVERY),
]
PROGRAMS = [*CONTROL_PLANE, *NODE, *CONFORMANCE[:2], *CLIENTS, *QUEUES, *MONITORING]


def assets_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the programs, whether it exists or not."""
    if folder := environ.get("KUBEBUILDER_ASSETS"):
        return Path(folder)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tapestry" / "kube-assets" / f"kubernetes-{KUBERNETES}-etcd-{ETCD}"


@contextlib.contextmanager
def sole_builder(folder: Path) -> Iterator[None]:
    """Allow one build into a folder at a time. The kernel releases the lock of a killed process."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run is building into {folder}: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for unfinished in folder.glob(".*.unfinished"):
            unfinished.unlink()
        yield


def build(program: Program, folder: Path) -> None:
    unfinished = folder / f".{program.name}.unfinished"
    command = [*program.command, "-mod=readonly", "-buildvcs=false", "-trimpath"]
    command += ["-tags", program.tags] if program.tags else []
    command += ["-ldflags", program.linker_flags, "-o", str(unfinished), program.package]
    started = time.monotonic()
    print(f"building {program.name} (about {program.seconds} s the first time) ...", flush=True)
    subprocess.run(command, cwd=MODULES / program.module, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
    if program.manifests:
        (folder / f"{program.name}.yaml").write_text(manifests_of(program))
    unfinished.rename(folder / program.name)
    print(f"built {program.name} in {time.monotonic() - started:.0f} s", flush=True)


def manifests_of(program: Program) -> str:
    """Return the manifests that a Go module contains for its program, as one YAML stream."""
    command = ["go", "list", "-f", "{{.Module.Dir}}", program.package]
    found = subprocess.run(command, cwd=MODULES / program.module, check=True, capture_output=True, text=True)
    module = Path(found.stdout.strip())
    files = [path for pattern in program.manifests for path in sorted(module.glob(pattern))]
    return "\n---\n".join(path.read_text() for path in files)


def build_missing(programs: list[Program], folder: Path) -> int:
    def missing() -> list[Program]:
        return [program for program in programs if not (folder / program.name).exists()]

    if not missing():
        print(f"Kubernetes {KUBERNETES} and etcd {ETCD} are in {folder}")
        return 0
    if shutil.which("go") is None:
        names = ", ".join(program.name for program in missing())
        print(f"Go is not installed, so {names} cannot be built: install Go 1.24+, or set KUBEBUILDER_ASSETS")
        return GO_ABSENT
    folder.mkdir(parents=True, exist_ok=True)
    with sole_builder(folder):
        return build_all(missing(), folder)


def build_all(programs: list[Program], folder: Path) -> int:
    if programs:
        minutes = math.ceil(sum(program.seconds for program in programs) / 60)
        print(f"building Kubernetes {KUBERNETES} and etcd {ETCD} from Go modules into {folder}")
        print(f"({len(programs)} to build: {minutes} min on two cores the first time, seconds when Go's cache is warm)")
    for program in programs:
        try:
            build(program, folder)
        except subprocess.CalledProcessError as error:
            print(f"{program.name}: `go build` ended with {error.returncode}; its output is above")
            return 1
    return 0


def parse_names(names: str) -> list[Program]:
    requested = set(names.split(","))
    if unknown := requested - {program.name for program in PROGRAMS}:
        known = ", ".join(program.name for program in PROGRAMS)
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {known}")
    return [program for program in PROGRAMS if program.name in requested]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Exit codes: 0 complete, 1 a build failed, {GO_ABSENT} a program is missing and Go is not installed.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", type=parse_names, metavar="NAME,...", help="build only the programs with these names")
    what.add_argument("--nodes", action="store_true", help="also build the programs of a node: kubelet and kube-proxy")
    what.add_argument(
        "--conformance", action="store_true", help="build the tests of Kubernetes, and kubectl, which they call"
    )
    what.add_argument(
        "--clients", action="store_true", help="build clients of an API server: helm, kwok and metrics-server"
    )
    what.add_argument("--queues", action="store_true", help="build Kueue, for the test of its guide")
    what.add_argument("--monitoring", action="store_true", help="build Prometheus and promtool, for the tests of rules")
    parser.add_argument("--print-dir", action="store_true", help="print the folder of the programs and build nothing")
    options = parser.parse_args()
    folder = assets_folder(os.environ)
    if options.print_dir:
        print(folder)
        return 0
    if os.environ.get("KUBEBUILDER_ASSETS"):
        print(f"KUBEBUILDER_ASSETS is set: {folder} is used as it is, nothing is built")
        return 0
    return build_missing(options.only or selected_programs(options), folder)


def selected_programs(options: argparse.Namespace) -> list[Program]:
    if options.conformance:
        return CONFORMANCE
    if options.clients:
        return CLIENTS
    if options.queues:
        return QUEUES
    if options.monitoring:
        return MONITORING
    return CONTROL_PLANE + NODE if options.nodes else CONTROL_PLANE


if __name__ == "__main__":
    sys.exit(main())
