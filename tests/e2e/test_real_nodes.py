"""Real nodes of other tests behave as Kubernetes nodes do, and leave nothing behind."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from .clusters import PhysicalCluster
from .images import IMAGE
from .nodes import BRIDGE, CGROUP, KERNEL_SETTINGS, Kit, cgroup_hierarchies, network

pytestmark = pytest.mark.timeout(450)  # includes waiting until another worker has finished with its nodes

ROOT = Path(__file__).parents[2]
PAGE = "written in a ConfigMap"
SERVICE = "10.96.7.7"
WORKLOAD = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: page}}
data: {{index.html: "{PAGE}"}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec:
  clusterIP: {SERVICE}
  selector: {{app: web}}
  ports: [{{port: 80, targetPort: 8080}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: page, configMap: {{name: page}}}}]
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, "echo I am $HOSTNAME; exec httpd -f -p 8080 -h /page"]
        volumeMounts: [{{name: page, mountPath: /page}}]
        readinessProbe: {{httpGet: {{port: 8080}}, periodSeconds: 1}}
"""

NODE_RUNNER = """
import sys
from pathlib import Path
from tapestry.local.kubernetes import ControlPlane
from tests.e2e.nodes import MACHINE, Kit, RealNode, network
folder, assets, image = map(Path, sys.argv[1:])
with (
    network(),
    ControlPlane(folder / "plane", assets, fsync=False, address=MACHINE) as plane,
    RealNode("short-lived", 1, plane, folder / "node", Kit(assets, image)) as node,
):
    node.wait_until_ready()
    print(node.guard, flush=True)
    sys.stdin.read()
"""


def test_killed_runner_leaves_nothing_of_its_node(node_kit: Kit, tmp_path: Path) -> None:
    settings = kernel_settings()
    command = [sys.executable, "-c", NODE_RUNNER, tmp_path, node_kit.assets, node_kit.image]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        guard = os.pidfd_open(int(runner.stdout.readline()))
        runner.kill()
    ended, _, _ = select.select([guard], [], [], 60)
    os.close(guard)
    assert ended, "the node is still running"
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    with network():
        pass
    assert not Path("/sys/class/net", BRIDGE).exists()
    assert [folder for folder in cgroup_hierarchies() if (folder / CGROUP).exists()] == []
    assert kernel_settings() == settings


def kernel_settings() -> list[str]:
    """Return the machine-wide values of the settings that a kubelet enforces."""
    return [Path("/proc/sys", name).read_text() for name in KERNEL_SETTINGS]


@pytest.fixture(scope="module")
def serving(physical_clusters: dict[str, PhysicalCluster]) -> dict[str, PhysicalCluster]:
    """Clusters with an available workload."""
    for cluster in physical_clusters.values():
        manifest = cluster.node.folder / "workload.yaml"
        manifest.write_text(WORKLOAD)
        cluster.kubectl("apply", "-f", manifest)
    for cluster in physical_clusters.values():
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    return physical_clusters


@pytest.fixture(scope="module", params=["east", "west"])
def cluster(request: pytest.FixtureRequest, serving: dict[str, PhysicalCluster]) -> PhysicalCluster:
    return serving[request.param]


def run_in_container(cluster: PhysicalCluster, *command: str) -> str:
    """Return the output of a command in a container of the workload."""
    return cluster.kubectl("exec", "deployment/web", "--", *command)


def test_container_mounts_config_map_and_has_logs(cluster: PhysicalCluster) -> None:
    assert run_in_container(cluster, "cat", "/page/index.html") == PAGE
    assert cluster.kubectl("logs", "deployment/web").startswith("I am web-")


def test_pod_reaches_service_by_cluster_ip(cluster: PhysicalCluster) -> None:
    assert run_in_container(cluster, "wget", "-qO-", f"http://{SERVICE}") == PAGE


def test_container_calls_api_server_with_its_token(cluster: PhysicalCluster) -> None:
    username = run_in_container(cluster, "kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert username == "system:serviceaccount:default:default"


def test_pods_reach_pods_of_another_cluster(serving: dict[str, PhysicalCluster]) -> None:
    [address, *_] = serving["west"].kubectl("get", "pods", "-o", "jsonpath={.items[*].status.podIP}").split()
    assert run_in_container(serving["east"], "wget", "-qO-", f"http://{address}:8080") == PAGE


def test_deleted_pod_leaves_no_process(cluster: PhysicalCluster) -> None:
    cluster.kubectl("run", "brief", f"--image={IMAGE}")
    cluster.kubectl("wait", "pod/brief", "--for=condition=Ready", "--timeout=60s")
    found = cluster.kubectl("get", "pod", "brief", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
    container = found.removeprefix("containerd://")
    assert container in cluster.node.containers()
    cluster.kubectl("delete", "pod", "brief", "--grace-period=1")
    assert container not in cluster.node.containers()
