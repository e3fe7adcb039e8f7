"""A tenant from the first to the last command, with its processes: planes and a host cluster."""

import pytest

from .tenant_processes import OF_TENANTS, Setting, inventory

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
