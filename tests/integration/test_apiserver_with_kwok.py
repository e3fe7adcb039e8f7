"""kwok on our API server: simulated nodes become ready and their pods run."""

from functools import partial
from pathlib import Path

import pytest

from .processes import running
from .programs import programs
from .servers import OwnServer

pytestmark = pytest.mark.long

NODE = "{apiVersion: v1, kind: Node, metadata: {name: n1, annotations: {kwok.x-k8s.io/node: fake}}}"
STAGES = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-is-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      conditions:
      - {type: Ready, status: "True", reason: KubeletReady, message: ready, lastTransitionTime: {{ Now | Quote }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-runs}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  next:
    statusTemplate: |
      phase: Running
      podIP: {{ PodIP | Quote }}
      conditions:
      - {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-stops}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}]}
  next: {delete: true}
"""


def test_nodes_become_ready_and_pods_run(kube_assets: Path, tmp_path: Path) -> None:
    if not (kube_assets / "kwok").exists():
        pytest.skip("kwok is not there: make client-assets builds it")
    with OwnServer(tmp_path / "data") as server:
        kubectl = partial(programs(kube_assets, server.kubeconfig, tmp_path), "kubectl")
        fleet = [kube_assets / "kwok", "--kubeconfig", server.kubeconfig, "--manage-all-nodes=true"]
        stages = tmp_path / "stages.yaml"
        stages.write_text(STAGES)
        flags = ["--config", stages, "--node-lease-duration-seconds=40"]
        with running([*fleet, *flags], tmp_path / "kwok.log"):
            kubectl("apply", "-f", "-", input=NODE)
            kubectl("wait", "node/n1", "--for=condition=Ready", "--timeout=60s")
            kubectl("run", "p", "--image=nginx", '--overrides={"spec": {"nodeName": "n1"}}')
            kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
            assert kubectl("get", "pod", "p", "-o", "jsonpath={.status.phase}") == "Running"
            kubectl("delete", "pod", "p", "--timeout=60s")
            assert kubectl("get", "leases", "-n", "kube-node-lease", "-o", "name") == "lease.coordination.k8s.io/n1\n"
