"""A tenant from the first to the last command, with its processes: planes and a host cluster."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import kubectl_of

from .servers import TAPESTRY, ClusterProcess, PlanesProcess

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: web
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
OF_TENANTS = "tapestry.io/cluster-binding-uid"


@dataclass(frozen=True)
class Setting:
    """The processes, and kubectl for each API."""

    planes: PlanesProcess
    host: ClusterProcess
    kubectl: Callable[..., str]
    plane: Path
    """Kubeconfig of the plane of the tenant."""

    def tapestry(self, *words: str | Path) -> str:
        """Return the output of a command on the management API."""
        command = [TAPESTRY, *words, "--data", self.planes.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def in_plane(self, *words: str, stdin: str = "") -> str:
        return self.kubectl(*words, kubeconfig=self.plane, stdin=stdin)

    def in_host(self, *words: str) -> str:
        return self.kubectl(*words, kubeconfig=self.host.kubeconfig)


@pytest.fixture
def setting(kube_assets: Path, tmp_path: Path) -> Iterator[Setting]:
    with PlanesProcess(tmp_path / "planes") as planes, ClusterProcess(tmp_path / "host", "--nodes", "2") as host:
        yield Setting(planes, host, kubectl_of(kube_assets, host.kubeconfig), tmp_path / "plane.kubeconfig")


@pytest.mark.timeout(300)
def test_tenant_runs_survives_a_kill_and_leaves_nothing(setting: Setting) -> None:
    tapestry, in_plane, in_host = setting.tapestry, setting.in_plane, setting.in_host
    tapestry("host", "add", "east", "--cluster-kubeconfig", setting.host.kubeconfig, "--allow-loopback")
    tapestry("planes", "create", "blue")
    setting.plane.write_text(tapestry("planes", "kubeconfig", "blue"))
    tapestry("tenant", "create", "blue", "--host", "east")
    in_plane("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    in_plane("apply", "-f", "-", stdin=WEB)
    in_plane("rollout", "status", "deployment/web", "--timeout=60s")
    pods = in_host("get", "pods", "-A", "-l", OF_TENANTS, "-o", "name")
    assert len(pods.splitlines()) == 2

    tapestry("tenant", "drain", "blue")
    assert in_plane("get", "pods", "-o", "jsonpath={.items[*].status.phase}") == "Pending Pending"
    assert in_host("get", "pods", "-A", "-l", OF_TENANTS, "-o", "name") == ""
    tapestry("tenant", "run", "blue")
    in_plane("wait", "--for=condition=Ready", "pod", "-l", "app=web", "--timeout=60s")

    before = in_host("get", "pods", "-A", "-l", OF_TENANTS, "-o", "jsonpath={.items[*].metadata.uid}")
    setting.planes.restart()
    in_plane("scale", "deployment/web", "--replicas=3")
    in_plane("rollout", "status", "deployment/web", "--timeout=60s")
    after = in_host("get", "pods", "-A", "-l", OF_TENANTS, "-o", "jsonpath={.items[*].metadata.uid}")
    assert set(before.split()) < set(after.split())

    tapestry("tenant", "delete", "blue")
    assert inventory(in_host) == ""
    assert in_plane("get", "deployment", "web", "-o", "name") == "deployment.apps/web\n"
    tapestry("host", "remove", "east")


def inventory(kubectl: Callable[..., str]) -> str:
    """Return all objects of a cluster with the label of tenants' objects."""
    kinds = ",".join(kubectl("api-resources", "--verbs=list,delete", "-o", "name").split())
    return kubectl("get", kinds, "-A", "-l", OF_TENANTS, "-o", "name")
