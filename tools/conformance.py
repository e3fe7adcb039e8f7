"""Runs those of Kubernetes' conformance tests that need nothing but an API server against `tapestry apiserver`.

    make conformance                                    all of them, in six minutes
    python tools/conformance.py --focus 'Watchers'      those whose names match
    python tools/conformance.py --controllers           those that need controllers, with a kube-controller-manager

The server is a process with its data on the disk, TLS, and the controllers that it brings along, or Kubernetes' own in
their place; one Node object says that it is ready.  tests/conformance/needs-*.txt name the tests, not-yet.txt those
that are known not to pass: a run fails when any other does, and when one of these has come to pass.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kube_assets import assets_folder

LISTS = Path(__file__).parent.parent / "tests" / "conformance"
TAPESTRY = Path(sys.executable).with_name("tapestry")
HEARTBEAT_SECONDS = 10
HISTORY_SECONDS = 60
"""For how long the server remembers: a test waits until it has forgotten something."""
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-0", "labels": {"kubernetes.io/hostname": "node-0", "kubernetes.io/os": "linux"}},
    "status": {
        "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Stated"}],
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
    },
}


def names_in(path: Path) -> list[str]:
    """The lines of a list of tests, without its comments."""
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


@contextlib.contextmanager
def served(folder: Path, controllers: str = "*") -> Iterator[Path]:
    """A server that answers, with these controllers; the kubeconfig of somebody who may do everything there."""
    token = secrets.token_urlsafe(32)
    tokens = private(folder / "tokens.csv", f"{token},admin,admin,system:masters\n")
    data = folder / "data"
    command = [TAPESTRY, "apiserver", "--file-rootpath", data, "--bind-address", "127.0.0.1:0"]
    command += ["--controllers", controllers]
    environment = {**os.environ, "TAPESTRY_HISTORY_SECONDS": str(HISTORY_SECONDS), "TAPESTRY_LOG_FORMAT": "json"}
    with (
        (folder / "server.log").open("w+") as log,
        subprocess.Popen([*command, "--token-auth-file", tokens], stderr=log, env=environment) as process,
    ):
        try:
            address = said_address(process, folder / "server.log")
            authority = (data / "pki" / "ca.crt").read_bytes()
            yield private(folder / "kubeconfig", json.dumps(kubeconfig(f"https://{address}", authority, token)))
        finally:
            process.terminate()


@contextlib.contextmanager
def controlled(folder: Path, assets: Path) -> Iterator[Path]:
    """The same with a kube-controller-manager, and none of the server's own."""
    with served(folder, "none") as config, (folder / "controllers.log").open("w") as log:
        pki = folder / "data" / "pki"
        command = [
            assets / "kube-controller-manager",
            "--kubeconfig",
            config,
            "--leader-elect=false",
            "--secure-port=0",
        ]
        command += [
            "--service-account-private-key-file",
            pki / "service-accounts.key",
            "--root-ca-file",
            pki / "ca.crt",
        ]
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                yield config
            finally:
                process.terminate()


def said_address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where the server says that it serves."""
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("{") and (said := json.loads(line)).get("message") == "serving":
                return str(said["secure"])
        time.sleep(0.1)
    raise SystemExit(f"tapestry apiserver ended with {process.returncode}:\n{log.read_text()}")


def private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def kubeconfig(server: str, authority: bytes, token: str) -> dict[str, object]:
    certificate = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority-data": certificate}}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
        "current-context": "it",
    }


def run(names: Sequence[str], config: Path, assets: Path, report: Path) -> None:
    """Run the tests; what becomes of each is in the report.  Their own exit code says nothing more."""
    kubectl = [assets / "kubectl", "--kubeconfig", config]
    have(kubectl, NODE)
    command = [assets / "e2e.test", "--kubeconfig", config, "--kubectl-path", assets / "kubectl", "--provider=local"]
    command += ["--allowed-not-ready-nodes=-1", "--disable-log-dump", "--report-dir", report]
    command += ["--ginkgo.no-color", "--ginkgo.v", "--ginkgo.focus", "|".join(f"{re.escape(name)}$" for name in names)]
    print(f"{len(names)} tests: {report / 'log'} shows how they go", flush=True)
    with (report / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as tests:
        while tests.poll() is None:
            have(kubectl, lease(datetime.now(UTC)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(HEARTBEAT_SECONDS)


def have(kubectl: Sequence[str | Path], obj: dict[str, object]) -> None:
    command = [*kubectl, "apply", "--server-side", "-f", "-"]
    subprocess.run(command, input=json.dumps(obj), text=True, check=True, stdout=subprocess.DEVNULL)


def lease(now: datetime) -> dict[str, object]:
    """What a node renews as long as it lives; a server on which nothing happens would have nothing to forget."""
    spec = {"holderIdentity": "node-0", "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
    about = {"name": "node-0", "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": spec}


def outcomes(report: Path, names: Sequence[str]) -> dict[str, str]:
    """What became of each test: `passed`, or something else."""
    cases = xml.parse(report / "junit_01.xml").iter("testcase")
    states = {case.get("name", "").removeprefix("[It] "): case.get("status", "") for case in cases}
    return {name: states.get(name, "not run") for name in names}


def judged(found: dict[str, str], known: Sequence[str]) -> int:
    """Print what came of it; the exit code."""
    failed = [name for name, state in found.items() if state != "passed"]
    surprises = [name for name in failed if name not in known]
    better = [name for name in known if found.get(name) == "passed"]
    for name in failed:
        print(f"{found[name]:8} {name}{'' if name in surprises else '  (known)'}")
    for name in better:
        print(f"passes now: take it out of {LISTS.name}/not-yet.txt: {name}")
    print(f"{len(found) - len(failed)} passed, {len(failed)} failed, {len(found)} in all")
    return 1 if surprises or better else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--focus", default="", metavar="REGEX", help="run only tests whose names match")
    parser.add_argument(
        "--controllers", action="store_true", help="run those that need controllers, with Kubernetes' own"
    )
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="where logs and results go, and stay")
    options = parser.parse_args()
    assets = assets_folder(os.environ)
    programs = ["e2e.test", "kubectl", *(["kube-controller-manager"] if options.controllers else [])]
    if missing := [name for name in programs if not (assets / name).exists()]:
        raise SystemExit(
            f"no {', '.join(missing)} in {assets}: run make kube-assets conformance-assets (needs Go 1.24+)"
        )
    needs = "needs-controllers.txt" if options.controllers else "needs-only-a-server.txt"
    names = [name for name in names_in(LISTS / needs) if re.search(options.focus, name)]
    report = options.report or Path(tempfile.mkdtemp(prefix="conformance-"))
    report.mkdir(parents=True, exist_ok=True)
    with controlled(report, assets) if options.controllers else served(report) as config:
        run(names, config, assets, report)
    return judged(outcomes(report, names), names_in(LISTS / "not-yet.txt"))


if __name__ == "__main__":
    sys.exit(main())
