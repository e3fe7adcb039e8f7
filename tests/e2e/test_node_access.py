"""A real kubelet on our API server gets certificates, runs a pod and reaches only its own objects."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..integration.servers import TAPESTRY, OwnServer
from .images import IMAGE
from .nodes import MACHINE, Kit, RealNode, run
from .streams import Streams

pytestmark = pytest.mark.timeout(450)  # includes waiting until another worker has finished with its nodes

RIGHTS = {
    "bootstrap": ("system:node-bootstrapper", "system:bootstrappers"),
    "approve": ("system:certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers"),
    "renew": ("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes"),
}
"""Role and group of each binding that kubeadm creates for the same purpose."""
SERVING = "--field-selector=spec.signerName=kubernetes.io/kubelet-serving"
WORKLOAD = f"""
apiVersion: v1
kind: Secret
metadata: {{name: till}}
stringData: {{code: "1234"}}
---
apiVersion: v1
kind: Secret
metadata: {{name: safe}}
---
apiVersion: v1
kind: Node
metadata: {{name: n2}}
---
apiVersion: v1
kind: Pod
metadata: {{name: clerk}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  volumes: [{{name: till, secret: {{secretName: till}}}}]
  containers:
  - name: clerk
    image: {IMAGE}
    command: [sh, -c, "cat /till/code; echo; exec sleep 1000"]
    volumeMounts: [{{name: till, mountPath: /till}}]
"""


@dataclass(frozen=True)
class Cluster:
    """Our API server with one real node."""

    server: OwnServer
    node: RealNode
    assets: Path

    def kubectl(self, *arguments: object) -> str:
        return run(self.assets / "kubectl", f"--kubeconfig={self.server.kubeconfig}", *arguments)

    def as_node(self, *arguments: object) -> str:
        """Return the output of kubectl with the certificate of the kubelet."""
        certificate = self.node.certificate
        access = (f"--server={self.server.url}", f"--certificate-authority={self.server.ca}")
        credentials = (f"--client-certificate={certificate}", f"--client-key={certificate}", "--kubeconfig=/dev/null")
        done = subprocess.run(
            [self.assets / "kubectl", *access, *credentials, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster(node_network: None, node_kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("own")
    server = OwnServer(
        folder / "server",
        f"--kubelet-certificate-authority={folder / 'server' / 'pki' / 'ca.crt'}",
        address=MACHINE,
    )
    with server:
        for name, (role, group) in RIGHTS.items():
            command = ("create", "clusterrolebinding", name, f"--clusterrole={role}", f"--group={group}")
            run(node_kit.assets / "kubectl", f"--kubeconfig={server.kubeconfig}", *command)
        bootstrap = folder / "bootstrap.kubeconfig"
        bootstrap.write_text(server.kubeconfig.read_text().replace(server.token, bootstrap_token(server)))
        with RealNode("n1", 1, server, folder / "node", node_kit, bootstrap=bootstrap) as node:
            node.wait_until_ready()
            yield Cluster(server, node, node_kit.assets)


def bootstrap_token(server: OwnServer) -> str:
    subject = ("--user", "system:bootstrap:n1", "--group", "system:bootstrappers", "--ttl", "10m")
    return run(TAPESTRY, "token", "create", "--file-rootpath", server.folder, *subject).strip()


def test_kubelet_with_certificate_reaches_only_its_own(cluster: Cluster, tmp_path: Path) -> None:
    try:
        check_client_certificate(cluster)
        check_serving_certificate(cluster)
        check_pod(cluster, tmp_path)
        check_isolation(cluster, tmp_path)
    except Exception as error:
        error.add_note(cluster.node.log_tails())
        raise
    refusals = [line for line in (cluster.node.folder / "kubelet.log").read_text().splitlines() if "forbidden" in line]
    assert refusals == []


def check_client_certificate(cluster: Cluster) -> None:
    """Check that the client certificate was approved and signed automatically."""
    who = json.loads(cluster.as_node("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert who["username"] == "system:node:n1"
    assert "system:nodes" in who["groups"]


def check_serving_certificate(cluster: Cluster) -> None:
    """Approve the serving certificate, which logs need, and wait until the kubelet has it."""
    pause, deadline = threading.Event(), time.monotonic() + 30
    while not (names := cluster.kubectl("get", "csr", SERVING, "-o", "name").split()):
        assert time.monotonic() < deadline, "the kubelet requests no serving certificate"
        pause.wait(0.2)
    cluster.kubectl("certificate", "approve", *names)
    cluster.kubectl("wait", names[0], "--for=jsonpath={.status.certificate}", "--timeout=30s")
    while not list((cluster.node.folder / "var/lib/kubelet/pki").glob("kubelet-server-2*.pem")):
        assert time.monotonic() < deadline, "the kubelet does not store its certificate"
        pause.wait(0.2)


def check_pod(cluster: Cluster, folder: Path) -> None:
    manifest = folder / "workload.yaml"
    manifest.write_text(WORKLOAD)
    cluster.kubectl("apply", "-f", manifest)
    cluster.kubectl("wait", "pod/clerk", "--for=condition=Ready", "--timeout=60s")
    assert cluster.kubectl("logs", "clerk") == "1234\n"
    streams = Streams(cluster.server.kubeconfig, cluster.assets, "default", spec={"nodeName": "n1"})
    streams.check_logs("talk")
    streams.check_debug("clerk")


def check_isolation(cluster: Cluster, folder: Path) -> None:
    other = folder / "other.json"
    other.write_text(cluster.kubectl("get", "node", "n2", "-o", "json"))
    assert cluster.as_node("get", "secret", "till", "-o", "name") == "secret/till\n"
    assert cluster.as_node("get", "node", "n1", "-o", "name") == "node/n1\n"
    refused = {
        "no relationship found between node 'n1' and this object": ("get", "secret", "safe"),
        "No Object name found": ("get", "secrets"),
        "cannot read 'n2', only its own Node object": ("get", "node", "n2"),
        "is not allowed to modify node": ("replace", "--raw", "/api/v1/nodes/n2/status", "-f", other),
        "can only list/watch pods with spec.nodeName field selector": ("get", "pods"),
        "is not allowed to modify taints": (
            *("patch", "node", "n1", "--type=merge"),
            *("--patch", '{"spec": {"taints": [{"key": "mine", "effect": "NoSchedule"}]}}'),
        ),
    }
    for message, command in refused.items():
        output = cluster.as_node(*command)
        assert "orbidden" in output
        assert message in output
