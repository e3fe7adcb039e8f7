"""Ingresses, network policies, disruption budgets and priorities of a tenant, with its processes."""

import time
from collections.abc import Callable

import pytest

from .tenant_processes import OF_TENANTS, Setting, inventory

CLASSES = """
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: tenants-low}, value: -30}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: tenants-high}, value: -20}
"""
OFFER = (
    *("--ingress-class", "public", "--ingress-domain", "apps.example.com", "--ingress-namespace", "ingress"),
    *("--priority-class", "tenants-low", "--priority-class", "missing", "--priority-class", "tenants-high"),
)
KINDS = ("ingresses", "network-policies", "disruption-budgets", "priority-classes")
SYNC = [word for kind in KINDS for word in ("--sync", kind)]
OFF = """
spec:
  sync: {ingresses: false, networkPolicies: false, disruptionBudgets: false, priorityClasses: false}
"""
SHOP = """
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: important}, value: 1000}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: certificate}, stringData: {tls.crt: a, tls.key: b}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, annotations: {nginx.ingress.kubernetes.io/server-snippet: "return 200;"}}
spec:
  rules:
  - host: web.%(id)s.apps.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
  tls: [{secretName: certificate}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: other}
spec: {rules: [{host: shop.example.com}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, maxUnavailable: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      priorityClassName: important
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: web
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
TWIN_KINDS = "ingresses,networkpolicies,poddisruptionbudgets"
TWINS = f"{OF_TENANTS},!tapestry.io/tenant-setup"
TIMEOUT = 60.0


def wait_for(read: Callable[[], str], expected: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while (found := read()) != expected:
        assert time.monotonic() < deadline, f"{found!r}, expected {expected!r}"


@pytest.mark.timeout(300)
def test_other_kinds_follow_their_switches(setting: Setting) -> None:
    tapestry, in_plane, in_host = setting.tapestry, setting.in_plane, setting.in_host
    in_host("apply", "-f", "-", stdin=CLASSES)
    tapestry("host", "add", "east", "--cluster-kubeconfig", setting.host.kubeconfig, "--allow-loopback", *OFFER)
    in_management = setting.in_management
    tapestry("planes", "create", "blue")
    setting.plane.write_text(tapestry("planes", "kubeconfig", "blue"))
    tapestry("tenant", "create", "blue", "--host", "east", *SYNC)
    in_plane("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    id = in_management("get", "plane", "blue", "-o", "jsonpath={.status.id}")
    in_plane("apply", "-f", "-", stdin=SHOP % {"id": id})
    in_plane("rollout", "status", "deployment/web", "--timeout=60s")

    def twins(kinds: str, path: str) -> str:
        return in_host("get", kinds, "-A", "-l", TWINS, "-o", f"jsonpath={{.items[*]{path}}}")

    wait_for(lambda: twins("ingresses", ".spec.rules[*].host"), f"web.{id}.apps.example.com")
    wait_for(lambda: twins("networkpolicies", ".spec.policyTypes"), '["Egress"]')
    wait_for(lambda: twins("poddisruptionbudgets", ".spec.minAvailable"), "2")
    wait_for(lambda: twins("pods", ".metadata.labels.tapestry\\.io/egress-decided"), "true true true")
    wait_for(lambda: twins("pods", ".spec.priorityClassName"), "tenants-high tenants-high tenants-high")
    secret = twins("ingresses", ".spec.tls[0].secretName")
    has_copy = lambda: str(secret in twins("secrets", ".metadata.name").split())  # noqa: E731
    wait_for(has_copy, "True")
    events = "jsonpath={.items[?(@.reason=='HostNotAllowed')].involvedObject.name}"
    wait_for(lambda: in_plane("get", "events", "-o", events), "other")

    in_management("patch", "clusterbinding", "blue", "--type=merge", "-p", OFF)
    wait_for(lambda: twins(TWIN_KINDS, ".metadata.name"), "")
    wait_for(has_copy, "False")
    wait_for(lambda: twins("pods", ".metadata.labels.tapestry\\.io/egress-decided"), "")
    in_plane("rollout", "restart", "deployment/web")
    in_plane("rollout", "status", "deployment/web", "--timeout=60s")
    wait_for(lambda: twins("pods", ".spec.priorityClassName"), "tapestry-leased tapestry-leased tapestry-leased")
    tapestry("tenant", "delete", "blue")
    assert inventory(in_host) == ""
