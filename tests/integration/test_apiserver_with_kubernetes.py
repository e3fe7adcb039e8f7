"""kube-scheduler and kube-controller-manager on our API server."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from .processes import running
from .programs import Run, programs
from .servers import OwnServer

NODE = """
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
status:
  capacity: {{cpu: "4", memory: 8Gi, pods: "110"}}
  allocatable: {{cpu: "4", memory: 8Gi, pods: "110"}}
  conditions:
  - {{type: Ready, status: "True", reason: KubeletReady, message: ready, lastHeartbeatTime: "2030-01-01T00:00:00Z"}}
"""
INFORMERS = 18
"""Number of informers of kube-scheduler 1.34."""
EXPECTED = ("legacy_serviceaccount_token_cleaner", "the object has been modified", "unexpected items still remain")
"""Parts of errors that these programs log with kube-apiserver too, before they try again: a conflict, a namespace that
is not yet empty. The first names a controller that misses an object which only kube-apiserver creates."""


@dataclass(frozen=True)
class Cluster:
    kubectl: Run
    scheduler: Path
    controllers: Path


@pytest.fixture(scope="module")
def cluster(kube_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Our server with kube-controller-manager, kube-scheduler and two nodes without kubelets.

    At the end, the scheduler and the controllers must not have logged errors.
    """
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        server = stack.enter_context(OwnServer(folder / "data", "--controllers=none"))
        flags = ["--kubeconfig", server.kubeconfig, "--secure-port=0", "-v=2"]
        keys = ["--service-account-private-key-file", server.folder / "pki" / "service-accounts.key"]
        kubectl = partial(programs(kube_assets, server.kubeconfig, folder), "kubectl")
        found = Cluster(kubectl, folder / "scheduler.log", folder / "controllers.log")
        stack.enter_context(running([kube_assets / "kube-scheduler", *flags], found.scheduler))
        manager = [kube_assets / "kube-controller-manager", *flags, *keys, "--root-ca-file", server.ca]
        stack.enter_context(running(manager, found.controllers))
        for name in ("n1", "n2"):
            found.kubectl("apply", "-f", "-", input=NODE.format(name=name))
        yield found
        assert [*complaints(found.scheduler), *complaints(found.controllers)] == []


def complaints(log: Path) -> list[str]:
    errors = [line for line in log.read_text().splitlines() if line.startswith("E")]
    return [line for line in errors if not any(part in line for part in EXPECTED)]


def test_deployment_creates_scheduled_pods_and_deletion_removes_them(cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    kubectl("create", "deployment", "web", "--image=nginx", "--replicas=3")
    kubectl("wait", "deployment/web", "--for=jsonpath={.status.updatedReplicas}=3", "--timeout=30s")
    kubectl("wait", "pods", "-l", "app=web", "--for=condition=PodScheduled", "--timeout=30s")
    nodes = kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}").split()
    assert len(nodes) == 3
    assert set(nodes) == {"n1", "n2"}
    assert len(re.findall("Caches populated", cluster.scheduler.read_text())) == INFORMERS
    kubectl("delete", "deployment", "web", "--cascade=background", "--timeout=30s")
    kubectl("wait", "replicasets", "-l", "app=web", "--for=delete", "--timeout=30s")
    kubectl("wait", "pods", "-l", "app=web", "--for=jsonpath={.metadata.deletionTimestamp}", "--timeout=30s")
    kubectl("delete", "pods", "-l", "app=web", "--force", "--grace-period=0")  # as a kubelet would


def test_job_completes_with_its_pod(cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    kubectl("create", "job", "one", "--image=busybox", "--", "true")
    kubectl("wait", "job/one", "--for=jsonpath={.status.active}=1", "--timeout=30s")
    pod = kubectl("get", "pods", "-l", "job-name=one", "-o", "name").strip()
    kubectl("wait", pod, "--for=condition=PodScheduled", "--timeout=30s")
    kubectl("patch", pod, "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Succeeded"}}')
    kubectl("wait", "job/one", "--for=condition=Complete", "--timeout=30s")
    assert kubectl("get", "job", "one", "-o", "jsonpath={.status.succeeded}") == "1"


def test_namespace_gets_defaults_and_is_deleted_with_its_contents(cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    kubectl("create", "namespace", "x")
    kubectl("wait", "-n", "x", "serviceaccount/default", "--for=create", "--timeout=30s")
    kubectl("create", "-n", "x", "configmap", "m")
    kubectl("create", "-n", "x", "quota", "q", "--hard=count/configmaps=5")
    kubectl("wait", "-n", "x", "resourcequota/q", "--for=jsonpath={.status.used}", "--timeout=30s")
    kubectl("delete", "namespace", "x", "--timeout=30s")
    assert kubectl("get", "namespace", "x", "--ignore-not-found") == ""
