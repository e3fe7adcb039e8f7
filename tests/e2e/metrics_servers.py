"""An unmodified metrics-server as a process of this machine, alone or as an aggregated API of a cluster."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tapestry.local.kubernetes import free_ports

from ..integration.processes import running
from .clusters import Cluster

API_SERVICE = "v1beta1.metrics.k8s.io"


@contextmanager
def metrics_server(assets: Path, kubeconfig: Path, folder: Path, *flags: str) -> Iterator[int]:
    """Run metrics-server while the context is open, and yield its port.  `flags` say how it verifies kubelets."""
    program, (port,) = assets / "metrics-server", free_ports(1)
    if not program.exists():
        pytest.skip(f"no metrics-server in {assets}: run make client-assets")
    folder.mkdir(exist_ok=True)
    access = [f"--{each}kubeconfig={kubeconfig}" for each in ("", "authentication-", "authorization-")]
    kubelets = ["--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP", *flags]
    listener = ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}"]
    command = [program, *access, *kubelets, *listener, "--metric-resolution=10s", "--kubelet-request-timeout=5s"]
    with running(command, folder / "metrics-server.log"):
        yield port


@contextmanager
def aggregated_metrics(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Serve the metrics API of a cluster with real components, from metrics-server."""
    with metrics_server(cluster.assets, cluster.plane.kubeconfig, folder, "--kubelet-insecure-tls") as port:
        reference = {"name": "metrics-server", "namespace": "kube-system"}
        service = {"type": "ExternalName", "externalName": "localhost"}
        api = {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {**reference, "port": port},
        }
        objects = [
            {"apiVersion": "v1", "kind": "Service", "metadata": reference, "spec": service},
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": API_SERVICE},
                "spec": api,
            },
        ]
        manifest = folder / "api.json"
        manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        cluster.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")  # that of local kubelets
        cluster.kubectl("create", "-f", manifest)
        cluster.kubectl("wait", f"apiservice/{API_SERVICE}", "--for=condition=Available", "--timeout=60s")
        yield
        cluster.kubectl("delete", "-f", manifest)
