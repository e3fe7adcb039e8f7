"""Clusters for conformance tests.

Each is a context manager that runs the cluster and yields the kubeconfig of an administrator:

    server       `tapestry apiserver` and one Node object that is marked ready
    cluster      `tapestry cluster`: Tapestry's server, scheduler and controllers, and simulated nodes
    kubernetes   the same nodes with Kubernetes' own server, scheduler and controllers
"""

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

TAPESTRY = Path(sys.executable).with_name("tapestry")
NODES = 3
HEARTBEAT_SECONDS = 10
HISTORY_SECONDS = 60
"""Seconds of history that the server keeps. One test waits until history has expired."""
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
TestCluster = Callable[[Path, Path], AbstractContextManager[Path]]
"""Take a folder for its files and the folder of Kubernetes' programs."""


@contextlib.contextmanager
def server(folder: Path, assets: Path) -> Iterator[Path]:
    token = secrets.token_urlsafe(32)
    tokens = private(folder / "tokens.csv", f"{token},admin,admin,system:masters\n")
    data = folder / "data"
    command = [TAPESTRY, "apiserver", "--file-rootpath", data, "--bind-address", "127.0.0.1:0"]
    environment = {**os.environ, "TAPESTRY_HISTORY_SECONDS": str(HISTORY_SECONDS), "TAPESTRY_LOG_FORMAT": "json"}
    with running([*command, "--token-auth-file", tokens], folder / "server.log", environment) as process:
        address = str(wait_for_log(process, folder / "server.log", "API server started")["secure"])
        authority = (data / "pki" / "ca.crt").read_bytes()
        config = private(folder / "kubeconfig", json.dumps(kubeconfig(f"https://{address}", authority, token)))
        with node_alive([assets / "kubectl", "--kubeconfig", config]):
            yield config


@contextlib.contextmanager
def cluster(folder: Path, _: Path, *options: str) -> Iterator[Path]:
    data, log = folder / "node", folder / "cluster.log"  # nodes are named after the folder
    with running([TAPESTRY, "cluster", "--data", data, "--nodes", str(NODES), *options], log) as process:
        wait_for_log(process, log, "cluster ready")
        yield data / "kubeconfig"


def kubernetes(folder: Path, assets: Path) -> AbstractContextManager[Path]:
    return cluster(folder, assets, "--real-kubernetes")


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def wait_for_log(process: subprocess.Popen[bytes], log: Path, message: str) -> dict[str, object]:
    """Wait for the first log line with the message, and return it."""
    while process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("{") and (found := json.loads(line)).get("message") == message:
                return dict(found)
        time.sleep(0.1)
    raise SystemExit(f"{log.stem} ended with {process.returncode}:\n{log.read_text()}")


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


@contextlib.contextmanager
def node_alive(kubectl: Sequence[str | Path]) -> Iterator[None]:
    """Run one ready node. Its lease is renewed, because an idle server has no history that could expire."""
    apply(kubectl, NODE)
    stopped = threading.Event()

    def renew_lease() -> None:
        while not stopped.wait(HEARTBEAT_SECONDS):
            apply(kubectl, lease(datetime.now(UTC)))

    thread = threading.Thread(target=renew_lease)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def apply(kubectl: Sequence[str | Path], obj: dict[str, object]) -> None:
    command = [*kubectl, "apply", "--server-side", "-f", "-"]
    subprocess.run(command, input=json.dumps(obj), text=True, check=True, stdout=subprocess.DEVNULL)


def lease(now: datetime) -> dict[str, object]:
    spec = {"holderIdentity": "node-0", "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
    metadata = {"name": "node-0", "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
